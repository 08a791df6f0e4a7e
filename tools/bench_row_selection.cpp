// Host time of the row budget's cut: chances, survival, ranking of all drafted rows, the share that pays and the pruned
// trees; and of learning from the step. Prints microseconds a step: medians, and the mean of learning, which refits now
// and then.
//   bench_row_selection [STEPS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "budget/calibration.h"
#include "budget/row_budget.h"

namespace fastspec {
namespace {

using Clock = std::chrono::steady_clock;

TokenTree chain(int length, std::mt19937& random) {
  std::uniform_real_distribution<float> confidence(0.05f, 1.0f);
  TokenTree tree(0);
  for (int node = 1; node <= length; ++node) tree.add(node, node - 1, confidence(random));
  return tree;
}

/// Levels of these widths, parents drawn from the level above.
TokenTree levels(std::span<const int> widths, std::mt19937& random) {
  std::uniform_real_distribution<float> confidence(0.05f, 1.0f);
  TokenTree tree(0);
  int begin = 0, end = 1;
  for (const int width : widths) {
    for (int i = 0; i < width; ++i) {
      tree.add(tree.num_nodes(), begin + static_cast<int>(random() % static_cast<unsigned>(end - begin)),
               confidence(random));
    }
    begin = end;
    end = tree.num_nodes();
  }
  return tree;
}

/// Some path of a tree.
std::vector<int> walk(const TokenTree& tree, std::mt19937& random) {
  std::vector<int> path;
  for (int node = 1; node < tree.num_nodes(); ++node) {
    if (tree.parents[node] == (path.empty() ? 0 : path.back()) && random() % 3 > 0) path.push_back(node);
  }
  return path;
}

void measure(const char* name, const std::vector<TokenTree>& drafted, int steps, std::mt19937& random) {
  Calibration calibration;
  for (int round = 0; round < 20; ++round) {  // it has seen something at every depth
    for (const TokenTree& tree : drafted) calibration.observe(tree, walk(tree, random), false);
  }
  const CostModel cost({.linear = {{1, 128, 4096}, {4.5, 4.6, 40}}, .per_key = 1e-6, .draft = {{1, 64}, {1, 2}}});
  const double ratios[] = {0.25, 0.5, 0.75, 1.0};
  RowOffer offer{.num_decoding = static_cast<int>(drafted.size()), .max_drafted = 1 << 20, .max_padded = 4096};
  for (std::size_t i = 0; i < drafted.size(); ++i) offer.sequences.push_back({1, 1024});
  std::vector<double> chance_us, rank_us, price_us, prune_us, all_us;
  std::vector<std::vector<float>> survivals(drafted.size());
  std::vector<float> chances;
  RowRanking ranker;
  int kept = 0;
  double learning_us = 0;
  for (int step = 0; step < steps; ++step) {
    std::vector<TokenTree> trees = drafted;
    const Clock::time_point start = Clock::now();
    for (std::size_t i = 0; i < trees.size(); ++i) {
      calibration.chances(trees[i], false, chances);
      survival(trees[i], chances, survivals[i]);
    }
    const Clock::time_point scored = Clock::now();
    const std::span<const RankedNode> ranking = ranker.rank(trees, survivals);
    const Clock::time_point ranked = Clock::now();
    const std::vector<RowChoice> shares = price_shares(offer, ranking, ratios, cost);
    const RowChoice& best = best_share(shares, offer.num_decoding, BudgetObjective::kThroughput, 0.03);
    const Clock::time_point priced = Clock::now();
    keep_ranked(trees, ranking, best.kept);
    const Clock::time_point end = Clock::now();
    kept = best.kept;
    const auto us = [](auto duration) { return 1e6 * std::chrono::duration<double>(duration).count(); };
    chance_us.push_back(us(scored - start));
    rank_us.push_back(us(ranked - scored));
    price_us.push_back(us(priced - ranked));
    prune_us.push_back(us(end - priced));
    all_us.push_back(us(end - start));
    std::vector<std::vector<int>> paths;
    for (const TokenTree& tree : trees) paths.push_back(walk(tree, random));
    const Clock::time_point learning = Clock::now();
    for (std::size_t i = 0; i < std::min<std::size_t>(trees.size(), 8); ++i) {  // as many as a step learns from
      calibration.observe(trees[i], paths[i], false);
    }
    learning_us += us(Clock::now() - learning) / steps;
  }
  const auto median = [](std::vector<double>& values) {
    std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
    return values[values.size() / 2];
  };
  int nodes = 0;
  for (const TokenTree& tree : drafted) nodes += tree.num_drafted();
  std::printf(
      "%-22s %5d rows, %5d kept: %7.1f us = chances %.1f, ranking %.1f, prices %.1f, pruning %.1f; "
      "learning %.1f\n",
      name, nodes, kept, median(all_us), median(chance_us), median(rank_us), median(price_us), median(prune_us),
      learning_us);
}

}  // namespace
}  // namespace fastspec

int main(int count, char** arguments) {
  using namespace fastspec;
  const int steps = count > 1 ? std::atoi(arguments[1]) : 2000;
  std::mt19937 random(1);
  for (const int batch : {8, 64}) {
    std::vector<TokenTree> chains, trees;
    const int widths[] = {4, 16, 16, 16, 16};
    for (int i = 0; i < batch; ++i) chains.push_back(chain(16, random));
    for (int i = 0; i < batch; ++i) trees.push_back(levels(widths, random));
    const std::string many = std::to_string(batch);
    measure((many + " chains of 16").c_str(), chains, steps, random);
    measure((many + " trees of 68").c_str(), trees, steps, random);
  }
  return 0;
}
