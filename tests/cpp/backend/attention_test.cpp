// Attention and merge of every implementation against the double-precision oracle.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/check.h"
#include "cpp/backend/attention_case.h"
#include "cpp/backend/ops_under_test.h"
#include "support/oracle.h"

namespace fastspec::test {
namespace {

class AttentionTest : public OpsTest {
 protected:
  /// Runs a problem and compares output and LSE.
  void expect_matches_oracle(Ops& ops, AttentionCase& problem, double tolerance = 1e-5) {
    ops.attention(problem.params);
    const oracle::AttentionResult expected = oracle::attention(problem.params);
    EXPECT_LT(worst_error(problem.params.output, expected.output), tolerance);
    double worst = 0;
    for (std::size_t i = 0; i < expected.lse.size(); ++i) {
      worst = std::max(worst, relative_error(problem.lse[i], expected.lse[i]));
    }
    EXPECT_LT(worst, tolerance) << "lse";
  }

  void expect_shape_works(const AttentionShape& shape, std::uint64_t seed = 1, int num_threads = 2) {
    AttentionCase problem(shape, seed);
    expect_matches_oracle(*ops(num_threads), problem);
  }
};

TEST_P(AttentionTest, RandomShapes) {
  std::mt19937_64 random(2024);
  const auto two = ops(2);
  const auto one = ops(1);
  for (int round = 0; round < 80; ++round) {
    SCOPED_TRACE(round);
    AttentionCase problem(random_shape(random), random());
    expect_matches_oracle(round % 2 == 0 ? *two : *one, problem);
    if (HasFailure()) return;
  }
}

TEST_P(AttentionTest, EmptyPartsGiveZeroAndMinusInfinity) {
  AttentionShape shape;
  shape.sequences = {{2, 0, true, NewMask::kNone}, {3, 0, false, NewMask::kNone}, {1, 5, true, NewMask::kNone}};
  AttentionCase problem(shape, 3);
  ops()->attention(problem.params);
  for (int row = 0; row < 5; ++row) {
    for (int i = 0; i < problem.params.output.cols; ++i) ASSERT_EQ(problem.params.output.row<float>(row)[i], 0.0f);
    for (int head = 0; head < problem.params.num_heads; ++head) {
      ASSERT_EQ(problem.lse[static_cast<std::size_t>(row * problem.params.num_heads + head)], -kInf);
    }
  }
  EXPECT_GT(problem.lse.back(), -kInf);
}

TEST_P(AttentionTest, AncestorMaskWithEmptyRowSeesNothing) {
  AttentionShape shape;
  shape.sequences = {{70, 0, true, NewMask::kAncestor}};
  AttentionCase problem(shape, 4);
  std::fill_n(problem.mask_bits.begin() + 3 * kMaskWords, kMaskWords, std::uint64_t{0});
  expect_matches_oracle(*ops(), problem);
  EXPECT_EQ(problem.lse[static_cast<std::size_t>(3 * problem.params.num_heads)], -kInf);
}

TEST_P(AttentionTest, WindowThatHidesTheWholePrefix) {
  AttentionShape shape;
  shape.window = 3;
  shape.sequences = {{9, 200, true, NewMask::kCausal}, {1, 200, false, NewMask::kCausal, 10}};
  expect_shape_works(shape);
  shape.sinks = 4;
  expect_shape_works(shape);
}

TEST_P(AttentionTest, LongPrefixFewRows) {
  AttentionShape shape;
  shape.num_kv_heads = 1;
  for (const int head_dim : {64, 128}) {
    for (const int rows : {1, 4, 8}) {
      shape.head_dim = head_dim;
      shape.sequences = {{rows, 3001, true, NewMask::kCausal}};
      expect_shape_works(shape, 5);
      expect_shape_works(shape, 5, 3);
    }
  }
}

TEST_P(AttentionTest, PromptChunks) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    AttentionShape shape;
    shape.kv_dtype = dtype;
    shape.sequences = {{150, 0}, {64, 333}, {1, 77}, {40, 50, false, NewMask::kCausal}};
    expect_shape_works(shape, 6);
  }
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  AttentionShape shape;
  shape.sequences = {{5, 100, true, NewMask::kCausal}};
  AttentionCase problem(shape, 7);
  for (float& value : problem.query) value *= 60;
  expect_matches_oracle(*ops(), problem, 1e-4);
}

TEST_P(AttentionTest, LseMayBeLeftOut) {
  AttentionShape shape;
  shape.sequences = {{5, 100, true, NewMask::kCausal}, {40, 100, true, NewMask::kCausal}};
  AttentionCase problem(shape, 8);
  const oracle::AttentionResult expected = oracle::attention(problem.params);
  problem.params.lse = nullptr;
  ops()->attention(problem.params);
  EXPECT_LT(worst_error(problem.params.output, expected.output), 1e-5);
}

TEST_P(AttentionTest, MergeOfPartsEqualsTheWhole) {
  AttentionShape shape;
  shape.sequences = {{6, 50, true, NewMask::kAncestor}, {3, 0, true, NewMask::kCausal}, {2, 20, true, NewMask::kNone}};
  AttentionCase problem(shape, 9);
  const oracle::AttentionResult whole = oracle::attention(problem.params);
  const auto implementation = ops();

  // Prefix alone, then new rows alone, then both merged.
  const std::vector<NewMask> none(3, NewMask::kNone);
  std::vector<KvList> no_cache = problem.lists;
  for (KvList& list : no_cache) list.length = 0;
  AttentionParams prefix = problem.params;
  prefix.masks = none.data();
  implementation->attention(prefix);

  AttentionParams fresh = problem.params;
  std::vector<float> other_output(problem.output.size(), kNan), other_lse(problem.lse.size(), kNan);
  fresh.lists = no_cache.data();
  fresh.output.data = other_output.data();
  fresh.lse = other_lse.data();
  implementation->attention(fresh);

  implementation->merge(
      {problem.params.output, problem.lse.data(), fresh.output, other_lse.data(), problem.params.num_heads});
  EXPECT_LT(worst_error(problem.params.output, whole.output), 1e-5);
  for (std::size_t i = 0; i < whole.lse.size(); ++i) ASSERT_LT(relative_error(problem.lse[i], whole.lse[i]), 1e-5);
}

TEST_P(AttentionTest, MergeOfTwoEmptyPartsIsEmpty) {
  float output[8] = {}, other[8] = {};
  float lse[1] = {-kInf}, other_lse[1] = {-kInf};
  ops()->merge({{output, DType::kFloat32, 1, 8, 8}, lse, {other, DType::kFloat32, 1, 8, 8}, other_lse, 1});
  EXPECT_EQ(lse[0], -kInf);
  for (const float value : output) EXPECT_EQ(value, 0.0f);
}

TEST_P(AttentionTest, RefusesContradictions) {
  AttentionShape shape;
  shape.sequences = {{5, 100, true, NewMask::kCausal}};
  AttentionCase problem(shape, 10);
  problem.params.num_heads = 5;
  EXPECT_THROW(ops()->attention(problem.params), Error);
}

FASTSPEC_FOR_ALL_OPS(AttentionTest);

}  // namespace
}  // namespace fastspec::test
