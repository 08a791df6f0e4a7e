// Drawing, filters, penalties, acceptance walks and proposals against the sampling oracle.
#include "backend/cpu/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/check.h"
#include "cpp/backend/ops_under_test.h"
#include "cpp/backend/sampling_case.h"
#include "support/oracle_sampling.h"

namespace fastspec::test {
namespace {

class SamplingTest : public ::testing::Test {
 protected:
  /// One draw at position 101 of a one-node tree.
  SampledToken draw(std::vector<float>& logits, const SamplingRule& rule) {
    TreeCase problem({5}, {-1}, rule);
    accept(logits, static_cast<int>(logits.size()), problem);
    EXPECT_EQ(problem.result.num_accepted, 0);
    return problem.sampled[0];
  }

  void accept(std::vector<float>& logits, int vocab_size, TreeCase& problem) {
    const int rows = static_cast<int>(logits.size()) / vocab_size;
    sampler_.accept(
        {{logits.data(), DType::kFloat32, rows, vocab_size, vocab_size}, &problem.tree, &problem.result, 1});
  }

  /// True when nothing can be drawn at the root of a lone row.
  bool fails(std::vector<float>& logits, const SamplingRule& rule) {
    TreeCase problem({0}, {-1}, rule);
    accept(logits, static_cast<int>(logits.size()), problem);
    return problem.result.failed;
  }

