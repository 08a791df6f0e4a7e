// Which pages hold which tokens of which sequence. Page tables, reservations, commit, truncation: ids and lengths only,
// no tensors (kv_pool.h) and no device.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "memory/page_pool.h"
#include "step/slot_lists.h"
#include "step/step_plan.h"

namespace fastspec {

class PagedKvCache;

/// Pages and scratch slots lent to one step. What is not committed goes back when it dies, so undoing a step is doing
/// nothing.
class KvReservation {
 public:
  KvReservation(const KvReservation&) = delete;
  KvReservation& operator=(const KvReservation&) = delete;
  KvReservation(KvReservation&& other) noexcept;
  KvReservation& operator=(KvReservation&&) = delete;
  ~KvReservation();

  /// The pages of planned sequence `index`: its own, then the borrowed ones.
  std::span<const PageId> pages(int index) const;
  /// Number that says what the sequence's own pages are, see PagedKvCache::version.
  std::uint64_t version(int index) const;
  int page_size() const;
  /// Final slot of a position of planned sequence `index`; within what was reserved.
  Slot slot(int index, int position) const;
  /// Slot that holds the K/V of scratch number `scratch` of planned sequence `index` during this step.
  Slot scratch_slot(int index, int scratch) const;
  /// Gives planned sequence `index` up: what it borrowed goes back, nothing is committed for it. To be called before
  /// the sequence is forgotten or truncated.
  void drop(int index) noexcept;

 private:
  friend class PagedKvCache;
  struct Entry {
    SeqId seq = 0;
    void* table = nullptr;  // of the sequence; null when it was given up
    int first_scratch = 0;
    int num_scratch = 0;
    int first_position = 0;
    bool is_dense = true;
  };
  explicit KvReservation(PagedKvCache& cache) : cache_(&cache) {}

  PagedKvCache* cache_;
  std::vector<Entry> entries_;
};

class PagedKvCache {
 public:
  /// @param num_pages pages that sequences may hold; pages num_pages and up are scratch, `num_scratch_pages` of them.
  PagedKvCache(int num_pages, int num_scratch_pages, int page_size);

  int page_size() const { return page_size_; }
  int num_pages() const { return pool_.num_pages(); }
  int num_free_pages() const { return pool_.num_free(); }
  int num_scratch_slots() const { return num_scratch_pages_ * page_size_; }
  /// Where rows that belong to no sequence put their K/V: the last scratch slot, which must be one more than steps
  /// draft.
  Slot padding_slot() const { return Slot{num_pages() + num_scratch_pages_} * page_size_ - 1; }
  int pages_for(int num_tokens) const { return (num_tokens + page_size_ - 1) / page_size_; }

  /// Starts a sequence with no cached token.
  void add(SeqId seq);
  /// Starts `to` on the first `length` cached tokens of `from`; whole pages only. @returns tokens shared.
  int add_shared(SeqId from, SeqId to, int length);
  /// Ends a sequence; its pages are released. Unknown sequences are ignored.
  void forget(SeqId seq) noexcept;
  /// Drops cached tokens so that at most `length` are left. A shared page is never written, so a cut inside one drops
  /// the whole page; kv_len says what is left.
  void truncate(SeqId seq, int length);

  bool contains(SeqId seq) const { return tables_.contains(seq); }
  int kv_len(SeqId seq) const;
  /// Leading cached tokens whose K/V dense passes computed, over none but such: at most kv_len.
  int dense_len(SeqId seq) const { return table(seq).dense_len; }
  std::span<const PageId> pages(SeqId seq) const;
  /// As long as this number is the same, pages that `seq` had stay its first ones: it only gains more. Never that of
  /// another sequence.
  std::uint64_t version(SeqId seq) const { return table(seq).version; }
  /// Pages that `seq` lacks to cache `num_tokens` tokens.
  int missing_pages(SeqId seq, int num_tokens) const;

  /// Borrows what the plan needs: pages for every known row and for num_provisional + max_depth tokens more,
  /// max_drafted + num_provisional scratch slots. A plan may begin before kv_len: cached tokens are computed anew, and
  /// as long as nothing is committed those before stay.
  /// @throws Error(kInternal) when the plan asks for more than there is (the scheduler counts beforehand).
  KvReservation reserve(const StepPlan& plan);

  /// Moves that make drafted rows permanent: `scratch` numbers of the accepted rows of planned sequence `index`, in
  /// order; the first goes to the position after the root.
  static void append_moves(const KvReservation& reservation, int index, int first_position,
                           std::span<const int> scratch, std::vector<SlotMove>& moves);

  /// Makes planned sequence i hold kv_lens[i] cached tokens; pages beyond go back. Sequences that were given up are
  /// left alone. Cannot fail.
  void commit(KvReservation& reservation, std::span<const int> kv_lens) noexcept;

  /// @throws Error(kInternal) when page tables, lengths and reference counts disagree. For tests.
  void check_invariants() const;

 private:
  friend class KvReservation;
  struct Table {
    std::vector<PageId> pages;  // own pages, then those that a reservation lent
    int num_own = 0;
    int kv_len = 0;
    int dense_len = 0;
    std::uint64_t version = 0;
  };
  static Table& table(const KvReservation::Entry& entry) { return *static_cast<Table*>(entry.table); }
  Table& table(SeqId seq);
  const Table& table(SeqId seq) const;
  void check_start(const SequencePlan& planned, const Table& sequence) const;
  /// Releases pages from the end until `num_pages` are left.
  void shrink(Table& sequence, int num_pages) noexcept;

  PagePool pool_;
  int num_scratch_pages_;
  int page_size_;
  std::uint64_t next_version_ = 0;
  std::unordered_map<SeqId, Table> tables_;
};

}  // namespace fastspec
