// Text to token ids and back, from a Hugging Face tokenizer.json. Knows nothing of models or requests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fastspec {

using TokenId = std::int32_t;

/// A byte-level or byte-fallback BPE tokenizer. Immutable after loading, so one instance serves any number of threads.
class Tokenizer {
 public:
  /// Loads `tokenizer.json` from a model directory (or the file itself).
  /// @throws Error(kNotFound, kInvalidFile, kUnsupported) naming the file and the field at fault.
  static std::shared_ptr<const Tokenizer> load(const std::filesystem::path& path);

  virtual ~Tokenizer() = default;

  /// Token ids of UTF-8 text. Added tokens inside the text are recognised; invalid UTF-8 is read as U+FFFD.
  /// @param add_special_tokens apply the file's post-processor (a leading BOS, for instance).
  virtual std::vector<TokenId> encode(std::string_view text, bool add_special_tokens = true) const = 0;

  /// Text of token ids, UTF-8 (incomplete sequences become U+FFFD).
  /// @throws Error(kInvalidArgument) for an id outside the vocabulary.
  virtual std::string decode(std::span<const TokenId> ids, bool skip_special_tokens = true) const = 0;

  /// Size of the id space: largest id + 1, added tokens included.
  virtual int vocab_size() const noexcept = 0;
  /// The id of a token spelled exactly so, added tokens included.
  virtual std::optional<TokenId> token_to_id(std::string_view token) const = 0;
  /// The spelling of an id in the vocabulary (byte-level alphabet, not text); empty for an unused id.
  virtual std::string id_to_token(TokenId id) const = 0;
  virtual bool is_special(TokenId id) const noexcept = 0;

  /// Incremental decoding of one sequence. Never emits half a UTF-8 character: bytes wait until they are complete.
  class Stream {
   public:
    virtual ~Stream() = default;
    /// Text that became certain by appending `id`; may be empty.
    virtual std::string push(TokenId id) = 0;
    /// What is still waiting, incomplete bytes as U+FFFD. The concatenation of all pushes and this equals decode().
    virtual std::string finish() = 0;
  };
  virtual std::unique_ptr<Stream> stream(bool skip_special_tokens = true) const = 0;
};

}  // namespace fastspec