  cpu::ThreadPool pool_{2};
  cpu::Sampler sampler_{pool_};
};

TEST_F(SamplingTest, DrawsMatchTheOracleUnderEveryRule) {
  std::mt19937_64 random(31);
  int near_ties = 0;
  for (int round = 0; round < 4000; ++round) {
    const int vocab_size = 1 + static_cast<int>(random() % (round % 10 == 0 ? 3000 : 90));
    std::vector<float> logits = random_logits(vocab_size, round % 2 == 0 ? 1.0f : 5.0f, random);
    RandomRule random_rule(vocab_size, random);
    const std::vector<double> scores = oracle::scores(logits, random_rule.rule, {}, 101);
    const std::vector<TokenId> order = oracle::ranking(scores);
    const double best = scores[static_cast<std::size_t>(order[0])];
    if (best == -std::numeric_limits<double>::infinity()) continue;  // everything forbidden: has its own test
    const SampledToken token = draw(logits, random_rule.rule);
    const double second = order.size() > 1 ? scores[static_cast<std::size_t>(order[1])] : -HUGE_VAL;
    if (best - second < 1e-4) {
      ++near_ties;
    } else {
      ASSERT_EQ(token.token, order[0]) << "round " << round;
    }
    if (std::isinf(second)) {
      ASSERT_EQ(token.margin, kInf) << "round " << round;
    } else {
      ASSERT_NEAR(token.margin, best - second, 1e-4 * (1 + std::fabs(best))) << "round " << round;
    }
    const std::vector<double> raw(logits.begin(), logits.end());
    ASSERT_NEAR(token.logprob, std::log(oracle::probabilities(raw)[static_cast<std::size_t>(token.token)]), 1e-4);
  }
  EXPECT_LT(near_ties, 40);
}

TEST_F(SamplingTest, LargeVocabularyMatchesTheOracle) {
  std::mt19937_64 random(32);
  for (int round = 0; round < 60; ++round) {
    std::vector<float> logits = random_logits(49152, round % 3 == 0 ? 0.01f : 3.0f, random);
    SamplingRule rule;
    rule.temperature = round % 2 == 0 ? 1.0f : 0.6f;
    rule.seed = random();
    if (round % 4 == 1) rule.top_p = 0.95f;
    if (round % 4 == 2) rule.top_k = 40;
    if (round % 5 == 4) rule.min_p = 0.01f;
    const std::vector<double> scores = oracle::scores(logits, rule, {}, 101);
    const std::vector<TokenId> order = oracle::ranking(scores);
    const double margin = scores[static_cast<std::size_t>(order[0])] - scores[static_cast<std::size_t>(order[1])];
    const SampledToken token = draw(logits, rule);
    if (margin > 1e-4) {
      EXPECT_EQ(token.token, order[0]) << round;
    }
    EXPECT_NEAR(token.margin, margin, 1e-4) << round;
  }
}

TEST_F(SamplingTest, TiesGoToTheLowestId) {
  SamplingRule greedy;
  greedy.temperature = 0;
  for (const int size : {2, 5, 16, 17, 40, 5000}) {
    std::vector<float> logits(static_cast<std::size_t>(size), 1.5f);
    const SampledToken token = draw(logits, greedy);
    EXPECT_EQ(token.token, 0);
    EXPECT_EQ(token.margin, 0);
    logits[1] = 2.5f;
    logits.back() = 2.5f;
    EXPECT_EQ(draw(logits, greedy).token, 1);
  }
  // top-k and top-p among equals keep the lowest ids.
  std::vector<float> logits(1000, 0.0f);
  SamplingRule rule;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    rule = {};
    rule.seed = seed;
    rule.top_k = 7;
    EXPECT_LT(draw(logits, rule).token, 7);
    rule.top_k = 0;
    rule.top_p = 0.0105f;
    EXPECT_LT(draw(logits, rule).token, 11);
  }
}

TEST_F(SamplingTest, TopPKeepsAtLeastOneToken) {
  std::vector<float> logits = {0, 3, 1, 2};
  for (const float top_p : {0.0f, 1e-9f}) {
    SamplingRule rule;
    rule.top_p = top_p;
    EXPECT_EQ(draw(logits, rule).token, 1);
    EXPECT_EQ(draw(logits, rule).margin, kInf);
  }
}

TEST_F(SamplingTest, NanFailsItsTree) {
  for (const int place : {0, 3, 20}) {
    std::vector<float> logits(21, 0.0f);
    logits[static_cast<std::size_t>(place)] = kNan;
    EXPECT_TRUE(fails(logits, {}));
  }
}

TEST_F(SamplingTest, EverythingForbiddenFailsItsTree) {
  std::vector<float> logits(3, -kInf);
  EXPECT_TRUE(fails(logits, {}));
  logits = {1, 2, 3};
  const TokenId all[] = {0, 1, 2};
  SamplingRule rule;
  rule.forbidden = all;
  rule.num_forbidden = 3;
  rule.min_tokens = 1;
  EXPECT_TRUE(fails(logits, rule));
  rule.num_generated = 1;  // min_tokens reached: nothing is forbidden any more
  EXPECT_FALSE(fails(logits, rule));
}

TEST_F(SamplingTest, AFailureBelowTheRootKeepsWhatWasDrawnBefore) {
  std::vector<float> logits = {0, 9, 0, 0, 9, 0, 0, kNan, 0};  // tokens 1, 1, then nothing
  SamplingRule rule;
  rule.temperature = 0;
  TreeCase problem({0, 1, 1}, {-1, 0, 1}, rule);
  accept(logits, 3, problem);
  EXPECT_FALSE(problem.result.failed);
  EXPECT_EQ(problem.result.num_accepted, 1);  // the second draw is the bonus; its successor fails in the next step
  EXPECT_EQ(problem.sampled[0].token, 1);
  EXPECT_EQ(problem.sampled[1].token, 1);
}

TEST_F(SamplingTest, InfiniteLogits) {
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingRule rule;
    rule.temperature = temperature;
    std::vector<float> logits = {1, -kInf, 2, -kInf};
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      rule.seed = seed;
      const SampledToken token = draw(logits, rule);
      EXPECT_TRUE(token.token == 0 || token.token == 2);
      EXPECT_TRUE(std::isfinite(token.margin));
    }
    logits = {1, kInf, 2, -kInf};
    SampledToken token = draw(logits, rule);
    EXPECT_EQ(token.token, 1);
    EXPECT_EQ(token.margin, kInf);
    EXPECT_EQ(token.logprob, 0.0f);
    logits = {1, kInf, kInf, -kInf};
    token = draw(logits, rule);
    EXPECT_EQ(token.token, 1);
    EXPECT_EQ(token.margin, 0);
    EXPECT_NEAR(token.logprob, -std::log(2.0f), 1e-6);
    logits = {-kInf, 4, -kInf};
    token = draw(logits, rule);
    EXPECT_EQ(token.token, 1);
    EXPECT_EQ(token.margin, kInf);
  }
}

