// Scoring, selection and page bounds of every implementation against the double-precision oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "cpp/backend/ops_under_test.h"
#include "support/expect_error.h"
#include "support/oracle.h"
#include "support/oracle_sparse.h"
#include "support/sparse_case.h"

namespace fastspec::test {
namespace {

using testing::kNoSlot;
using testing::kUntouched;
using testing::ScoreCase;
using testing::ScoreShape;
using testing::SelectCase;
using testing::SelectShape;

class SparseOpsTest : public OpsTest {
 protected:
  /// Positions of lists are right to `tolerance`, relative to the largest score; nothing else was written.
  static void expect_scores(const ScoreCase& problem, const std::vector<double>& expected, double tolerance) {
    double largest = 1e-30;
    for (const double value : expected) {
      if (!std::isnan(value)) largest = std::max(largest, value);
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (std::isnan(expected[i])) {
        ASSERT_EQ(problem.scores[i], kUntouched) << i;
      } else {
        ASSERT_LT(std::fabs(problem.scores[i] - expected[i]), tolerance * largest) << i;
      }
    }
  }

  static void expect_selection(const SelectCase& problem, const oracle::Selection& expected) {
    std::vector<Slot> slots(problem.slots.size(), kNoSlot);
    for (std::size_t s = 0; s < expected.slots.size(); ++s) {
      std::copy(expected.slots[s].begin(), expected.slots[s].end(), slots.begin() + problem.offsets[s]);
    }
    ASSERT_EQ(problem.slots, slots);
    for (std::size_t i = 0; i < expected.mass.size(); ++i) ASSERT_NEAR(problem.mass[i], expected.mass[i], 1e-6) << i;
  }
};

TEST_P(SparseOpsTest, ScoresOfRandomShapes) {
  std::mt19937_64 random(11);
  const auto two = ops(2);
  const auto one = ops(1);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    ScoreShape shape = testing::random_score_shape(random);
    shape.slot_lists = round % 7 == 3;
    ScoreCase problem(shape, random());
    const std::vector<double> expected = oracle::score_keys(problem.params);
    (round % 2 == 0 ? *two : *one).score_keys(problem.params);
    expect_scores(problem, expected, 3e-6);
    if (HasFatalFailure()) return;
  }
}

TEST_P(SparseOpsTest, BoundsAndScoresOfPages) {
  std::mt19937_64 random(12);
  const auto two = ops(2);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    ScoreCase problem(testing::random_score_shape(random), random());
    const PageBoundsParams params = problem.bounds_params();
    two->update_page_bounds(params);
    const std::vector<double> bounds = oracle::page_bounds(params);
    const std::size_t size = static_cast<std::size_t>(params.kv.num_kv_heads) * 2 * params.kv.head_dim;
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      const auto at = static_cast<std::int64_t>(params.pages[i / size].page * size + i % size);
      const double value = oracle::read_element(params.bounds, params.kv.dtype, at);
      ASSERT_TRUE(std::isnan(bounds[i]) ? std::isnan(value) : value == bounds[i]) << i;
    }
    const std::vector<double> expected = oracle::score_pages(problem.page_params());
    two->score_pages(problem.page_params());
    expect_scores(problem, expected, 1e-5);
    if (HasFatalFailure()) return;
  }
}

TEST_P(SparseOpsTest, MeanScoresSumToTheWeight) {
  ScoreShape shape;
  shape.heads = {0, 2, 5};
  shape.weighted = true;
  shape.sequences = {{7, 500}, {0, 40}, {3, 1}, {2, 0}};
  ScoreCase problem(shape, 5);
  std::fill_n(problem.row_weights.begin(), 9, 0.25f);
  problem.row_weights[9] = 0;
  problem.params.weight = 0.5f;
  ops()->score_keys(problem.params);
  const auto sum = [&](int s, int length) {
    const float* scores = problem.params.scores + s * problem.params.score_stride;
    return std::accumulate(scores, scores + length, 0.0);
  };
  EXPECT_NEAR(sum(0, 500), 0.5, 1e-5);
  EXPECT_EQ(sum(1, 40), 0.0);
  EXPECT_NEAR(sum(2, 1), 0.5, 1e-6);
}

