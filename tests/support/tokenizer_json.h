// Tiny tokenizer.json documents for C++ tests, small enough that expected ids can be worked out by hand.
#pragma once

#include <fastspec/tokenizer.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "support/temporary_directory.h"

namespace fastspec::test {

/// Byte-level: the 256 characters of the alphabet as ids 0..255 in byte order, then " a" 256, "ab" 257, " ab" 258, and
/// the special token <|end|> 259.
nlohmann::json byte_level_json();

/// SentencePiece-like: <unk> 0, <s> 1, </s> 2, <0x00>.. 3..258, ▁ 259, a 260, b 261, ▁a 262, ab 263, ▁ab 264.
nlohmann::json byte_fallback_json();

inline std::shared_ptr<const Tokenizer> load_tokenizer(const nlohmann::json& json) {
  const TemporaryDirectory directory;
  return Tokenizer::load(directory.write("tokenizer.json", json.dump()));
}

}  // namespace fastspec::test
