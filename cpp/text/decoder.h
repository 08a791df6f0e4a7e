// The "decoder" of tokenizer.json as a running chain: token spellings in, text out. Knows no ids and no special tokens.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace fastspec::text {

/// One running step of decoding. What it has made certain goes to the next step at once; the rest waits inside.
class DecoderStage {
 public:
  virtual ~DecoderStage() = default;
  virtual void push(std::string_view token) = 0;
  /// The last token was pushed.
  virtual void finish() { next_->finish(); }
  void set_next(DecoderStage* next) { next_ = next; }

 protected:
  void forward(std::string_view token) { next_->push(token); }

 private:
  DecoderStage* next_ = nullptr;
};

/// A chain that is ready to run. Not safe for several threads at once.
class DecoderRun {
 public:
  explicit DecoderRun(std::vector<std::unique_ptr<DecoderStage>> stages);
  DecoderRun(const DecoderRun&) = delete;
  DecoderRun& operator=(const DecoderRun&) = delete;

  /// Appends to `out` the text that became certain.
  void push(std::string_view token, std::string& out);
  void finish(std::string& out);

 private:
  class Collector : public DecoderStage {
   public:
    void push(std::string_view text) override { text_ += text; }
    void finish() override {}
    void move_to(std::string& out);

   private:
    std::string text_;
  };
  std::vector<std::unique_ptr<DecoderStage>> stages_;
  Collector collector_;
};

/// The decoder of a file. Immutable; every run has its own state.
///
/// Decoding a sequence at once is a run over all of it, so incremental and whole decoding agree by construction. They
/// equal the reference on every sequence, which has one visible effect: the reference turns a run of byte tokens
/// (<0xE2> ...) into characters only if the whole run is valid UTF-8 and into one U+FFFD per byte otherwise, so such a
/// run is held until it ends.
class Decoder {
 public:
  /// Builds ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace or a Sequence of them; nullptr: tokens are joined
  /// by spaces, as the reference does without a decoder.
  /// @throws Error(kUnsupported) naming any other type, or an order of them that cannot run incrementally.
  explicit Decoder(const JsonView* json);

  DecoderRun start() const;

 private:
  void add(const JsonView& json);
  void add_replace(const JsonView& json);
  void add_strip(const JsonView& json);
  void add_metaspace(const JsonView& json);
  void expect_tokens(const JsonView& json) const;

  std::vector<std::function<std::unique_ptr<DecoderStage>()>> makers_;
  bool fused_ = false;  // the steps from here on see one text in fragments, no longer tokens
};

}  // namespace fastspec::text
