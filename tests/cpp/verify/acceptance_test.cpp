// Trees into Ops::accept and back, with the reference operations: what is accepted, reported and refused.
#include "verify/acceptance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "support/expect_error.h"

namespace fastspec::test {
namespace {

constexpr int kVocabSize = 12;

class TreeWalksTest : public ::testing::Test {
 protected:
  /// Appends a row of logits where `winner` leads.
  void add_row(TokenId winner) {
    for (TokenId token = 0; token < kVocabSize; ++token) {
      logits_.push_back(token == winner ? 4.0f : 0.1f * static_cast<float>(token));
    }
  }
  void add_random_rows(int count, std::mt19937& random) {
    std::normal_distribution<float> normal(0, 2);
    for (int i = 0; i < count * kVocabSize; ++i) logits_.push_back(normal(random));
  }
  Matrix matrix() {
    return {logits_.data(), DType::kFloat32, static_cast<int>(logits_.size()) / kVocabSize, kVocabSize, kVocabSize};
  }
  std::vector<Acceptance> accept(std::span<const AcceptRequest> requests) {
    walks_.launch(*backend_.ops, matrix(), requests);
    walks_.wait(*backend_.ops);
    std::vector<Acceptance> result(requests.size());
    for (int i = 0; i < static_cast<int>(result.size()); ++i) walks_.read(i, result[i]);
    return result;
  }
  static AcceptRequest greedy(const TokenTree& tree, int root_position = 5) {
    AcceptRequest request{.tree = &tree, .root_position = root_position};
    request.rule.temperature = 0;
    return request;
  }
  /// log softmax of a row, in double.
  double logprob(int row, TokenId token) const {
    double sum = 0;
    for (int i = 0; i < kVocabSize; ++i) sum += std::exp(static_cast<double>(logits_[row * kVocabSize + i]));
    return logits_[row * kVocabSize + token] - std::log(sum);
  }
  static std::vector<TokenId> tokens(const Acceptance& acceptance) {
    std::vector<TokenId> result;
    for (const CommittedToken& token : acceptance.tokens) result.push_back(token.token);
    return result;
  }

