// Tiny tokenizer.json documents for C++ tests, small enough that expected ids can be worked out by hand.
#pragma once

#include <fastspec/tokenizer.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace fastspec::testing {

/// A file in the temporary directory that is gone with this object.
class TemporaryTokenizerFile {
 public:
  explicit TemporaryTokenizerFile(const std::string& text) {
    directory_ = std::filesystem::temp_directory_path() / ("fastspec-tokenizer-" + std::to_string(next_number()));
    std::filesystem::create_directories(directory_);
    std::ofstream(path(), std::ios::binary) << text;
  }
  ~TemporaryTokenizerFile() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  TemporaryTokenizerFile(const TemporaryTokenizerFile&) = delete;
  TemporaryTokenizerFile& operator=(const TemporaryTokenizerFile&) = delete;

  const std::filesystem::path& directory() const { return directory_; }
  std::filesystem::path path() const { return directory_ / "tokenizer.json"; }

 private:
  static std::uint64_t next_number() {
    static std::uint64_t number =
        static_cast<std::uint64_t>(std::filesystem::file_time_type::clock::now().time_since_epoch().count());
    return number++;
  }
  std::filesystem::path directory_;
};

inline std::shared_ptr<const Tokenizer> load_tokenizer(const nlohmann::json& json) {
  return Tokenizer::load(TemporaryTokenizerFile(json.dump()).path());
}

/// Byte-level: the 256 characters of the alphabet as ids 0..255 in byte order, then " a" 256, "ab" 257, " ab" 258, and
/// the special token <|end|> 259.
nlohmann::json byte_level_json();

/// SentencePiece-like: <unk> 0, <s> 1, </s> 2, <0x00>.. 3..258, ▁ 259, a 260, b 261, ▁a 262, ab 263, ▁ab 264.
nlohmann::json byte_fallback_json();

}  // namespace fastspec::testing
