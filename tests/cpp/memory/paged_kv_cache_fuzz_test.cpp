// Thousands of random operations on a PagedKvCache whose "K/V" is one number a slot: after each of them every sequence
// must read back the numbers of its own tokens, and exactly the pages that it needs must be in use.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "memory/paged_kv_cache.h"
#include "support/expect_error.h"

namespace fastspec::test {
namespace {

class KvFuzz {
 public:
  KvFuzz(int num_pages, int num_scratch_pages, int page_size, unsigned seed)
      : kv_(num_pages, num_scratch_pages, page_size),
        memory_(std::size_t(num_pages + num_scratch_pages) * page_size, -1),
        random_(seed) {}

  void run(int num_operations) {
    for (int i = 0; i < num_operations && !::testing::Test::HasFailure(); ++i) {
      const int action = below(20);
      if (action < 2) {
        add();
      } else if (action < 4) {
        add_shared();
      } else if (action < 5) {
        forget();
      } else if (action < 8) {
        truncate();
      } else if (action < 10) {
        ask_for_too_much();
      } else {
        step(/*fails=*/below(3) == 0);
      }
      check();
    }
    while (!expected_.empty()) forget();
    check();
    EXPECT_EQ(kv_.num_free_pages(), kv_.num_pages());
    EXPECT_GT(num_commits_, num_operations / 8);
    EXPECT_GT(num_shared_cuts_, 0);
    EXPECT_GT(num_drops_, num_operations / 40);
  }

 private:
  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }
  SeqId any_sequence() { return std::next(expected_.begin(), below(static_cast<int>(expected_.size())))->first; }

  void add() {
    if (expected_.size() >= 6) return;
    kv_.add(next_seq_);
    expected_[next_seq_++] = {};
  }

  void add_shared() {
    if (expected_.empty() || expected_.size() >= 6) return;
    const SeqId from = any_sequence();
    const std::vector<int>& source = expected_[from];
    const int length = below(static_cast<int>(source.size()) + 3);
    const int shared = std::min(length, static_cast<int>(source.size())) / kv_.page_size() * kv_.page_size();
    ASSERT_EQ(kv_.add_shared(from, next_seq_, length), shared);
    expected_[next_seq_++].assign(source.begin(), source.begin() + shared);
  }

  void forget() {
    if (expected_.empty()) return;
    const SeqId seq = any_sequence();
    kv_.forget(seq);
    expected_.erase(seq);
  }

  void truncate() {
    if (expected_.empty()) return;
    const SeqId seq = any_sequence();
    std::vector<int>& values = expected_[seq];
    int length = below(static_cast<int>(values.size()) + 2);
    const std::vector<PageId> pages(kv_.pages(seq).begin(), kv_.pages(seq).end());
    kv_.truncate(seq, length);
    if (length >= static_cast<int>(values.size())) return;
    if (kv_.kv_len(seq) != length) {
      // Only a page that another sequence reads may be dropped whole.
      ASSERT_EQ(kv_.kv_len(seq), length / kv_.page_size() * kv_.page_size());
      const int page = length / kv_.page_size();
      const bool read_elsewhere = std::any_of(expected_.begin(), expected_.end(), [&](const auto& other) {
        const std::span<const PageId> others = kv_.pages(other.first);
        return other.first != seq && std::find(others.begin(), others.end(), pages[page]) != others.end();
      });
      ASSERT_TRUE(read_elsewhere);
      ++num_shared_cuts_;
    }
    values.resize(kv_.kv_len(seq));
  }

  /// A plan beyond the pool: refused, and check() sees that nothing changed.
  void ask_for_too_much() {
    if (expected_.empty()) return;
    StepPlan plan;
    for (const auto& [seq, values] : expected_) {
      SequencePlan& planned = plan.sequences.emplace_back();
      planned.seq = seq;
      planned.first_position = static_cast<int>(values.size());
      planned.num_known_rows = 1 + below(3);
    }
    plan.sequences.back().num_known_rows = (kv_.num_free_pages() + 1) * kv_.page_size();
    const auto before = tables();
    expect_error(ErrorCode::kInternal, {"no free page"}, [&] { kv_.reserve(plan); });
    ASSERT_EQ(tables(), before);
  }

  StepPlan random_plan() {
    StepPlan plan;
    int free_pages = kv_.num_free_pages();
    int scratch = kv_.num_scratch_slots();
    for (const auto& [seq, values] : expected_) {
      if (below(3) == 0) continue;
      SequencePlan planned;
      planned.seq = seq;
      planned.first_position = static_cast<int>(values.size());
      planned.num_known_rows = 1 + below(6);
      planned.max_drafted = std::min(below(8), scratch);
      planned.max_depth = planned.max_drafted == 0 ? 0 : 1 + below(planned.max_drafted);
      const int missing = kv_.missing_pages(seq, planned.first_position + planned.num_known_rows + planned.max_depth);
      if (missing > free_pages) continue;
      free_pages -= missing;
      scratch -= planned.max_drafted;
      plan.sequences.push_back(planned);
    }
    return plan;
  }

