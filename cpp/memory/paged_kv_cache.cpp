// Page tables and the reserve / commit transaction.
#include "memory/paged_kv_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace fastspec {

KvReservation::KvReservation(KvReservation&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)), entries_(std::move(other.entries_)) {
  other.entries_.clear();
}

KvReservation::~KvReservation() {
  for (int index = 0; index < static_cast<int>(entries_.size()); ++index) drop(index);
}

void KvReservation::drop(int index) noexcept {
  Entry& entry = entries_[index];
  if (entry.table == nullptr) return;
  PagedKvCache::Table& sequence = PagedKvCache::table(entry);
  cache_->shrink(sequence, sequence.num_own);
  entry.table = nullptr;
}

std::span<const PageId> KvReservation::pages(int index) const {
  return PagedKvCache::table(entries_[index]).pages;
}

std::uint64_t KvReservation::version(int index) const {
  return PagedKvCache::table(entries_[index]).version;
}

int KvReservation::page_size() const {
  return cache_->page_size_;
}

Slot KvReservation::slot(int index, int position) const {
  const std::span<const PageId> reserved = pages(index);
  const int page = position / cache_->page_size_;
  FS_CHECK(position >= 0 && page < static_cast<int>(reserved.size()), "position ", position, " of sequence ",
           entries_[index].seq, " was not reserved");
  return Slot{reserved[page]} * cache_->page_size_ + position % cache_->page_size_;
}

Slot KvReservation::scratch_slot(int index, int scratch) const {
  const Entry& entry = entries_[index];
  FS_CHECK(scratch >= 0 && scratch < entry.num_scratch, "scratch slot ", scratch, " of sequence ", entry.seq,
           " was not reserved");
  return Slot{cache_->num_pages()} * cache_->page_size_ + entry.first_scratch + scratch;
}

PagedKvCache::PagedKvCache(int num_pages, int num_scratch_pages, int page_size)
    : pool_(num_pages), num_scratch_pages_(num_scratch_pages), page_size_(page_size) {}

PagedKvCache::Table& PagedKvCache::table(SeqId seq) {
  const auto found = tables_.find(seq);
  FS_CHECK(found != tables_.end(), "sequence ", seq, " is not in the KV cache");
  return found->second;
}

const PagedKvCache::Table& PagedKvCache::table(SeqId seq) const {
  return const_cast<PagedKvCache*>(this)->table(seq);
}

void PagedKvCache::add(SeqId seq) {
  const auto [place, inserted] = tables_.try_emplace(seq);
  FS_CHECK(inserted, "sequence ", seq, " is in the KV cache already");
  place->second.version = ++next_version_;
}

int PagedKvCache::add_shared(SeqId from, SeqId to, int length) {
  FS_CHECK(!contains(to), "sequence ", to, " is in the KV cache already");
  const Table& source = table(from);
  const int num_shared = std::min(length, source.kv_len) / page_size_;
  Table target;
  target.pages.assign(source.pages.begin(), source.pages.begin() + num_shared);
  target.num_own = num_shared;
  target.kv_len = num_shared * page_size_;
  target.dense_len = std::min(target.kv_len, source.dense_len);
  target.version = ++next_version_;
  tables_.emplace(to, std::move(target));
  for (const PageId page : pages(to)) pool_.retain(page);
  return num_shared * page_size_;
}

void PagedKvCache::forget(SeqId seq) noexcept {
  const auto found = tables_.find(seq);
  if (found == tables_.end()) return;
  for (const PageId page : found->second.pages) pool_.release(page);
  tables_.erase(found);
}

void PagedKvCache::truncate(SeqId seq, int length) {
  Table& sequence = table(seq);
  FS_CHECK(length >= 0, "truncate to ", length);
  if (length >= sequence.kv_len) return;
  if (length % page_size_ != 0 && pool_.references(sequence.pages[length / page_size_]) > 1) {
    length -= length % page_size_;
  }
  shrink(sequence, pages_for(length));
  sequence.num_own = pages_for(length);
  sequence.kv_len = length;
  sequence.dense_len = std::min(sequence.dense_len, length);
  sequence.version = ++next_version_;
}

void PagedKvCache::shrink(Table& sequence, int num_pages) noexcept {
  while (static_cast<int>(sequence.pages.size()) > num_pages) {
    pool_.release(sequence.pages.back());
    sequence.pages.pop_back();
  }
}

int PagedKvCache::kv_len(SeqId seq) const {
  return table(seq).kv_len;
}

std::span<const PageId> PagedKvCache::pages(SeqId seq) const {
  const Table& sequence = table(seq);
  return {sequence.pages.data(), static_cast<std::size_t>(sequence.num_own)};
}

