// The row budget: survival scores, and the kept set against brute force.
#include "budget/row_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>

#include "step/row_tiers.h"

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

TEST(RowRankingTest, OrdersAsASortDoes) {
  std::mt19937 random(12);
  std::uniform_real_distribution<float> uniform(0, 1);
  RowRanking ranker;
  for (int round = 0; round < 100; ++round) {  // one after another in the same memory
    std::vector<TokenTree> trees;
    std::vector<std::vector<float>> survivals;
    std::vector<std::tuple<float, int, int, int>> expected;
    for (int t = 0; t < static_cast<int>(random() % 8); ++t) {
      TokenTree& tree = trees.emplace_back(random_tree(random, 60));
      for (float& confidence : tree.confidence) confidence = random() % 4 == 0 ? 0.5f : uniform(random);
      survivals.push_back(survival(tree));
      const std::vector<int> depths = tree.depths();
      for (int node = 1; node < tree.num_nodes(); ++node) {
        expected.emplace_back(-survivals.back()[node], depths[node], t, node);
      }
    }
    std::sort(expected.begin(), expected.end());
    const std::span<const RankedNode> ranking = ranker.rank(trees, survivals);
    ASSERT_EQ(ranking.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(std::tuple(-ranking[i].survival, ranking[i].depth, ranking[i].tree, ranking[i].node), expected[i]) << i;
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

// --- shares of the rows ----------------------------------------------------------------------------------------------

TEST(RowsOfShareTest, CountsRootsAndKeepsThemAside) {
  // 4 sequences with 5 drafted rows each: 24 offered.
  EXPECT_EQ(rows_of_share(0.25, 4, 20), 2);
  EXPECT_EQ(rows_of_share(0.5, 4, 20), 8);
  EXPECT_EQ(rows_of_share(0.75, 4, 20), 14);
  EXPECT_EQ(rows_of_share(1.0, 4, 20), 20);
  EXPECT_EQ(rows_of_share(0.26, 4, 20), 3) << "rounded up";
  EXPECT_EQ(rows_of_share(0.1, 4, 20), 0) << "roots alone are more";
  EXPECT_EQ(rows_of_share(1.0 / 3, 1, 2), 0) << "a third of three rows is one, whatever the rounding";
  EXPECT_EQ(rows_of_share(2.0 / 3, 1, 2), 1);
  EXPECT_EQ(rows_of_share(1.0, 0, 0), 0);
}

/// A millisecond a row beyond `flat` rows, ten before.
CostModel hinge(int flat, double per_tile_key = 0) {
  return CostModel({.rows_per_tile = 2,
                    .linear = {{1, flat, flat + 1000}, {10, 10, 1010}},
                    .per_tile_key = per_tile_key,
                    .per_key = 0.5 * per_tile_key,
                    .draft = {{1}, {3}}});
}

struct Offered {
  std::vector<TokenTree> trees;
  std::vector<RankedNode> ranking;
  RowOffer offer;
};

Offered random_offer(std::mt19937& random, int num_trees, int max_nodes) {
  Offered result;
  std::vector<std::vector<float>> survivals;
  for (int t = 0; t < num_trees; ++t) {
    result.trees.push_back(random_tree(random, max_nodes));
    survivals.push_back(survival(result.trees.back()));
    const bool decodes = result.trees.back().num_drafted() > 0 || random() % 2 == 0;
    result.offer.sequences.push_back(
        {decodes ? 1 : 1 + static_cast<int>(random() % 9), static_cast<int>(random() % 100)});
    result.offer.num_decoding += decodes ? 1 : 0;
    result.offer.num_drafting += result.trees.back().num_drafted() > 0 ? 1 : 0;
  }
  RowRanking ranking;
  const std::span<const RankedNode> nodes = ranking.rank(result.trees, survivals);
  result.ranking.assign(nodes.begin(), nodes.end());
  result.offer.max_drafted = static_cast<int>(random() % (result.ranking.size() + 3));
  return result;
}

TEST(PriceSharesTest, EveryShareIsWhatItsRowsComeTo) {
  std::mt19937 random(8);
  const std::vector<double> ratios = {0.1, 0.25, 0.5, 0.75, 1.0};
  const CostModel cost = hinge(8, 0.01);
  for (int round = 0; round < 300; ++round) {
    Offered offered = random_offer(random, 4, 12);
    const int drafted = static_cast<int>(offered.ranking.size());
    const std::vector<RowChoice> shares = price_shares(offered.offer, offered.ranking, ratios, cost);
    ASSERT_EQ(shares.size(), ratios.size());
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const int wanted = rows_of_share(ratios[i], offered.offer.num_decoding, drafted);
      EXPECT_EQ(shares[i].kept, std::min(wanted, offered.offer.max_drafted));
      // Cut the trees and add up anew.
      std::vector<TokenTree> trees = offered.trees;
      keep_ranked(trees, offered.ranking, shares[i].kept);
      ASSERT_EQ(num_drafted(trees), shares[i].kept);
      StepLoad load{.num_drafting = offered.offer.num_drafting};
      for (std::size_t t = 0; t < trees.size(); ++t) {
        const RowOffer::Rows& rows = offered.offer.sequences[t];
        cost.add_sequence(rows.known + trees[t].num_drafted(), rows.keys, load);
        EXPECT_NO_THROW(trees[t].check(12, 12, 13));
      }
      EXPECT_NEAR(shares[i].milliseconds, cost.step_milliseconds(load), 1e-9);
      EXPECT_NEAR(shares[i].tokens, offered.offer.num_decoding + total_survival(trees), 1e-4);
    }
  }
}

TEST(PriceSharesTest, ThePassIsFilledUpToItsTier) {
  std::mt19937 random(9);
  const std::vector<double> ratios = {0.25, 0.5, 0.75, 1.0};
  int raised = 0;
  for (int round = 0; round < 300; ++round) {
    Offered offered = random_offer(random, 6, 10);
    int known = 0;
    for (const RowOffer::Rows& rows : offered.offer.sequences) known += rows.known;
    offered.offer.max_padded = known + 70;
    for (const RowChoice& share : price_shares(offered.offer, offered.ranking, ratios, hinge(8))) {
      const int drafted = static_cast<int>(offered.ranking.size());
      const int most = std::min(drafted, offered.offer.max_drafted);
      const int kept = std::min(rows_of_share(share.ratio, offered.offer.num_decoding, drafted), most);
      const int tier = row_tier(known + kept, offered.offer.max_padded);
      EXPECT_GE(share.kept, kept);
      EXPECT_LE(known + share.kept, tier);
      EXPECT_TRUE(known + share.kept == tier || share.kept == most) << "nothing that is computed anyway stays empty";
      EXPECT_EQ(share.load.num_rows, tier) << "padding is paid for";
      raised += share.kept > kept ? 1 : 0;
    }
  }
  EXPECT_GT(raised, 100);
}

TEST(PriceSharesTest, PassesWithoutTiersAreNotRaised) {
  std::vector<TokenTree> trees(1, TokenTree(0));
  for (int node = 1; node <= 8; ++node) trees[0].add(node, node - 1, 0.5f);
  const std::vector<std::vector<float>> survivals = {survival(trees[0])};
  RowRanking ranker;
  const std::span<const RankedNode> ranking = ranker.rank(trees, survivals);
  const double ratios[] = {0.3};
  RowOffer offer{.sequences = {{1, 0}}, .num_decoding = 1, .num_drafting = 1, .max_drafted = 8};
  EXPECT_EQ(price_shares(offer, ranking, ratios, hinge(8))[0].kept, 2);
  offer.max_padded = 512;
  EXPECT_EQ(price_shares(offer, ranking, ratios, hinge(8))[0].kept, 3) << "of four rows";
}

TEST(BestShareTest, EqualsTryingEveryShare) {
  std::mt19937 random(10);
  const std::vector<double> ratios = {0.2, 0.4, 0.6, 0.8, 1.0};
  for (int round = 0; round < 300; ++round) {
    const Offered offered = random_offer(random, 4, 12);
    const CostModel cost = hinge(1 + static_cast<int>(random() % 30));
    const std::vector<RowChoice> shares = price_shares(offered.offer, offered.ranking, ratios, cost);
    const int roots = offered.offer.num_decoding;
    for (const BudgetObjective objective : {BudgetObjective::kThroughput, BudgetObjective::kPaper}) {
      const bool is_paper = objective == BudgetObjective::kPaper;
      const auto value = [&](const RowChoice& share) {
        if (is_paper) return share.kept == 0 ? 0 : (share.tokens - roots) / share.milliseconds;
        return share.tokens / share.milliseconds;
      };
      double best = 0;
      for (const RowChoice& share : shares) best = std::max(best, value(share));
      EXPECT_DOUBLE_EQ(value(best_share(shares, roots, objective, 0)), best);
    }
  }
}

TEST(BestShareTest, ASmallSavingIsNotWorthACut) {
  const RowChoice shares[] = {{.ratio = 0.5, .kept = 2, .tokens = 2.04, .milliseconds = 10},
                              {.ratio = 1.0, .kept = 4, .tokens = 2.2, .milliseconds = 11}};
  EXPECT_EQ(best_share(shares, 1, BudgetObjective::kThroughput, 0).ratio, 0.5);
  EXPECT_EQ(best_share(shares, 1, BudgetObjective::kThroughput, 0.03).ratio, 1.0);
}

TEST(BestShareTest, ThePapersObjectiveLeavesTheRootsOut) {
  // With its root's token the small pass is better, without it the large one.
  const RowChoice shares[] = {{.ratio = 0.25, .kept = 0, .tokens = 1, .milliseconds = 1},
                              {.ratio = 0.5, .kept = 1, .tokens = 1.3, .milliseconds = 2},
                              {.ratio = 1.0, .kept = 3, .tokens = 1.5, .milliseconds = 3}};
  EXPECT_EQ(best_share(shares, 1, BudgetObjective::kThroughput, 0).ratio, 0.25);
  EXPECT_EQ(best_share(shares, 1, BudgetObjective::kPaper, 0).ratio, 1.0);
}

}  // namespace
}  // namespace fastspec::test
