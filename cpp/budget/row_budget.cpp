// Global ranking of drafted rows, and the choice of how many.
#include "budget/row_budget.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/check.h"
#include "step/row_tiers.h"

namespace fastspec {

void survival(const TokenTree& tree, std::span<const float> chances, std::vector<float>& result) {
  FS_CHECK(chances.size() == tree.tokens.size(), chances.size(), " chances of ", tree.num_nodes(), " nodes");
  result.assign(tree.tokens.size(), 1.0f);
  for (int node = 1; node < tree.num_nodes(); ++node) {
    const float factor = std::isnan(chances[node]) ? 1.0f : std::clamp(chances[node], 0.0f, 1.0f);
    result[node] = result[tree.parents[node]] * factor;
  }
}

std::vector<float> survival(const TokenTree& tree) {
  std::vector<float> result;
  survival(tree, tree.confidence, result);
  return result;
}

template <typename Key>
void RowRanking::order_by(int num_keys, const Key& key) {
  begins_.assign(static_cast<std::size_t>(num_keys) + 1, 0);
  for (const RankedNode& node : nodes_) ++begins_[key(node) + 1];
  for (int i = 1; i < num_keys; ++i) begins_[i] += begins_[i - 1];
  ordered_.resize(nodes_.size());
  for (const RankedNode& node : nodes_) ordered_[begins_[key(node)]++] = node;
  nodes_.swap(ordered_);
}

std::span<const RankedNode> RowRanking::rank(std::span<const TokenTree> trees,
                                             std::span<const std::vector<float>> survivals) {
  FS_CHECK(trees.size() == survivals.size(), trees.size(), " trees, ", survivals.size(), " survivals");
  nodes_.clear();
  int deepest = 0;
  for (int t = 0; t < static_cast<int>(trees.size()); ++t) {
    const TokenTree& tree = trees[t];
    depths_.assign(1, 0);
    for (int node = 1; node < tree.num_nodes(); ++node) {
      depths_.push_back(depths_[tree.parents[node]] + 1);
      deepest = std::max(deepest, depths_.back());
      nodes_.push_back({survivals[t][node], depths_.back(), t, node});
    }
  }
  // From the least significant part of the order to the most. Floats of 0 to 1 are ordered as their 30 bits are.
  order_by(deepest + 1, [](const RankedNode& node) { return node.depth; });
  constexpr int kBits = 10, kValues = 1 << kBits;
  for (int shift = 0; shift < 3 * kBits; shift += kBits) {
    order_by(kValues, [shift](const RankedNode& node) {
      return kValues - 1 - static_cast<int>(std::bit_cast<std::uint32_t>(node.survival) >> shift & (kValues - 1));
    });
  }
  return nodes_;
}

void keep_ranked(std::span<TokenTree> trees, std::span<const RankedNode> ranking, int count) {
  if (count >= static_cast<int>(ranking.size())) return;
  std::vector<std::vector<bool>> keep;
  for (const TokenTree& tree : trees) {
    keep.emplace_back(tree.tokens.size(), false);
    keep.back()[0] = true;
  }
  for (int rank = 0; rank < count; ++rank) keep[ranking[rank].tree][ranking[rank].node] = true;
  for (std::size_t t = 0; t < trees.size(); ++t) trees[t].prune(keep[t]);
}

int keep_best_rows(std::span<TokenTree> trees, int max_drafted) {
  int num_drafted = 0;
  for (const TokenTree& tree : trees) num_drafted += tree.num_drafted();
  if (num_drafted <= max_drafted) return num_drafted;
  std::vector<std::vector<float>> survivals;
  for (const TokenTree& tree : trees) survivals.push_back(survival(tree));
  const int count = std::max(max_drafted, 0);
  RowRanking ranking;
  keep_ranked(trees, ranking.rank(trees, survivals), count);
  return count;
}

int rows_of_share(double ratio, int num_roots, int num_drafted) {
  constexpr double kRounding = 1e-9;  // a third of three rows is one
  const int kept = static_cast<int>(std::ceil(ratio * (num_roots + num_drafted) - kRounding)) - num_roots;
  return std::clamp(kept, 0, num_drafted);
}

std::vector<RowChoice> price_shares(const RowOffer& offer, std::span<const RankedNode> ranking,
                                    std::span<const double> ratios, const CostModel& cost) {
  StepLoad load{.num_drafting = offer.num_drafting, .draft_keys = offer.draft_keys};
  for (const RowOffer::Rows& rows : offer.sequences) cost.add_sequence(rows.known, rows.keys, load);
  const int num_known = load.num_rows;
  const int num_drafted = static_cast<int>(ranking.size());
  std::vector<int> drafted(offer.sequences.size(), 0);
  double tokens = offer.num_decoding;
  std::vector<RowChoice> shares;
  int taken = 0;
  for (const double ratio : ratios) {
    int kept = std::min(rows_of_share(ratio, offer.num_decoding, num_drafted), offer.max_drafted);
    const int tier = offer.max_padded == 0 ? 0 : row_tier(num_known + kept, offer.max_padded);
    if (tier > 0) kept = std::min({tier - num_known, num_drafted, offer.max_drafted});
    for (; taken < kept; ++taken) {
      const int tree = ranking[taken].tree;
      const RowOffer::Rows& rows = offer.sequences[tree];
      const int before = cost.tiles(rows.known + drafted[tree]++);
      load.tile_keys += double(cost.tiles(rows.known + drafted[tree]) - before) * rows.keys;
      tokens += static_cast<double>(ranking[taken].survival);
    }
    load.num_rows = std::max(tier, num_known + kept);
    shares.push_back({ratio, kept, tokens, cost.step_milliseconds(load), load});
  }
  return shares;
}

const RowChoice& best_share(std::span<const RowChoice> shares, int num_roots, BudgetObjective objective,
                            double min_saving) {
  FS_CHECK(!shares.empty(), "no share of the rows to choose from");
  const auto value = [&](const RowChoice& share) {
    const bool is_paper = objective == BudgetObjective::kPaper;
    if (is_paper && share.kept == 0) return 0.0;
    const double tokens = share.tokens - (is_paper ? num_roots : 0);
    return tokens / std::max(share.milliseconds, 1e-9);
  };
  const RowChoice* best = &shares.back();
  double wanted = value(*best) * (1 + min_saving);
  for (const RowChoice& share : shares.first(shares.size() - 1)) {
    if (value(share) <= wanted) continue;
    best = &share;
    wanted = value(share);
  }
  return *best;
}

}  // namespace fastspec
