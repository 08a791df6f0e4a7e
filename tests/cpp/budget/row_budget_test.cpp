// The row budget: survival scores, and the kept set against brute force.
#include "budget/row_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace fastspec::test {
namespace {

constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();

/// Token of a node = its index, so that survivors can be told after renumbering.
TokenTree random_tree(std::mt19937& random, int max_nodes) {
  constexpr float kConfidences[] = {0.0f, 0.25f, 0.5f, 0.5f, 1.0f, 1.5f, -0.5f, kUnknown};
  TokenTree tree(0);
  const int size = static_cast<int>(random() % (max_nodes + 1));
  for (int node = 1; node <= size; ++node) {
    tree.add(node, static_cast<int>(random() % node), kConfidences[random() % std::size(kConfidences)]);
  }
  return tree;
}

int num_drafted(std::span<const TokenTree> trees) {
  int count = 0;
  for (const TokenTree& tree : trees) count += tree.num_drafted();
  return count;
}

double total_survival(std::span<const TokenTree> trees) {
  double total = 0;
  for (const TokenTree& tree : trees) {
    const std::vector<float> scores = survival(tree);
    for (int node = 1; node < tree.num_nodes(); ++node) total += scores[node];
  }
  return total;
}

/// Largest total survival of any parent-closed choice of `count` drafted nodes.
double best_total(std::span<const TokenTree> trees, int count) {
  std::vector<std::pair<int, int>> nodes;
  std::vector<std::vector<int>> bit_of;
  for (int t = 0; t < static_cast<int>(trees.size()); ++t) {
    bit_of.emplace_back(trees[t].num_nodes(), -1);
    for (int node = 1; node < trees[t].num_nodes(); ++node) {
      bit_of[t][node] = static_cast<int>(nodes.size());
      nodes.emplace_back(t, node);
    }
  }
  double best = -1;
  for (unsigned set = 0; set < 1u << nodes.size(); ++set) {
    if (std::popcount(set) != count) continue;
    double total = 0;
    bool closed = true;
    for (std::size_t bit = 0; bit < nodes.size() && closed; ++bit) {
      if ((set >> bit & 1) == 0) continue;
      const auto [t, node] = nodes[bit];
      const int parent_bit = bit_of[t][trees[t].parents[node]];
      closed = parent_bit < 0 || (set >> parent_bit & 1) != 0;
      total += survival(trees[t])[node];
    }
    if (closed) best = std::max(best, total);
  }
  return best;
}

TEST(SurvivalTest, IsTheProductOfConfidencesOnThePath) {
  TokenTree tree(0);
  tree.add(1, 0, 0.5f);
  tree.add(2, 1, 0.5f);
  tree.add(3, 1, kUnknown);
  tree.add(4, 3, 3.0f);
  tree.add(5, 4, -2.0f);
  tree.add(6, 5, std::numeric_limits<float>::infinity());
  EXPECT_EQ(survival(tree), (std::vector<float>{1.0f, 0.5f, 0.25f, 0.5f, 0.5f, 0.0f, 0.0f}));
}

TEST(SurvivalTest, NeverGrowsAlongAPath) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    const TokenTree tree = random_tree(random, 40);
    const std::vector<float> scores = survival(tree);
    ASSERT_EQ(scores.size(), tree.tokens.size());
    EXPECT_EQ(scores[0], 1.0f);
    for (int node = 1; node < tree.num_nodes(); ++node) {
      EXPECT_LE(scores[node], scores[tree.parents[node]]);
      EXPECT_GE(scores[node], 0.0f);
    }
  }
}

TEST(KeepBestRowsTest, KeepsEverythingWhenItFits) {
  std::vector<TokenTree> trees(2, TokenTree(0));
  trees[0].add(1, 0, 0.0f);
  trees[1].add(1, 0, 0.5f);
  EXPECT_EQ(keep_best_rows(trees, 2), 2);
  EXPECT_EQ(num_drafted(trees), 2);
  EXPECT_EQ(keep_best_rows(trees, 99), 2);
  EXPECT_EQ(keep_best_rows({}, 0), 0);
}

