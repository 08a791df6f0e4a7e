// The BPE "model" of tokenizer.json: vocabulary and merges, and the merging of one word. Knows no added tokens.
#pragma once

#include <fastspec/tokenizer.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/json.h"

namespace fastspec::text {

/// Immutable after loading.
class BpeModel {
 public:
  /// @throws Error(kInvalidFile, kUnsupported) naming the field at fault.
  explicit BpeModel(const JsonView& json);
  // The token map refers to strings of this object.
  BpeModel(const BpeModel&) = delete;
  BpeModel& operator=(const BpeModel&) = delete;

  std::optional<TokenId> token_to_id(std::string_view token) const;
  /// The spelling of an id; empty for an unused one.
  const std::string& id_to_token(TokenId id) const;
  /// Largest id + 1.
  int id_space() const noexcept { return static_cast<int>(tokens_.size()); }

 private:
  friend class BpeEncoder;

  struct Merge {
    std::int32_t rank;  // smaller merges first
    TokenId result;
  };

  /// Pair of ids -> merge: open addressing, because this lookup is most of the work of encoding.
  class MergeTable {
   public:
    void reserve(std::size_t count);
    void insert(TokenId left, TokenId right, Merge merge);
    const Merge* find(TokenId left, TokenId right) const;

   private:
    struct Entry {
      std::uint64_t key;
      Merge merge;
    };
    std::size_t slot_of(std::uint64_t key) const;
    std::vector<Entry> entries_;
    int shift_ = 0;
  };

  void load_options(const JsonView& json);
  void load_vocabulary(const JsonView& json);
  void load_merges(const JsonView& json);
  void add_merge(const JsonView& place, std::string_view left, std::string_view right, std::size_t rank);
  void index_characters();
  /// The id of a token that is one character, or -1.
  TokenId character_id(std::string_view character) const;

  bool byte_fallback_ = false;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
  std::optional<TokenId> unknown_id_;
  std::vector<std::string> tokens_;                    // by id
  std::unordered_map<std::string_view, TokenId> ids_;  // views of tokens_
  std::vector<TokenId> low_characters_;                // by code point below 2^16
  std::array<TokenId, 256> byte_ids_{};                // tokens <0x00> .. <0xFF>
  MergeTable merges_;
};

/// Encodes words, one after the other, and remembers what it saw. One per thread and call.
class BpeEncoder {
 public:
  explicit BpeEncoder(const BpeModel& model) : model_(model) {}
  /// Appends the ids of a word (valid UTF-8). O(n log n) in its length.
  /// A character that is in no token, has no byte tokens and finds no unk_token gives nothing, as in the reference.
  void append(std::string_view word, std::vector<TokenId>& out);

 private:
  struct Symbol {
    TokenId id;  // -1 once merged into its left neighbour
    int previous;
    int next;
  };
  struct Candidate {
    std::int32_t rank;
    int position;
    TokenId result;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view word) const { return std::hash<std::string_view>{}(word); }
  };
  struct Range {
    std::size_t begin;
    std::size_t count;
  };

  void encode(std::string_view word, std::vector<TokenId>& out);
  void split_into_characters(std::string_view word);
  void add_symbol(TokenId id);
  void offer(int left, int right);
  void merge_all();

  const BpeModel& model_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> candidates_;  // a heap, the smallest first
  std::unordered_map<std::string, Range, Hash, std::equal_to<>> seen_;
  std::vector<TokenId> seen_ids_;
};

}  // namespace fastspec::text