TEST_F(SamplingTest, ExtremeTemperatures) {
  std::vector<float> logits = {1, 4, 3.9f, -1};
  SamplingRule rule;
  for (const float temperature : {1e-6f, 1e-20f, 1e-38f, 1e-42f}) {
    rule.temperature = temperature;
    rule.top_p = temperature < 1e-30f ? 0.5f : 1.0f;
    EXPECT_EQ(draw(logits, rule).token, 1);
  }
  rule.top_p = 1;
  rule.temperature = 1e30f;
  EXPECT_NO_THROW(draw(logits, rule));
}

TEST_F(SamplingTest, TopLogprobsAreOfTheRawLogits) {
  std::mt19937_64 random(33);
  std::vector<float> logits = random_logits(5000, 2.0f, random);
  logits[17] = logits[4000] = 12.0f;  // a tie
  logits[5] = -kInf;
  RandomRule random_rule(5000, random);
  random_rule.rule.temperature = 1;
  TreeCase problem({5}, {-1}, random_rule.rule, 20);
  accept(logits, 5000, problem);
  const std::vector<double> raw(logits.begin(), logits.end());
  const std::vector<TokenId> order = oracle::ranking(raw);
  const std::vector<double> probability = oracle::probabilities(raw);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(problem.top[i].token, order[i]);
    EXPECT_NEAR(problem.top[i].logprob, std::log(probability[static_cast<std::size_t>(order[i])]), 1e-5);
  }
  EXPECT_EQ(problem.top[0].token, 17);
}

TEST_F(SamplingTest, TopLogprobsOfASmallVocabularyReachTheImpossible) {
  std::vector<float> logits = {-kInf, 1, -kInf};
  TreeCase problem({5}, {-1}, {}, 3);
  accept(logits, 3, problem);
  EXPECT_EQ(problem.top[0].token, 1);
  EXPECT_EQ(problem.top[1].token, 0);
  EXPECT_EQ(problem.top[2].token, 2);
  EXPECT_EQ(problem.top[2].logprob, -kInf);
}

/// What plain decoding draws along a tree: one token a step, history extended by each. The oracle of a walk.
void expect_walk_matches_oracle(const std::vector<float>& logits, int vocab_size, const TreeCase& problem) {
  std::vector<TokenId> drawn;
  int node = 0;
  for (int depth = 0;; ++depth) {
    ASSERT_LE(depth, problem.result.num_accepted);
    const std::span<const float> row{logits.data() + node * vocab_size, static_cast<std::size_t>(vocab_size)};
    const auto scores = oracle::scores(row, problem.tree.rule, drawn, static_cast<std::uint32_t>(101 + depth));
    const std::vector<TokenId> order = oracle::ranking(scores);
    if (scores[static_cast<std::size_t>(order[0])] - scores[static_cast<std::size_t>(order[1])] < 1e-4) return;
    ASSERT_EQ(problem.sampled[static_cast<std::size_t>(depth)].token, order[0]) << "depth " << depth;
    drawn.push_back(order[0]);
    int next = -1;
    for (int child = problem.tree.num_nodes - 1; child > 0; --child) {
      const auto at = static_cast<std::size_t>(child);
      if (problem.parents[at] == node && problem.tokens[at] == order[0]) next = child;
    }
    if (next < 0) {
      EXPECT_EQ(problem.result.num_accepted, depth);
      return;
    }
    ASSERT_LT(depth, problem.result.num_accepted);
    ASSERT_EQ(problem.path[static_cast<std::size_t>(depth)], next);
    node = next;
  }
}

TEST_F(SamplingTest, RandomTreesWithHistoryAlongThePath) {
  std::mt19937_64 random(34);
  std::vector<int> accepted(12, 0);
  for (int round = 0; round < 3000; ++round) {
    const int vocab_size = 2 + static_cast<int>(random() % 4);  // few tokens, so that walks are long and tokens repeat
    const int nodes = 1 + static_cast<int>(random() % 80);
    std::vector<TokenId> tokens;
    std::vector<std::int32_t> parents;
    for (int node = 0; node < nodes; ++node) {
      tokens.push_back(static_cast<TokenId>(random() % static_cast<std::uint64_t>(vocab_size)));
      const int lowest = std::max(0, node - 6);
      parents.push_back(node == 0 ? -1
                                  : lowest + static_cast<int>(random() % static_cast<std::uint64_t>(node - lowest)));
    }
    std::vector<float> logits = random_logits(vocab_size * nodes, 1.0f, random);
    RandomRule random_rule(vocab_size, random);
    random_rule.rule.num_forbidden = std::min(random_rule.rule.num_forbidden, 1);
    TreeCase problem(tokens, parents, random_rule.rule);
    accept(logits, vocab_size, problem);
    expect_walk_matches_oracle(logits, vocab_size, problem);
    if (HasFailure()) FAIL() << "round " << round;
    accepted[static_cast<std::size_t>(std::min(11, problem.result.num_accepted))] += 1;
  }
  for (int length = 0; length < 8; ++length) EXPECT_GT(accepted[static_cast<std::size_t>(length)], 0) << length;
}

