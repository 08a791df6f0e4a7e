// Levels of draft trees against their definition, with ties, parents that do not exist, and too few children.
#include <gtest/gtest.h>

#include "cpp/backend/ops_under_test.h"
#include "support/beam_case.h"
#include "support/expect_error.h"

namespace fastspec::test {
namespace {

using testing::BeamInputs;
using testing::BeamOutputs;
using testing::BeamSizes;

bool operator==(const BeamNode& a, const BeamNode& b) {
  return a.token == b.token && a.parent == b.parent && a.confidence == b.confidence;
}

TEST(GrowBeamTest, TakesTheBestChildrenInOrder) {
  const auto ops = make_ops("reference", 2);
  std::mt19937_64 random(5);
  int missing = 0, chosen = 0;
  for (int round = 0; round < 2000; ++round) {
    const BeamSizes sizes = testing::random_beam_sizes(round, random);
    const BeamInputs inputs(sizes, random);
    BeamOutputs seen(sizes);
    GrowBeamParams params = inputs.params(sizes);
    seen.add_to(sizes, params);
    ops->grow_beam(params);
    const BeamOutputs expected = testing::grow_by_definition(sizes, inputs);
    ASSERT_TRUE(std::equal(seen.nodes.begin(), seen.nodes.end(), expected.nodes.begin(),
                           [](const BeamNode& a, const BeamNode& b) { return a == b; }))
        << "round " << round;
    ASSERT_EQ(seen.tokens, expected.tokens) << "round " << round;
    ASSERT_EQ(seen.scores, expected.scores) << "round " << round;
    ASSERT_EQ(seen.ancestors, expected.ancestors) << "round " << round;
    ASSERT_EQ(seen.paths, expected.paths) << "round " << round;
    for (int i = 0; i < sizes.num_trees * sizes.width; ++i)
      ++(seen.nodes[std::size_t(i)].confidence > 0 ? chosen : missing);
  }
  EXPECT_GT(chosen, 10000);
  EXPECT_GT(missing, 1000);
}

TEST(GrowBeamTest, SizesBeyondTheLimitAreRefused) {
  const auto ops = make_ops("reference", 1);
  expect_error(ErrorCode::kInternal, {"grow_beam", "257 children"},
               [&] { ops->grow_beam({.num_trees = 1, .num_parents = 1, .width = 257, .top_k = 1}); });
}

}  // namespace
}  // namespace fastspec::test