  void step(bool fails) {
    const StepPlan plan = random_plan();
    const auto before = tables();
    KvReservation reservation = kv_.reserve(plan);
    std::vector<int> kv_lens;
    std::vector<SlotMove> moves;
    std::map<SeqId, std::vector<int>> grown;
    for (int i = 0; i < static_cast<int>(plan.sequences.size()); ++i) {
      const SequencePlan& planned = plan.sequences[i];
      std::vector<int>& values = grown[planned.seq] = expected_[planned.seq];
      for (int row = 0; row < planned.num_known_rows; ++row) {
        write(reservation.slot(i, planned.first_position + row));
        values.push_back(next_value_);
      }
      const int first_drafted = next_value_ + 1;
      for (int node = 0; node < planned.max_drafted; ++node) write(reservation.scratch_slot(i, node));
      std::vector<int> accepted;  // ascending scratch numbers, as a path is
      for (int node = 0; node < planned.max_drafted && static_cast<int>(accepted.size()) < planned.max_depth; ++node) {
        if (below(2) == 0) accepted.push_back(node);
      }
      PagedKvCache::append_moves(reservation, i, planned.first_position + planned.num_known_rows, accepted, moves);
      for (const int node : accepted) values.push_back(first_drafted + node);
      kv_lens.push_back(static_cast<int>(values.size()));
    }
    check_disjoint(moves);
    copy(moves);
    if (fails) {
      ASSERT_EQ(tables(), before);  // and the reservation dies here
      return;
    }
    copy(moves);  // once more: the copy is idempotent
    if (!plan.sequences.empty() && below(3) == 0) {
      // A sequence leaves the step before it is committed, and then perhaps the cache.
      const int dropped = below(static_cast<int>(plan.sequences.size()));
      const SeqId seq = plan.sequences[dropped].seq;
      reservation.drop(dropped);
      grown.erase(seq);
      if (below(2) == 0) {
        kv_.forget(seq);
        expected_.erase(seq);
      } else {
        kv_.truncate(seq, below(static_cast<int>(expected_[seq].size()) + 1));
        expected_[seq].resize(kv_.kv_len(seq));
      }
      ++num_drops_;
    }
    kv_.commit(reservation, kv_lens);
    for (auto& [seq, values] : grown) expected_[seq] = std::move(values);
    ++num_commits_;
  }

  void write(Slot slot) { memory_.at(slot) = ++next_value_; }

  void copy(const std::vector<SlotMove>& moves) {
    for (const SlotMove& move : moves) memory_.at(move.destination) = memory_.at(move.source);
  }

  static void check_disjoint(const std::vector<SlotMove>& moves) {
    std::set<Slot> slots;
    for (const SlotMove& move : moves) {
      slots.insert(move.source);
      slots.insert(move.destination);
    }
    ASSERT_EQ(slots.size(), 2 * moves.size());
  }

  using Tables = std::map<SeqId, std::pair<int, std::vector<PageId>>>;
  Tables tables() const {
    Tables result;
    for (const auto& [seq, values] : expected_) {
      result[seq] = {kv_.kv_len(seq), {kv_.pages(seq).begin(), kv_.pages(seq).end()}};
    }
    return result;
  }

  void check() {
    ASSERT_NO_THROW(kv_.check_invariants());
    std::set<PageId> used;
    for (const auto& [seq, values] : expected_) {
      ASSERT_EQ(kv_.kv_len(seq), static_cast<int>(values.size()));
      const std::span<const PageId> pages = kv_.pages(seq);
      ASSERT_EQ(static_cast<int>(pages.size()), kv_.pages_for(static_cast<int>(values.size())));
      used.insert(pages.begin(), pages.end());
      const auto [seen, is_new] = versions_.try_emplace(kv_.version(seq), seq, std::vector<PageId>());
      ASSERT_EQ(seen->second.first, seq) << "two sequences have had the same version";
      std::vector<PageId>& before = seen->second.second;
      ASSERT_TRUE(before.size() <= pages.size() && std::equal(before.begin(), before.end(), pages.begin()))
          << "pages of sequence " << seq << " changed under one version";
      before.assign(pages.begin(), pages.end());
      for (int position = 0; position < static_cast<int>(values.size()); ++position) {
        const Slot slot = Slot{pages[position / kv_.page_size()]} * kv_.page_size() + position % kv_.page_size();
        ASSERT_EQ(memory_.at(slot), values[position]) << "sequence " << seq << " position " << position;
      }
    }
    ASSERT_EQ(kv_.num_free_pages(), kv_.num_pages() - static_cast<int>(used.size()));
  }

  PagedKvCache kv_;
  std::vector<int> memory_;  // [slot]
  std::mt19937 random_;
  std::map<SeqId, std::vector<int>> expected_;  // what each sequence has cached
  SeqId next_seq_ = 0;
  int next_value_ = 0;
  std::map<std::uint64_t, std::pair<SeqId, std::vector<PageId>>> versions_;  // whose it is, its pages when last seen
  int num_commits_ = 0;
  int num_drops_ = 0;
  int num_shared_cuts_ = 0;
};

TEST(PagedKvCacheFuzzTest, SmallPages) {
  KvFuzz(24, 4, 4, 1).run(6000);
}
TEST(PagedKvCacheFuzzTest, PagesOfOneSlot) {
  // No cut can lie inside a page here, so the fuzz below is the one that asserts such cuts.
  PagedKvCache kv(5, 2, 1);
  kv.add(1);
  StepPlan plan;
  plan.sequences.push_back({.seq = 1, .first_position = 0, .num_known_rows = 2, .max_drafted = 2, .max_depth = 2});
  KvReservation reservation = kv.reserve(plan);
  const int kv_lens[] = {3};
  kv.commit(reservation, kv_lens);
  EXPECT_EQ(kv.add_shared(1, 2, 2), 2);
  kv.truncate(1, 1);
  EXPECT_EQ(kv.kv_len(1), 1);
  kv.check_invariants();
}
TEST(PagedKvCacheFuzzTest, TightPool) {
  KvFuzz(9, 2, 8, 2).run(6000);
}
TEST(PagedKvCacheFuzzTest, LargePages) {
  KvFuzz(40, 1, 16, 3).run(4000);
}

}  // namespace
}  // namespace fastspec::test
