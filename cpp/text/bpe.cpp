// Merging with a heap of candidate pairs over a linked list of symbols; stale candidates are recognised when they
// surface.
#include "text/bpe.h"

#include <algorithm>

#include "text/unicode.h"

namespace fastspec::text {

namespace {

constexpr std::size_t kMaxSeenWordBytes = 256;
constexpr std::size_t kMaxSeenWords = std::size_t{1} << 18;
constexpr char32_t kNumLowCharacters = 1 << 16;

}  // namespace

void BpeEncoder::append(std::string_view word, std::vector<TokenId>& out) {
  if (word.size() > kMaxSeenWordBytes) return encode(word, out);
  if (auto known = seen_.find(word); known != seen_.end()) {
    const auto begin = seen_ids_.begin() + static_cast<std::ptrdiff_t>(known->second.begin);
    out.insert(out.end(), begin, begin + static_cast<std::ptrdiff_t>(known->second.count));
    return;
  }
  const std::size_t first = out.size();
  encode(word, out);
  if (seen_.size() >= kMaxSeenWords) return;
  seen_.emplace(std::string(word), Range{seen_ids_.size(), out.size() - first});
  seen_ids_.insert(seen_ids_.end(), out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
}

void BpeEncoder::encode(std::string_view word, std::vector<TokenId>& out) {
  if (model_.ignore_merges_) {
    if (auto id = model_.token_to_id(word)) {
      out.push_back(*id);
      return;
    }
  }
  split_into_characters(word);
  merge_all();
  for (const Symbol& symbol : symbols_) {
    if (symbol.id >= 0) out.push_back(symbol.id);
  }
}

void BpeEncoder::add_symbol(TokenId id) {
  const int index = static_cast<int>(symbols_.size());
  symbols_.push_back({id, index - 1, index + 1});
}

void BpeEncoder::split_into_characters(std::string_view word) {
  symbols_.clear();
  bool unknown_waits = false;  // an unknown character is added late, so that the next one can fuse with it
  for (std::size_t begin = 0; begin < word.size();) {
    const std::string_view character = word.substr(begin, utf8_length(static_cast<unsigned char>(word[begin])));
    begin += character.size();
    if (const TokenId id = model_.character_id(character); id >= 0) {
      if (unknown_waits) add_symbol(*model_.unknown_id_);
      unknown_waits = false;
      add_symbol(id);
      continue;
    }
    const auto byte_id = [&](char byte) { return model_.byte_ids_[static_cast<unsigned char>(byte)]; };
    const bool falls_back = model_.byte_fallback_ && std::all_of(character.begin(), character.end(),
                                                                 [&](char byte) { return byte_id(byte) >= 0; });
    if (falls_back) {
      for (char byte : character) add_symbol(byte_id(byte));
    } else if (model_.unknown_id_) {
      if (unknown_waits && !model_.fuse_unknown_) add_symbol(*model_.unknown_id_);
      unknown_waits = true;
    }
  }
  if (unknown_waits) add_symbol(*model_.unknown_id_);
  if (!symbols_.empty()) symbols_.back().next = -1;
}

void BpeEncoder::offer(int left, int right) {
  if (left < 0 || right < 0) return;
  const BpeModel::Merge* merge =
      model_.merges_.find(symbols_[static_cast<std::size_t>(left)].id, symbols_[static_cast<std::size_t>(right)].id);
  if (merge == nullptr) return;
  candidates_.push_back({merge->rank, left, merge->result});
  std::push_heap(candidates_.begin(), candidates_.end(), std::greater<>());
}

void BpeEncoder::merge_all() {
  candidates_.clear();
  for (int i = 0; i + 1 < static_cast<int>(symbols_.size()); ++i) offer(i, i + 1);
  while (!candidates_.empty()) {
    std::pop_heap(candidates_.begin(), candidates_.end(), std::greater<>());
    const Candidate best = candidates_.back();
    candidates_.pop_back();
    Symbol& left = symbols_[static_cast<std::size_t>(best.position)];
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbols_[static_cast<std::size_t>(left.next)];
    const BpeModel::Merge* merge = model_.merges_.find(left.id, right.id);
    if (merge == nullptr || merge->result != best.result) continue;  // a neighbour was merged since
    left.id = best.result;
    right.id = -1;
    left.next = right.next;
    if (right.next >= 0) symbols_[static_cast<std::size_t>(right.next)].previous = best.position;
    offer(left.previous, best.position);
    offer(best.position, left.next);
  }
}

std::optional<TokenId> BpeModel::token_to_id(std::string_view token) const {
  const auto entry = ids_.find(token);
  if (entry == ids_.end()) return std::nullopt;
  return entry->second;
}

const std::string& BpeModel::id_to_token(TokenId id) const {
  return tokens_[static_cast<std::size_t>(id)];
}

TokenId BpeModel::character_id(std::string_view character) const {
  std::size_t position = 0;
  const char32_t code_point = next_code_point(character, position);
  if (code_point < kNumLowCharacters) return low_characters_[code_point];
  return token_to_id(character).value_or(-1);
}

std::size_t BpeModel::MergeTable::slot_of(std::uint64_t key) const {
  return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ULL) >> shift_);
}

void BpeModel::MergeTable::reserve(std::size_t count) {
  int bits = 4;
  while ((std::size_t{1} << bits) < 2 * count) ++bits;
  shift_ = 64 - bits;
  entries_.assign(std::size_t{1} << bits, Entry{UINT64_MAX, {}});
}

void BpeModel::MergeTable::insert(TokenId left, TokenId right, Merge merge) {
  const std::uint64_t key = (static_cast<std::uint64_t>(left) << 32) | static_cast<std::uint32_t>(right);
  std::size_t slot = slot_of(key);
  while (entries_[slot].key != UINT64_MAX && entries_[slot].key != key) slot = (slot + 1) & (entries_.size() - 1);
  entries_[slot] = {key, merge};
}

const BpeModel::Merge* BpeModel::MergeTable::find(TokenId left, TokenId right) const {
  const std::uint64_t key = (static_cast<std::uint64_t>(left) << 32) | static_cast<std::uint32_t>(right);
  for (std::size_t slot = slot_of(key);; slot = (slot + 1) & (entries_.size() - 1)) {
    if (entries_[slot].key == key) return &entries_[slot].merge;
    if (entries_[slot].key == UINT64_MAX) return nullptr;
  }
}

}  // namespace fastspec::text
