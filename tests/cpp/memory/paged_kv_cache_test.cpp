// Page tables: reserve, commit, undo, sharing and truncation, one by one.
#include "memory/paged_kv_cache.h"

#include <gtest/gtest.h>

#include <set>

#include "support/expect_error.h"

namespace fastspec::test {
namespace {

constexpr int kPageSize = 4;

SequencePlan planned(SeqId seq, int first_position, int num_known_rows, int max_drafted = 0, int max_depth = 0) {
  SequencePlan plan;
  plan.seq = seq;
  plan.first_position = first_position;
  plan.num_known_rows = num_known_rows;
  plan.max_drafted = max_drafted;
  plan.max_depth = max_depth;
  return plan;
}

StepPlan plan_of(std::vector<SequencePlan> sequences) {
  StepPlan plan;
  plan.sequences = std::move(sequences);
  return plan;
}

/// Caches tokens of `seq` until it has `length`.
void grow(PagedKvCache& kv, SeqId seq, int length) {
  KvReservation reservation = kv.reserve(plan_of({planned(seq, kv.kv_len(seq), length - kv.kv_len(seq))}));
  const int kv_lens[] = {length};
  kv.commit(reservation, kv_lens);
}

std::vector<PageId> pages_of(const PagedKvCache& kv, SeqId seq) {
  return {kv.pages(seq).begin(), kv.pages(seq).end()};
}

TEST(PagedKvCacheTest, CommitKeepsWhatWasAcceptedAndReturnsTheRest) {
  PagedKvCache kv(10, 2, kPageSize);
  kv.add(1);
  EXPECT_EQ(kv.missing_pages(1, 9), 3);
  KvReservation reservation = kv.reserve(plan_of({planned(1, 0, 3, 8, 8)}));
  EXPECT_EQ(reservation.pages(0).size(), 3u);  // 11 tokens
  EXPECT_EQ(kv.num_free_pages(), 7);
  EXPECT_EQ(kv.kv_len(1), 0) << "nothing is visible before commit";
  EXPECT_TRUE(kv.pages(1).empty());
  const std::vector<PageId> reserved(reservation.pages(0).begin(), reservation.pages(0).end());
  const int kv_lens[] = {5};
  kv.commit(reservation, kv_lens);
  EXPECT_EQ(kv.kv_len(1), 5);
  EXPECT_EQ(pages_of(kv, 1), (std::vector<PageId>{reserved[0], reserved[1]}));
  EXPECT_EQ(kv.num_free_pages(), 8);
  EXPECT_EQ(kv.missing_pages(1, 8), 0);
  EXPECT_EQ(kv.missing_pages(1, 1), 0);
  kv.check_invariants();
}

TEST(PagedKvCacheTest, DyingReservationUndoesEverything) {
  PagedKvCache kv(10, 2, kPageSize);
  kv.add(1);
  kv.add(2);
  grow(kv, 1, 6);
  const std::vector<PageId> before = pages_of(kv, 1);
  {
    const KvReservation reservation = kv.reserve(plan_of({planned(1, 6, 1, 4, 4), planned(2, 0, 9)}));
    EXPECT_EQ(kv.num_free_pages(), 10 - 2 - 1 - 3);
  }
  EXPECT_EQ(pages_of(kv, 1), before);
  EXPECT_EQ(kv.kv_len(1), 6);
  EXPECT_EQ(kv.kv_len(2), 0);
  EXPECT_EQ(kv.num_free_pages(), 8);
  kv.check_invariants();
}

TEST(PagedKvCacheTest, MovedReservationReturnsPagesOnce) {
  PagedKvCache kv(10, 0, kPageSize);
  kv.add(1);
  {
    KvReservation first = kv.reserve(plan_of({planned(1, 0, 9)}));
    const KvReservation second = std::move(first);
    EXPECT_EQ(second.pages(0).size(), 3u);
    EXPECT_EQ(kv.num_free_pages(), 7);
  }
  EXPECT_EQ(kv.num_free_pages(), 10);
  kv.check_invariants();
}

TEST(PagedKvCacheTest, ReservationAfterCommitReturnsNothing) {
  PagedKvCache kv(10, 0, kPageSize);
  kv.add(1);
  grow(kv, 1, 9);  // the reservation dies inside, after its commit
  EXPECT_EQ(kv.num_free_pages(), 7);
  kv.check_invariants();
}

TEST(PagedKvCacheTest, ImpossiblePlansChangeNothing) {
  PagedKvCache kv(3, 1, kPageSize);
  kv.add(1);
  kv.add(2);
  grow(kv, 1, 4);
  const auto refuses = [&](std::vector<SequencePlan> sequences, std::initializer_list<std::string> parts) {
    const StepPlan plan = plan_of(std::move(sequences));
    expect_error(ErrorCode::kInternal, parts, [&] { kv.reserve(plan); });
    EXPECT_EQ(kv.num_free_pages(), 2);
    kv.check_invariants();
  };
  refuses({planned(2, 0, 8), planned(1, 4, 1)}, {"no free page"});
  refuses({planned(2, 0, 8), planned(1, 5, 1)}, {"sequence 1", "at 5", "cached are 4"});
  SequencePlan sparse_again = planned(1, 3, 1);  // only a dense pass computes cached tokens anew
  sparse_again.kv_mode = KvMode::kSparse;
  refuses({planned(2, 0, 8), sparse_again}, {"sequence 1", "at 3", "cached are 4"});
  refuses({planned(2, 0, 1, 3, 1), planned(1, 4, 1, 2, 1)}, {"drafts 5 rows", "scratch slots are 4"});
  refuses({planned(7, 0, 1)}, {"sequence 7"});
}

TEST(PagedKvCacheTest, SlotsOutsideTheReservationAreRefused) {
  PagedKvCache kv(4, 1, kPageSize);
  kv.add(1);
  const KvReservation reservation = kv.reserve(plan_of({planned(1, 0, 1, 2, 2)}));
  EXPECT_NO_THROW(reservation.slot(0, 3));
  expect_error(ErrorCode::kInternal, {"position 4"}, [&] { reservation.slot(0, 4); });
  expect_error(ErrorCode::kInternal, {"position -1"}, [&] { reservation.slot(0, -1); });
  expect_error(ErrorCode::kInternal, {"scratch slot 2"}, [&] { reservation.scratch_slot(0, 2); });
  expect_error(ErrorCode::kInternal, {"scratch slot -1"}, [&] { reservation.scratch_slot(0, -1); });
}

TEST(PagedKvCacheTest, ScratchSlotsAreDisjointAndBeyondEveryPage) {
  PagedKvCache kv(6, 3, kPageSize);
  for (const SeqId seq : {1, 2, 3}) kv.add(seq);
  const KvReservation reservation =
      kv.reserve(plan_of({planned(1, 0, 1, 5, 2), planned(2, 0, 1, 0, 0), planned(3, 0, 1, 7, 7)}));
  std::set<Slot> slots;
  for (const auto& [index, count] : {std::pair(0, 5), std::pair(2, 7)}) {
    for (int scratch = 0; scratch < count; ++scratch) slots.insert(reservation.scratch_slot(index, scratch));
  }
  EXPECT_EQ(slots.size(), 12u);
  EXPECT_GE(*slots.begin(), Slot{6} * kPageSize);
  EXPECT_LT(*slots.rbegin(), Slot{6 + 3} * kPageSize);
}

TEST(PagedKvCacheTest, MovesGoFromScratchToThePositionsAfterTheRoot) {
  PagedKvCache kv(6, 2, kPageSize);
  kv.add(1);
  kv.add(2);
  grow(kv, 2, 2);
  const KvReservation reservation = kv.reserve(plan_of({planned(1, 0, 1), planned(2, 2, 1, 6, 3)}));
  std::vector<SlotMove> moves{{.source = 1, .destination = 2}};
  const int scratch[] = {1, 4, 5};
  PagedKvCache::append_moves(reservation, 1, 3, scratch, moves);
  ASSERT_EQ(moves.size(), 4u);
  EXPECT_EQ(moves[0].source, 1) << "moves of other sequences stay";
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(moves[i + 1].source, reservation.scratch_slot(1, scratch[i]));
    EXPECT_EQ(moves[i + 1].destination, reservation.slot(1, 3 + i));
  }
  EXPECT_EQ(moves[2].destination % kPageSize, 0) << "the second crosses into the next page";
}

TEST(PagedKvCacheTest, SharingTakesWholePagesOfWhatIsCached) {
  PagedKvCache kv(8, 0, kPageSize);
  kv.add(1);
  grow(kv, 1, 10);
  EXPECT_EQ(kv.add_shared(1, 2, 9), 8);
  EXPECT_EQ(kv.add_shared(1, 3, 100), 8) << "no more than the source has";
  EXPECT_EQ(kv.add_shared(1, 4, 3), 0);
  EXPECT_EQ(kv.kv_len(2), 8);
  EXPECT_EQ(pages_of(kv, 2), (std::vector<PageId>{kv.pages(1)[0], kv.pages(1)[1]}));
  EXPECT_TRUE(kv.pages(4).empty());
  EXPECT_EQ(kv.num_free_pages(), 5);
  kv.check_invariants();
  kv.forget(1);
  EXPECT_EQ(kv.num_free_pages(), 6) << "the two shared pages live on";
  grow(kv, 2, 9);
  EXPECT_NE(kv.pages(2)[2], kv.pages(3)[0]);
  kv.check_invariants();
  kv.forget(2);
  kv.forget(3);
  EXPECT_EQ(kv.num_free_pages(), 8);
}

TEST(PagedKvCacheTest, SharingRefusesUnknownAndKnownSequences) {
  PagedKvCache kv(8, 0, kPageSize);
  kv.add(1);
  grow(kv, 1, 8);
  expect_error(ErrorCode::kInternal, {"sequence 1"}, [&] { kv.add(1); });
  expect_error(ErrorCode::kInternal, {"sequence 1"}, [&] { kv.add_shared(1, 1, 8); });
  expect_error(ErrorCode::kInternal, {"sequence 5"}, [&] { kv.add_shared(5, 6, 8); });
  EXPECT_FALSE(kv.contains(6));
  kv.forget(9);  // ignored
  kv.check_invariants();
}

TEST(PagedKvCacheTest, TruncateReturnsPagesAndKeepsTheCutPage) {
  PagedKvCache kv(8, 0, kPageSize);
  kv.add(1);
  grow(kv, 1, 11);
  const std::vector<PageId> pages = pages_of(kv, 1);
  kv.truncate(1, 20);
  EXPECT_EQ(kv.kv_len(1), 11);
  kv.truncate(1, 6);
  EXPECT_EQ(kv.kv_len(1), 6);
  EXPECT_EQ(pages_of(kv, 1), (std::vector<PageId>{pages[0], pages[1]}));
  kv.truncate(1, 4);
  EXPECT_EQ(pages_of(kv, 1), std::vector<PageId>{pages[0]});
  kv.check_invariants();
  kv.truncate(1, 0);
  EXPECT_EQ(kv.num_free_pages(), 8);
  expect_error(ErrorCode::kInternal, {"truncate to -1"}, [&] { kv.truncate(1, -1); });
  kv.check_invariants();
}

TEST(PagedKvCacheTest, CutInsideASharedPageDropsThePage) {
  PagedKvCache kv(8, 0, kPageSize);
  kv.add(1);
  grow(kv, 1, 10);
  kv.add_shared(1, 2, 8);
  kv.truncate(1, 8);
  EXPECT_EQ(kv.kv_len(1), 8) << "a cut between pages needs no page dropped";
  kv.truncate(1, 6);
  EXPECT_EQ(kv.kv_len(1), 4) << "the second page is read by sequence 2";
  EXPECT_EQ(kv.kv_len(2), 8);
  kv.check_invariants();
  kv.truncate(2, 7);
  EXPECT_EQ(kv.kv_len(2), 7) << "nobody else reads the page now";
  kv.check_invariants();
}

/// The same as a sparse pass.
SequencePlan sparsely(SequencePlan plan) {
  plan.kv_mode = KvMode::kSparse;
  plan.num_slots = 1;
  return plan;
}

TEST(PagedKvCacheTest, WhatSparsePassesWroteIsNotDense) {
  PagedKvCache kv(10, 4, kPageSize);
  kv.add(1);
  grow(kv, 1, 6);
  EXPECT_EQ(kv.dense_len(1), 6);
  KvReservation reservation = kv.reserve(plan_of({sparsely(planned(1, 6, 1, 3, 3))}));
  const int kv_lens[] = {9};
  kv.commit(reservation, kv_lens);
  EXPECT_EQ(kv.dense_len(1), 6);
  grow(kv, 1, 11);  // a dense pass, but over keys that are not
  EXPECT_EQ(kv.dense_len(1), 6);
  kv.truncate(1, 5);
  EXPECT_EQ(kv.dense_len(1), 5);
  grow(kv, 1, 7);
  EXPECT_EQ(kv.dense_len(1), 7);
  kv.check_invariants();
}

TEST(PagedKvCacheTest, CachedTokensAreComputedAnewAndSomeTakenBack) {
  PagedKvCache kv(10, 4, kPageSize);
  kv.add(1);
  grow(kv, 1, 6);
  KvReservation sparse = kv.reserve(plan_of({sparsely(planned(1, 6, 1, 6, 6))}));
  const int written[] = {13};
  kv.commit(sparse, written);
  const std::vector<PageId> before = pages_of(kv, 1);
  const std::uint64_t version = kv.version(1);

  SequencePlan again = planned(1, 6, 1, 2, 2);
  again.num_provisional = 6;
  {
    const KvReservation undone = kv.reserve(plan_of({again}));
    EXPECT_EQ(undone.slot(0, 6), Slot{before[1]} * kPageSize + 2);
    EXPECT_NO_THROW(undone.scratch_slot(0, 7));
    EXPECT_THROW(undone.scratch_slot(0, 8), Error);
    EXPECT_NO_THROW(undone.slot(0, 14));
  }
  EXPECT_EQ(kv.kv_len(1), 13) << "nothing was committed";
  EXPECT_EQ(pages_of(kv, 1), before);
  EXPECT_EQ(kv.version(1), version);

  KvReservation reservation = kv.reserve(plan_of({again}));
  const int kept[] = {8};
  kv.commit(reservation, kept);
  EXPECT_EQ(kv.kv_len(1), 8);
  EXPECT_EQ(kv.dense_len(1), 8);
  EXPECT_EQ(pages_of(kv, 1), (std::vector<PageId>{before[0], before[1]}));
  EXPECT_NE(kv.version(1), version) << "pages were lost";
  kv.check_invariants();
}

TEST(PagedKvCacheTest, RefusesToWriteASharedPageAnewAndSparsePassesThatDo) {
  PagedKvCache kv(10, 4, kPageSize);
  kv.add(1);
  grow(kv, 1, 9);
  kv.add_shared(1, 2, 8);
  expect_error(ErrorCode::kInternal, {"shared"}, [&] { kv.reserve(plan_of({planned(1, 7, 1)})); });
  EXPECT_NO_THROW(kv.reserve(plan_of({planned(1, 8, 1)})));
  expect_error(ErrorCode::kInternal, {"plan starts sequence 1 at 8"},
               [&] { kv.reserve(plan_of({sparsely(planned(1, 8, 1))})); });
}

}  // namespace
}  // namespace fastspec::test
