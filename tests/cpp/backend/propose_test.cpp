// Proposals of a draft model against the sampling oracle.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/sampling.h"
#include "cpp/backend/ops_under_test.h"
#include "cpp/backend/sampling_case.h"
#include "support/oracle_sampling.h"

namespace fastspec::test {
namespace {

class ProposeTest : public ::testing::Test {
 protected:
  /// What accept() draws at position 101.
  TokenId draw(std::vector<float>& logits, const SamplingRule& rule) {
    TreeCase problem({5}, {-1}, rule);
    const int size = static_cast<int>(logits.size());
    sampler_.accept({{logits.data(), DType::kFloat32, 1, size, size}, &problem.tree, &problem.result, 1});
    return problem.sampled[0].token;
  }
  void propose(std::vector<float>& logits, const SamplingRule& rule, const std::vector<TokenId>& path, int top_k,
               const TokenId* token_ids = nullptr) {
    const std::int32_t position = 100;
    const int size = static_cast<int>(logits.size());
    tokens_.assign(static_cast<std::size_t>(top_k), -5);
    confidences_.assign(static_cast<std::size_t>(top_k), kNan);
    ProposeParams params;
    params.logits = {logits.data(), DType::kFloat32, 1, size, size};
    params.positions = &position;
    params.paths = path.data();
    params.path_length = static_cast<int>(path.size());
    params.top_k = top_k;
    params.token_ids = token_ids;
    params.tokens = tokens_.data();
    params.confidences = confidences_.data();
    sampler_.set_rules({&rule, 1, size});
    sampler_.propose(params);
  }
  cpu::ThreadPool pool_{2};
  cpu::Sampler sampler_{pool_};
  std::vector<TokenId> tokens_;
  std::vector<float> confidences_;
};

TEST_F(ProposeTest, MatchesTheOracle) {
  std::mt19937_64 random(36);
  for (int round = 0; round < 2000; ++round) {
    const int vocab_size = 3 + static_cast<int>(random() % (round % 50 == 0 ? 20000 : 60));
    std::vector<float> logits = random_logits(vocab_size, round % 2 == 0 ? 1.0f : 4.0f, random);
    RandomRule random_rule(vocab_size, random);
    std::vector<TokenId> path;
    for (int i = static_cast<int>(random() % 5); i > 0; --i) {
      path.push_back(static_cast<TokenId>(random() % static_cast<std::uint64_t>(vocab_size)));
    }
    const int top_k = 1 + static_cast<int>(random() % 6);
    const std::vector<double> scores = oracle::scores(logits, random_rule.rule, path, 101);
    const std::vector<TokenId> order = oracle::ranking(scores);
    const std::vector<double> probability = oracle::probabilities(scores);
    propose(logits, random_rule.rule, path, top_k);
    for (std::size_t i = 0; i < static_cast<std::size_t>(top_k); ++i) {
      if (i >= order.size() || std::isinf(scores[static_cast<std::size_t>(order[i])])) {
        ASSERT_EQ(tokens_[i], kNoToken) << "round " << round;
        ASSERT_EQ(confidences_[i], 0);
        continue;
      }
      const auto token = static_cast<std::size_t>(tokens_[i]);
      ASSERT_LT(token, scores.size()) << "round " << round;
      ASSERT_NEAR(scores[token], scores[static_cast<std::size_t>(order[i])], 1e-4) << "round " << round;
      ASSERT_NEAR(confidences_[i], probability[token], 1e-4) << "round " << round;
    }
  }
}

TEST_F(ProposeTest, BestProposalIsWhatAcceptDraws) {
  std::mt19937_64 random(37);
  for (int round = 0; round < 300; ++round) {
    std::vector<float> logits = random_logits(500, 2.0f, random);
    RandomRule random_rule(500, random);
    propose(logits, random_rule.rule, {}, 3);
    EXPECT_EQ(tokens_[0], draw(logits, random_rule.rule));
  }
}

/// A pruned vocabulary proposes what the whole one does where every other token is impossible.
TEST_F(ProposeTest, ColumnsMayStandForOtherTokens) {
  std::mt19937_64 random(38);
  for (int round = 0; round < 600; ++round) {
    const int num_columns = 1 + static_cast<int>(random() % (round % 20 == 0 ? 9000 : 40));
    const std::vector<float> columns = random_logits(num_columns, round % 2 == 0 ? 1.0f : 4.0f, random);
    std::vector<TokenId> token_ids;
    for (TokenId token = static_cast<TokenId>(random() % 3); token_ids.size() < columns.size();
         token += 1 + static_cast<TokenId>(random() % 4)) {
      token_ids.push_back(token);
    }
    std::vector<float> whole(static_cast<std::size_t>(token_ids.back()) + 1 + random() % 5, -kInf);
    for (std::size_t i = 0; i < columns.size(); ++i) whole[static_cast<std::size_t>(token_ids[i])] = columns[i];
    SamplingRule rule;
    rule.temperature = std::vector<float>{0, 0.7f, 1, 2}[random() % 4];
    rule.seed = random();
    if (random() % 3 == 0) rule.top_k = 1 + static_cast<int>(random() % 12);
    if (random() % 3 == 0) rule.top_p = 0.8f;
    if (random() % 3 == 0) rule.min_p = 0.05f;
    const int top_k = 1 + static_cast<int>(random() % 6);
    propose(whole, rule, {}, top_k);
    const std::vector<TokenId> expected = tokens_;
    const std::vector<float> confidences = confidences_;
    std::vector<float> own = columns;
    propose(own, rule, {}, top_k, token_ids.data());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const TokenId seen = tokens_[i] == kNoToken ? kNoToken : token_ids[static_cast<std::size_t>(tokens_[i])];
      ASSERT_EQ(seen, expected[i]) << "round " << round;
      ASSERT_NEAR(confidences_[i], confidences[i], 1e-6) << "round " << round;
    }
  }
}

/// Rows of several rules, and rows behind the last rule.
TEST_F(ProposeTest, RowsTakeTheRulesInTurn) {
  std::mt19937_64 random(39);
  constexpr int kColumns = 40, kRowsPerRule = 3, kRules = 2, kRows = kRowsPerRule * (kRules + 1), kTopK = 4;
  std::vector<float> logits;
  std::vector<std::int32_t> positions;
  std::vector<TokenId> paths;
  for (int row = 0; row < kRows; ++row) {
    for (const float value : random_logits(kColumns, 2.0f, random)) logits.push_back(value);
    positions.push_back(100);
    for (int i = 0; i < 2; ++i) paths.push_back(static_cast<TokenId>(random() % kColumns));
  }
  SamplingRule rules[kRules];
  rules[0].seed = 3;
  rules[1].temperature = 0;
  rules[1].repetition_penalty = 1.4f;
  std::vector<TokenId> tokens(kRows * kTopK, -5);
  std::vector<float> confidences(kRows * kTopK, kNan);
  sampler_.set_rules({rules, kRules, kColumns});
  sampler_.propose({.logits = {logits.data(), DType::kFloat32, kRows, kColumns, kColumns},
                    .rows_per_rule = kRowsPerRule,
                    .positions = positions.data(),
                    .paths = paths.data(),
                    .path_length = 2,
                    .top_k = kTopK,
                    .tokens = tokens.data(),
                    .confidences = confidences.data()});
  for (int row = 0; row < kRows; ++row) {
    const auto* own_tokens = tokens.data() + row * kTopK;
    const auto* own_confidences = confidences.data() + row * kTopK;
    if (row >= kRules * kRowsPerRule) {
      EXPECT_EQ(std::count(own_tokens, own_tokens + kTopK, kNoToken), kTopK);
      EXPECT_EQ(std::count(own_confidences, own_confidences + kTopK, 0.0f), kTopK);
      continue;
    }
    std::vector<float> own(logits.begin() + row * kColumns, logits.begin() + (row + 1) * kColumns);
    propose(own, rules[row / kRowsPerRule], {paths[2 * row], paths[2 * row + 1]}, kTopK);
    EXPECT_TRUE(std::equal(tokens_.begin(), tokens_.end(), own_tokens)) << row;
    EXPECT_TRUE(std::equal(confidences_.begin(), confidences_.end(), own_confidences)) << row;
  }
}

TEST_F(ProposeTest, InfiniteLogitsShareTheConfidence) {
  std::vector<float> logits = {1, kInf, kInf, 0};
  SamplingRule rule;
  propose(logits, rule, {}, 3);
  EXPECT_EQ(tokens_[0], 1);
  EXPECT_EQ(confidences_[1], 0.5f);
  EXPECT_EQ(confidences_[2], 0.0f);
}

}  // namespace
}  // namespace fastspec::test