TEST(KeepBestRowsTest, NothingIsKeptWithoutBudget) {
  for (const int budget : {0, -3}) {
    std::vector<TokenTree> trees(2, TokenTree(0));
    trees[0].add(1, 0, 1.0f);
    EXPECT_EQ(keep_best_rows(trees, budget), 0);
    EXPECT_EQ(trees[0].num_nodes(), 1);
    EXPECT_EQ(trees[1].num_nodes(), 1);
  }
}

TEST(KeepBestRowsTest, RanksAcrossTrees) {
  std::vector<TokenTree> trees(2, TokenTree(0));
  trees[0].add(1, 0, 0.9f);
  trees[0].add(2, 1, 0.1f);  // 0.09
  trees[1].add(1, 0, 0.5f);
  trees[1].add(2, 1, 0.5f);  // 0.25
  EXPECT_EQ(keep_best_rows(trees, 3), 3);
  EXPECT_EQ(trees[0].num_drafted(), 1);
  EXPECT_EQ(trees[1].num_drafted(), 2);
}

TEST(KeepBestRowsTest, TiesGoToSmallerDepthThenEarlierTreeThenEarlierNode) {
  const auto kept = [](int budget) {
    std::vector<TokenTree> trees(2, TokenTree(0));
    for (TokenTree& tree : trees) {
      tree.add(1, 0);  // depth 1
      tree.add(2, 1);  // depth 2
      tree.add(3, 0);  // depth 1
    }
    EXPECT_EQ(keep_best_rows(trees, budget), budget);
    return std::pair(trees[0].tokens, trees[1].tokens);
  };
  using Tokens = std::vector<TokenId>;
  EXPECT_EQ(kept(1), std::pair(Tokens({0, 1}), Tokens({0})));
  EXPECT_EQ(kept(2), std::pair(Tokens({0, 1, 3}), Tokens({0})));
  EXPECT_EQ(kept(3), std::pair(Tokens({0, 1, 3}), Tokens({0, 1})));
  EXPECT_EQ(kept(4), std::pair(Tokens({0, 1, 3}), Tokens({0, 1, 3})));
  EXPECT_EQ(kept(5), std::pair(Tokens({0, 1, 2, 3}), Tokens({0, 1, 3})));
}

TEST(KeepBestRowsTest, EqualsBruteForce) {
  std::mt19937 random(5);
  for (int round = 0; round < 150; ++round) {
    std::vector<TokenTree> trees;
    for (int t = 0; t < 3; ++t) trees.push_back(random_tree(random, 4));
    const int all = num_drafted(trees);
    const int budget = static_cast<int>(random() % (all + 2));
    const double best = best_total(trees, std::min(budget, all));
    const std::vector<TokenTree> before = trees;
    ASSERT_EQ(keep_best_rows(trees, budget), std::min(budget, all));
    EXPECT_EQ(num_drafted(trees), std::min(budget, all));
    EXPECT_NEAR(total_survival(trees), best, 1e-6);
    for (std::size_t t = 0; t < trees.size(); ++t) {
      EXPECT_NO_THROW(trees[t].check(4, 4, 5));
      for (int node = 1; node < trees[t].num_nodes(); ++node) {
        const TokenId old = trees[t].tokens[node];
        EXPECT_EQ(trees[t].tokens[trees[t].parents[node]], before[t].parents[old]);
        EXPECT_EQ(trees[t].scratch[node], before[t].scratch[old]);
      }
    }
  }
}

TEST(KeepBestRowsTest, LargerBudgetKeepsASuperset) {
  std::mt19937 random(6);
  for (int round = 0; round < 50; ++round) {
    std::vector<TokenTree> whole;
    for (int t = 0; t < 4; ++t) whole.push_back(random_tree(random, 30));
    std::vector<TokenTree> larger = whole;
    for (int budget = num_drafted(whole); budget >= 0; --budget) {
      std::vector<TokenTree> trees = whole;
      keep_best_rows(trees, budget);
      for (std::size_t t = 0; t < trees.size(); ++t) {
        EXPECT_TRUE(std::includes(larger[t].tokens.begin(), larger[t].tokens.end(), trees[t].tokens.begin(),
                                  trees[t].tokens.end()));
      }
      larger = std::move(trees);
    }
  }
}

}  // namespace
}  // namespace fastspec::test