  Backend backend_ = make_backend("cpu:reference", DType::kFloat32, 1);
  std::vector<float> logits_;
  TreeWalks walks_;  // the same one for every call: nothing of a call is left for the next
};

TEST_F(TreeWalksTest, ChainIsAcceptedUpToTheFirstDifference) {
  TokenTree chain(1);
  chain.add(2, 0);
  chain.add(3, 1);
  chain.add(4, 2);
  for (const TokenId winner : {2, 3, 9, 7}) add_row(winner);
  const AcceptRequest request = greedy(chain);
  const std::vector<Acceptance> result = accept({&request, 1});
  ASSERT_EQ(result.size(), 1u);
  EXPECT_EQ(result[0].path, (std::vector<int>{1, 2}));
  EXPECT_EQ(tokens(result[0]), (std::vector<TokenId>{2, 3, 9}));
  EXPECT_EQ(result[0].finish, FinishReason::kNone);
}

TEST_F(TreeWalksTest, WholeChainGivesABonusToken) {
  TokenTree chain(1);
  chain.add(2, 0);
  chain.add(3, 1);
  for (const TokenId winner : {2, 3, 4}) add_row(winner);
  const AcceptRequest request = greedy(chain);
  const std::vector<Acceptance> result = accept({&request, 1});
  EXPECT_EQ(result[0].path, (std::vector<int>{1, 2}));
  EXPECT_EQ(tokens(result[0]), (std::vector<TokenId>{2, 3, 4}));
}

TEST_F(TreeWalksTest, TreesOfOneCallKeepTheirOwnRows) {
  TokenTree plain(1);
  TokenTree tree(1);  // 0 -> 1, 2; 2 -> 3, 4; 4 -> 5
  tree.add(2, 0);
  tree.add(3, 0);
  tree.add(4, 2);
  tree.add(5, 2);
  tree.add(6, 4);
  TokenTree refused(1);
  refused.add(2, 0);
  add_row(8);
  for (const TokenId winner : {3, 0, 5, 0, 9, 0}) add_row(winner);
  for (const TokenId winner : {10, 11}) add_row(winner);
  const std::vector<AcceptRequest> requests{greedy(plain), greedy(tree), greedy(refused)};
  const std::vector<Acceptance> result = accept(requests);
  ASSERT_EQ(result.size(), 3u);
  EXPECT_TRUE(result[0].path.empty());
  EXPECT_EQ(tokens(result[0]), std::vector<TokenId>{8});
  EXPECT_EQ(result[1].path, (std::vector<int>{2, 4}));
  EXPECT_EQ(tokens(result[1]), (std::vector<TokenId>{3, 5, 9}));
  EXPECT_TRUE(result[2].path.empty());
  EXPECT_EQ(tokens(result[2]), std::vector<TokenId>{10});
}

TEST_F(TreeWalksTest, LogprobsAreThoseOfTheAskingRequestsOnly) {
  TokenTree chain(1);
  chain.add(2, 0);
  chain.add(3, 1);
  for (int tree = 0; tree < 3; ++tree) {
    for (const TokenId winner : {2, 5, 6}) add_row(winner);
  }
  std::vector<AcceptRequest> requests{greedy(chain), greedy(chain), greedy(chain)};
  requests[1].wants_logprob = true;
  requests[1].num_top_logprobs = 3;
  requests[2].wants_logprob = true;
  const std::vector<Acceptance> result = accept(requests);
  for (const Acceptance& acceptance : result) ASSERT_EQ(tokens(acceptance), (std::vector<TokenId>{2, 5}));
  for (int i = 0; i < 2; ++i) {
    const TokenId token = result[0].tokens[i].token;
    EXPECT_EQ(result[0].tokens[i].logprob, 0.0f);
    EXPECT_TRUE(result[0].tokens[i].top.empty());
    EXPECT_NEAR(result[1].tokens[i].logprob, logprob(3 + i, token), 1e-5);
    EXPECT_NEAR(result[2].tokens[i].logprob, logprob(6 + i, token), 1e-5);
    EXPECT_TRUE(result[2].tokens[i].top.empty());
    const std::vector<TokenLogprob>& top = result[1].tokens[i].top;
    ASSERT_EQ(top.size(), 3u);
    const TokenId expected[] = {token, 11, 10};  // 4.0, then the largest of 0.1 * token
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(top[rank].token, expected[rank]);
      EXPECT_NEAR(top[rank].logprob, logprob(3 + i, expected[rank]), 1e-5);
    }
    EXPECT_NEAR(result[0].tokens[i].margin, 4.0 - 1.1, 1e-5);
  }
}

TEST_F(TreeWalksTest, NaNFailsItsSequenceAndNamesThePosition) {
  const TokenTree plain(1);
  add_row(3);
  add_row(4);
  add_row(5);
  logits_[kVocabSize + 2] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<AcceptRequest> requests{greedy(plain), greedy(plain, 41), greedy(plain)};
  const std::vector<Acceptance> result = accept(requests);
  EXPECT_EQ(tokens(result[0]), std::vector<TokenId>{3});
  EXPECT_EQ(result[1].finish, FinishReason::kError);
  EXPECT_TRUE(result[1].tokens.empty());
  EXPECT_TRUE(result[1].path.empty());
  EXPECT_NE(result[1].error.find("position 42"), std::string::npos) << result[1].error;
  EXPECT_EQ(tokens(result[2]), std::vector<TokenId>{5});
}

TEST_F(TreeWalksTest, RowsMustBeOnesOfTheTrees) {
  const TokenTree plain(1);
  add_row(3);
  add_row(4);
  const AcceptRequest request = greedy(plain);
  expect_error(ErrorCode::kInternal, {"1 nodes", "2 rows"}, [&] { accept({&request, 1}); });
}

TEST_F(TreeWalksTest, NothingToAccept) {
  EXPECT_TRUE(accept({}).empty());
}

TEST_F(TreeWalksTest, WhateverIsProposedTheTokensAreThoseOfPlainDecoding) {
  // The logits depend on the depth alone, so a plain run is one draw a depth with the same rows.
  std::mt19937 random(9);
  constexpr int kDepth = 5;
  std::set<std::size_t> lengths;
  for (int round = 0; round < 200; ++round) {
    logits_.clear();
    add_random_rows(kDepth + 1, random);
    const std::vector<float> by_depth = logits_;
    SamplingRule rule;
    rule.temperature = round % 3 == 0 ? 0.0f : 0.8f;
    rule.top_k = round % 2 == 0 ? 0 : 5;
    rule.seed = random();
    std::vector<TokenId> plain;
    const TokenTree root(1);
    for (int depth = 0; depth <= kDepth; ++depth) {
      logits_.assign(by_depth.begin() + depth * kVocabSize, by_depth.begin() + (depth + 1) * kVocabSize);
      const AcceptRequest request{.tree = &root, .root_position = 7 + depth, .rule = rule};
      plain.push_back(accept({&request, 1})[0].tokens.at(0).token);
    }
    TokenTree tree(1);
    std::vector<int> depths{0};
    while (tree.num_nodes() < 14) {
      const int parent = static_cast<int>(random() % tree.num_nodes());
      if (depths[parent] == kDepth) continue;
      tree.add(random() % 2 == 0 ? plain[depths[parent]] : static_cast<TokenId>(random() % kVocabSize), parent);
      depths.push_back(depths[parent] + 1);
    }
    logits_.clear();
    for (const int depth : depths) {
      logits_.insert(logits_.end(), by_depth.begin() + depth * kVocabSize, by_depth.begin() + (depth + 1) * kVocabSize);
    }
    const AcceptRequest request{.tree = &tree, .root_position = 7, .rule = rule};
    const Acceptance result = accept({&request, 1})[0];
    ASSERT_EQ(result.tokens.size(), result.path.size() + 1);
    lengths.insert(result.path.size());
    int parent = 0;
    for (std::size_t i = 0; i < result.tokens.size(); ++i) {
      EXPECT_EQ(result.tokens[i].token, plain[i]);
      if (i == result.path.size()) break;
      EXPECT_EQ(tree.parents[result.path[i]], parent);
      EXPECT_EQ(tree.tokens[result.path[i]], plain[i]);
      parent = result.path[i];
    }
    for (int node = parent + 1; node < tree.num_nodes(); ++node) {
      EXPECT_FALSE(tree.parents[node] == parent && tree.tokens[node] == result.tokens.back().token) << "too early";
    }
  }
  EXPECT_GE(lengths.size(), 5u);
}

}  // namespace
}  // namespace fastspec::test