TEST_F(SamplingTest, ChainAcceptsExactlyTheAgreeingPrefix) {
  // Greedy: row i prefers token i + 1.
  constexpr int kVocab = 10;
  std::vector<float> logits(5 * kVocab, 0.0f);
  for (std::size_t row = 0; row < 5; ++row) logits[row * kVocab + row + 1] = 9;
  SamplingRule rule;
  rule.temperature = 0;
  for (int agree = 0; agree <= 4; ++agree) {
    std::vector<TokenId> tokens = {0, 1, 2, 3, 4};
    for (int i = agree + 1; i < 5; ++i) tokens[static_cast<std::size_t>(i)] = 9;
    TreeCase problem(tokens, {-1, 0, 1, 2, 3}, rule);
    accept(logits, kVocab, problem);
    EXPECT_EQ(problem.result.num_accepted, agree);
    for (int i = 0; i <= agree; ++i) EXPECT_EQ(problem.sampled[static_cast<std::size_t>(i)].token, i + 1);
    for (int i = 0; i < agree; ++i) EXPECT_EQ(problem.path[static_cast<std::size_t>(i)], i + 1);
  }
}

TEST_F(SamplingTest, DuplicateSiblingsTakeTheFirst) {
  std::vector<float> logits = {0, 9, 0, 0, 9, 0, 0, 0, 9, 9, 0, 0};  // rows 0 and 1 prefer token 1, row 2 token 2
  SamplingRule rule;
  rule.temperature = 0;
  TreeCase problem({0, 1, 1, 2}, {-1, 0, 0, 1}, rule);
  accept(logits, 3, problem);
  EXPECT_EQ(problem.result.num_accepted, 1);
  EXPECT_EQ(problem.path[0], 1);
  EXPECT_EQ(problem.sampled[1].token, 1);  // drawn at node 1, not at its twin
}

TEST_F(SamplingTest, MalformedTreesAreRefused) {
  std::vector<float> logits(6, 0.0f);
  for (const std::vector<std::int32_t>& parents : {std::vector<std::int32_t>{-1, 1}, {-1, -1}, {0, 0}, {-1, 2}}) {
    TreeCase problem({0, 1}, parents, {});
    EXPECT_THROW(accept(logits, 3, problem), Error);
  }
  TreeCase problem({0, 1}, {-1, 0}, {});
  problem.rows[1] = 2;
  EXPECT_THROW(accept(logits, 3, problem), Error);
}

TEST_F(SamplingTest, ManyTreesAtOnceEqualEachAlone) {
  std::mt19937_64 random(35);
  std::vector<float> logits = random_logits(40 * 50, 1.0f, random);
  std::vector<AcceptTree> trees;
  std::vector<AcceptResult> results;
  std::vector<std::unique_ptr<TreeCase>> together, alone;
  for (int i = 0; i < 9; ++i) {
    SamplingRule rule;
    rule.seed = random();
    for (auto* list : {&together, &alone}) {
      list->push_back(std::make_unique<TreeCase>(std::vector<TokenId>{1, 2}, std::vector<std::int32_t>{-1, 0}, rule));
      list->back()->rows = {i * 2, i * 2 + 1};
    }
    trees.push_back(together.back()->tree);
    results.push_back(together.back()->result);
    accept(logits, 50, *alone.back());
  }
  sampler_.accept({{logits.data(), DType::kFloat32, 40, 50, 50}, trees.data(), results.data(), 9});
  for (std::size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(results[i].num_accepted, alone[i]->result.num_accepted);
    EXPECT_EQ(together[i]->sampled[0].token, alone[i]->sampled[0].token);
  }
}

}  // namespace
}  // namespace fastspec::test