TEST_P(SparseOpsTest, SequencesDoNotTouchEachOther) {
  ScoreShape shape;
  shape.heads = {1, 4};
  shape.sequences = {{3, 130}, {1, 64}, {5, 257}};
  ScoreCase together(shape, 6);
  const auto own = ops();
  own->score_keys(together.params);
  for (int s = 0; s < 3; ++s) {
    ScoreCase alone(shape, 6);  // the same numbers
    alone.params.num_sequences = 1;
    alone.params.row_offsets += s;
    alone.params.lists += s;
    own->score_keys(alone.params);
    const float* expected = together.params.scores + s * together.params.score_stride;
    EXPECT_TRUE(
        std::equal(expected, expected + together.lists[static_cast<std::size_t>(s)].length, alone.params.scores))
        << s;
  }
}

TEST_P(SparseOpsTest, SelectionIsTheDefinition) {
  std::mt19937_64 random(13);
  const auto two = ops(2);
  int by_lookahead = 0, whole = 0;
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(round);
    SelectCase problem(testing::random_select_shape(random, round % 10 == 0 ? 1500 : 150), random());
    two->select_slots(problem.params);
    expect_selection(problem, oracle::select_slots(problem.params));
    if (HasFatalFailure()) return;
    by_lookahead += problem.params.lookahead != nullptr && problem.params.lookahead_slots > 0;
    whole += problem.lists[0].length <= problem.params.budget;
  }
  EXPECT_GT(by_lookahead, 25);
  EXPECT_GT(whole, 10);
}

TEST_P(SparseOpsTest, WithoutLookaheadSlotsHistoryDecidesAlone) {
  SelectShape shape;
  shape.lengths = {900, 65, 64};
  SelectCase problem(shape, 7);
  const auto own = ops();
  own->select_slots(problem.params);
  const std::vector<Slot> with = problem.slots;
  problem.params.lookahead = nullptr;
  own->select_slots(problem.params);
  EXPECT_EQ(problem.slots, with);
  EXPECT_EQ(problem.mass[1], 0.0f);
}

TEST_P(SparseOpsTest, ALookaheadOfNothingIsHistory) {
  SelectShape shape;
  shape.lengths = {700};
  shape.lookahead_slots = 40;
  SelectCase problem(shape, 8);
  std::fill(problem.lookahead.begin(), problem.lookahead.end(), 0.0f);
  const auto own = ops();
  own->select_slots(problem.params);
  const std::vector<Slot> with = problem.slots;
  problem.params.lookahead = nullptr;
  own->select_slots(problem.params);
  EXPECT_EQ(problem.slots, with);
}

FASTSPEC_FOR_ALL_OPS(SparseOpsTest);

TEST(SparseArgumentsTest, ContradictionsAreNamed) {
  const auto ops = make_ops("reference", 1);
  SelectShape selection;
  selection.lengths = {100};
  SelectCase select(selection, 1);
  select.params.lookahead_slots = 60;
  expect_error(ErrorCode::kInternal, {"select_slots", "budget 64", "60 by lookahead"},
               [&] { ops->select_slots(select.params); });
  ScoreShape shape;
  shape.sequences = {{2, 30}};
  ScoreCase score(shape, 1);
  score.params.max_keys = 29;
  expect_error(ErrorCode::kInternal, {"score_keys", "30 keys", "29"}, [&] { ops->score_keys(score.params); });
  score.params.max_keys = 30;
  score.heads = {6};
  expect_error(ErrorCode::kInternal, {"score_keys", "heads[0] = 6"}, [&] { ops->score_keys(score.params); });
  score.heads = {0};
  score.touched = {{0, 17}};
  expect_error(ErrorCode::kInternal, {"update_page_bounds", "17 slots"},
               [&] { ops->update_page_bounds(score.bounds_params()); });
}

}  // namespace
}  // namespace fastspec::test
