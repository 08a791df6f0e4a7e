// Tokenizer::Stream: ids in, text out, one at a time. Holds no vocabulary of its own.
#pragma once

#include <fastspec/tokenizer.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "text/decoder.h"

namespace fastspec::text {

/// Spelling of an id as decoding sees it, or nullptr for one that leaves no text (special tokens that are skipped).
/// Throws for ids outside the vocabulary.
using SpellingOf = std::function<const std::string*(TokenId)>;

class StreamDecoder : public Tokenizer::Stream {
 public:
  /// `owner` keeps alive what `spelling_of` refers to.
  StreamDecoder(std::shared_ptr<const void> owner, SpellingOf spelling_of, const Decoder& decoder)
      : owner_(std::move(owner)), spelling_of_(std::move(spelling_of)), run_(decoder.start()) {}

  std::string push(TokenId id) override {
    std::string text;
    if (const std::string* spelling = spelling_of_(id)) run_.push(*spelling, text);
    return text;
  }
  std::string finish() override {
    std::string text;
    run_.finish(text);
    return text;
  }

 private:
  std::shared_ptr<const void> owner_;
  SpellingOf spelling_of_;
  DecoderRun run_;
};

}  // namespace fastspec::text
