// The "added_tokens" of tokenizer.json and how they are found in text, before BPE sees it. Splits nothing else.
#pragma once

#include <fastspec/tokenizer.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/json.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/regex.h"

namespace fastspec::text {

struct AddedToken {
  TokenId id = -1;
  std::string content;
  bool special = false;      // left out of decoded text on request
  bool lstrip = false;       // takes the white space on its left with it
  bool rstrip = false;       // and on its right
  bool single_word = false;  // does not match inside a word
  bool normalized = true;    // is looked for in normalized text, and its own spelling is normalized first
};

/// Finds the longest of many strings at the leftmost place.
class TokenTrie {
 public:
  struct Match {
    std::size_t begin;
    std::size_t end;
    std::size_t value;
  };
  TokenTrie();
  void insert(std::string_view token, std::size_t value);
  bool empty() const noexcept { return nodes_.size() == 1; }
  /// The leftmost longest match that begins at or after `from`.
  std::optional<Match> find(std::string_view text, std::size_t from) const;

 private:
  static constexpr std::size_t kNoValue = static_cast<std::size_t>(-1);
  struct Node {
    std::size_t value = kNoValue;
    std::vector<std::pair<unsigned char, std::uint32_t>> children;  // sorted by byte
  };
  std::optional<Match> match_at(std::string_view text, std::size_t begin) const;

  std::vector<Node> nodes_;
  std::vector<std::uint32_t> roots_;  // first byte -> node, 0 for none
};

/// A stretch of text, or the added token that was found in its place.
struct TextSpan {
  std::size_t begin;
  std::size_t end;
  TokenId id = -1;  // -1 for text
};

class AddedTokens {
 public:
  /// Reads the list (null for none). Ids must agree with the model's vocabulary.
  /// @throws Error(kInvalidFile, kUnsupported) naming the entry at fault.
  AddedTokens(const JsonView* json, const BpeModel& model, const Normalizer* normalizer);

  /// Cuts raw text at the tokens that are not normalized, or normalized text at those that are.
  std::vector<TextSpan> split(std::string_view text, bool normalized) const;

  const AddedToken* find(TokenId id) const;
  const AddedToken* find(std::string_view content) const;
  /// Largest id + 1 of the added tokens.
  int id_space() const noexcept { return id_space_; }

 private:
  void load(const JsonView& json, const BpeModel& model);
  void add(const JsonView& place, AddedToken token, std::int64_t id, const BpeModel& model);
  void index(const Normalizer* normalizer, const std::string& file);
  bool stands_alone(std::string_view text, const TokenTrie::Match& match) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<TokenId, std::size_t> by_id_;
  std::unordered_map<std::string, std::size_t> by_content_;
  TokenTrie raw_trie_;
  TokenTrie normalized_trie_;
  Pattern word_character_;
  int id_space_ = 0;
};

}  // namespace fastspec::text