int PagedKvCache::missing_pages(SeqId seq, int num_tokens) const {
  return std::max(0, pages_for(num_tokens) - table(seq).num_own);
}

void PagedKvCache::check_start(const SequencePlan& planned, const Table& sequence) const {
  const int first = planned.first_position;
  const bool again = first < sequence.kv_len;
  FS_CHECK(first == sequence.kv_len || (again && first >= 0 && planned.kv_mode == KvMode::kDense),
           "plan starts sequence ", planned.seq, " at ", first, ", cached are ", sequence.kv_len);
  for (int page = first / page_size_; again && page < sequence.num_own; ++page) {
    FS_CHECK(pool_.references(sequence.pages[page]) == 1, "page ", sequence.pages[page], " of sequence ", planned.seq,
             " is shared and would be written");
  }
}

KvReservation PagedKvCache::reserve(const StepPlan& plan) {
  KvReservation reservation(*this);
  reservation.entries_.reserve(plan.sequences.size());
  int next_scratch = 0;
  for (const SequencePlan& planned : plan.sequences) {
    Table& sequence = table(planned.seq);
    check_start(planned, sequence);
    const int num_tokens =
        planned.first_position + planned.num_known_rows + planned.num_provisional + planned.max_depth;
    FS_CHECK(static_cast<int>(sequence.pages.size()) == sequence.num_own, "pages are lent to sequence ", planned.seq,
             " already");
    const auto num_pages = static_cast<std::size_t>(pages_for(num_tokens));
    KvReservation::Entry& entry = reservation.entries_.emplace_back();
    entry.seq = planned.seq;
    entry.table = &sequence;
    if (num_pages > sequence.pages.capacity()) sequence.pages.reserve(2 * num_pages);
    while (sequence.pages.size() < num_pages) sequence.pages.push_back(pool_.allocate());
    entry.first_scratch = next_scratch;
    entry.num_scratch = planned.max_drafted + planned.num_provisional;
    entry.first_position = planned.first_position;
    entry.is_dense = planned.kv_mode == KvMode::kDense;
    next_scratch += entry.num_scratch;
  }
  FS_CHECK(next_scratch <= num_scratch_slots(), "plan drafts ", next_scratch, " rows, scratch slots are ",
           num_scratch_slots());
  return reservation;
}

void PagedKvCache::append_moves(const KvReservation& reservation, int index, int first_position,
                                std::span<const int> scratch, std::vector<SlotMove>& moves) {
  for (std::size_t i = 0; i < scratch.size(); ++i) {
    moves.push_back({.source = reservation.scratch_slot(index, scratch[i]),
                     .destination = reservation.slot(index, first_position + static_cast<int>(i))});
  }
}

void PagedKvCache::commit(KvReservation& reservation, std::span<const int> kv_lens) noexcept {
  for (std::size_t i = 0; i < reservation.entries_.size(); ++i) {
    const KvReservation::Entry& entry = reservation.entries_[i];
    if (entry.table == nullptr) continue;
    Table& sequence = table(entry);
    const bool is_dense = entry.is_dense && entry.first_position <= sequence.dense_len;
    if (pages_for(kv_lens[i]) < sequence.num_own) sequence.version = ++next_version_;  // pages were lost
    sequence.num_own = pages_for(kv_lens[i]);
    sequence.kv_len = kv_lens[i];
    sequence.dense_len = is_dense ? kv_lens[i] : std::min(sequence.dense_len, kv_lens[i]);
    shrink(sequence, sequence.num_own);
  }
  reservation.entries_.clear();
}

void PagedKvCache::check_invariants() const {
  std::vector<int> references(pool_.num_pages(), 0);
  for (const auto& [seq, sequence] : tables_) {
    FS_CHECK(sequence.num_own == pages_for(sequence.kv_len) &&
                 sequence.num_own <= static_cast<int>(sequence.pages.size()) && sequence.dense_len <= sequence.kv_len,
             "sequence ", seq, " holds ", sequence.num_own, " of ", sequence.pages.size(), " pages for ",
             sequence.kv_len, " tokens");
    for (const PageId page : sequence.pages) ++references[page];
  }
  int used = 0;
  for (PageId page = 0; page < pool_.num_pages(); ++page) {
    FS_CHECK(references[page] == pool_.references(page), "page ", page, " has ", pool_.references(page),
             " references, sequences hold ", references[page]);
    used += references[page] > 0 ? 1 : 0;
  }
  FS_CHECK(used + pool_.num_free() == pool_.num_pages(), used, " used and ", pool_.num_free(), " free pages of ",
           pool_.num_pages());
}

}  // namespace fastspec
