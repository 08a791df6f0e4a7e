// A row budget that looks at what was drafted, and what comes out. Two symbols: the target draws A with 0.7, the draft
// with 0.5; what follows A is sure to be accepted, what follows B is not, so after A two drafted rows are kept and
// after B none. An engine that accepts by rejection then draws A with 0.85. Ours draws it with 0.70, as without a
// budget. Chi-square with fixed seeds; a correct sampler exceeds the limit with probability 1e-6.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "budget/row_budget.h"
#include "verify/acceptance.h"

namespace fastspec::test {
namespace {

constexpr TokenId kA = 0, kB = 1;
constexpr double kTargetA = 0.7, kDraftA = 0.5;
constexpr int kDraws = 20000;
constexpr double kLimit = 23.93;  // chi-square of one degree of freedom, 1e-6

double chi_square(int num_a) {
  const double expected = kTargetA * kDraws;
  const double off = num_a - expected;
  return off * off / expected + off * off / (kDraws - expected);
}

/// The draft: x1, and a second token that the selector trusts after A only.
TokenTree draft(TokenId first) {
  TokenTree tree(kA);
  tree.add(first, 0, 0.8f);
  tree.add(kA, 1, first == kA ? 0.9f : 0.0f);
  return tree;
}

enum class Selector { kFull, kNone, kRoot, kThroughput, kPaper, kOnlyAfterA, kOnlyAfterB };

/// Steps a second: 1.0, 0.5 and 0.45 for one, two and three rows.
const CostModel& prices() {
  static const CostModel kPrices({.linear = {{1, 2, 3}, {1, 2, 1 / 0.45}}, .draft = {{1}, {0}}});
  return kPrices;
}

void cut(Selector selector, TokenTree& tree) {
  const TokenId first = tree.tokens[1];
  const auto keep = [&](int count) { keep_best_rows({&tree, 1}, count); };
  switch (selector) {
    case Selector::kFull:
      return;
    case Selector::kNone:
      return keep(0);
    case Selector::kRoot:
      return keep(1);
    case Selector::kOnlyAfterA:
      return keep(first == kA ? 2 : 0);
    case Selector::kOnlyAfterB:
      return keep(first == kB ? 2 : 0);
    case Selector::kThroughput:
    case Selector::kPaper:
      break;
  }
  const std::vector<std::vector<float>> survivals = {survival(tree)};
  RowRanking ranker;
  const std::span<const RankedNode> ranking = ranker.rank({&tree, 1}, survivals);
  const double ratios[] = {1.0 / 3, 2.0 / 3, 1.0};
  const RowOffer offer{.sequences = {{1, 0}}, .num_decoding = 1, .num_drafting = 1, .max_drafted = 2};
  const std::vector<RowChoice> shares = price_shares(offer, ranking, ratios, prices());
  const auto objective = selector == Selector::kPaper ? BudgetObjective::kPaper : BudgetObjective::kThroughput;
  keep_ranked({&tree, 1}, ranking, best_share(shares, 1, objective, 0).kept);
}

TEST(SelectorExactness, TheSelectorLooksAtWhatWasDrafted) {
  TokenTree after_a = draft(kA), after_b = draft(kB);
  cut(Selector::kThroughput, after_a);
  cut(Selector::kThroughput, after_b);
  EXPECT_EQ(after_a.num_drafted(), 2);
  EXPECT_EQ(after_b.num_drafted(), 0);
}

class EverySelector : public ::testing::TestWithParam<Selector> {};

TEST_P(EverySelector, CoupledAcceptanceDrawsTheTarget) {
  const Backend backend = make_backend("cpu:reference", DType::kFloat32, 1);
  const std::vector<float> row = {static_cast<float>(std::log(kTargetA)), static_cast<float>(std::log(1 - kTargetA))};
  std::vector<float> logits;
  for (int i = 0; i < 3; ++i) logits.insert(logits.end(), row.begin(), row.end());
  std::mt19937_64 random(12);
  TreeWalks walks;
  int num_a = 0;
  for (int i = 0; i < kDraws; ++i) {
    TokenTree tree = draft(std::bernoulli_distribution(kDraftA)(random) ? kA : kB);
    cut(GetParam(), tree);
    AcceptRequest request{.tree = &tree, .root_position = 5};
    request.rule.temperature = 1;
    request.rule.seed = static_cast<std::uint64_t>(i) * 77 + 3;
    walks.launch(*backend.ops, {logits.data(), DType::kFloat32, tree.num_nodes(), 2, 2}, {&request, 1});
    walks.wait(*backend.ops);
    Acceptance acceptance;
    walks.read(0, acceptance);
    num_a += acceptance.tokens[0].token == kA ? 1 : 0;
  }
  EXPECT_LT(chi_square(num_a), kLimit) << static_cast<double>(num_a) / kDraws << " of A";
}

INSTANTIATE_TEST_SUITE_P(Selectors, EverySelector,
                         ::testing::Values(Selector::kFull, Selector::kNone, Selector::kRoot, Selector::kThroughput,
                                           Selector::kPaper, Selector::kOnlyAfterA, Selector::kOnlyAfterB));

/// The first token that rejection sampling commits: x1 with min(1, p / q), else one of what p has beyond q. Without a
/// drafted row it is drawn from p.
int count_a_by_rejection(Selector selector) {
  std::mt19937_64 random(13);
  std::uniform_real_distribution<double> uniform(0, 1);
  int num_a = 0;
  for (int i = 0; i < kDraws; ++i) {
    const TokenId first = uniform(random) < kDraftA ? kA : kB;
    TokenTree tree = draft(first);
    cut(selector, tree);
    TokenId committed = uniform(random) < kTargetA ? kA : kB;
    if (tree.num_drafted() > 0) {
      const double ratio = first == kA ? kTargetA / kDraftA : (1 - kTargetA) / (1 - kDraftA);
      committed = uniform(random) < ratio ? first : kA;  // p - q is positive at A alone
    }
    num_a += committed == kA ? 1 : 0;
  }
  return num_a;
}

TEST(SelectorExactness, RejectionSamplingWithThisSelectorIsFound) {
  EXPECT_LT(chi_square(count_a_by_rejection(Selector::kFull)), kLimit) << "by itself it is exact";
  const int num_a = count_a_by_rejection(Selector::kThroughput);
  EXPECT_GT(chi_square(num_a), kLimit);
  EXPECT_NEAR(static_cast<double>(num_a) / kDraws, 0.85, 0.02);
}

}  // namespace
}  // namespace fastspec::test
