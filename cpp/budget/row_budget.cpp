// Global ranking of drafted rows.
#include "budget/row_budget.h"

#include <algorithm>
#include <cmath>

namespace fastspec {

std::vector<float> survival(const TokenTree& tree) {
  std::vector<float> result(tree.tokens.size(), 1.0f);
  for (int node = 1; node < tree.num_nodes(); ++node) {
    const float confidence = tree.confidence[node];
    const float factor = std::isnan(confidence) ? 1.0f : std::clamp(confidence, 0.0f, 1.0f);
    result[node] = result[tree.parents[node]] * factor;
  }
  return result;
}

int keep_best_rows(std::span<TokenTree> trees, int max_drafted) {
  struct Candidate {
    float score;
    int depth;
    int tree;
    int node;
  };
  std::vector<Candidate> candidates;
  for (int t = 0; t < static_cast<int>(trees.size()); ++t) {
    const std::vector<float> scores = survival(trees[t]);
    const std::vector<int> depths = trees[t].depths();
    for (int node = 1; node < trees[t].num_nodes(); ++node) candidates.push_back({scores[node], depths[node], t, node});
  }
  const int num_candidates = static_cast<int>(candidates.size());
  if (num_candidates <= max_drafted) return num_candidates;

  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.score != b.score) return a.score > b.score;
    if (a.depth != b.depth) return a.depth < b.depth;
    return a.tree != b.tree ? a.tree < b.tree : a.node < b.node;
  });
  std::vector<std::vector<bool>> keep;
  for (const TokenTree& tree : trees) {
    keep.emplace_back(tree.tokens.size(), false);
    keep.back()[0] = true;
  }
  for (int rank = 0; rank < max_drafted; ++rank) keep[candidates[rank].tree][candidates[rank].node] = true;
  for (std::size_t t = 0; t < trees.size(); ++t) trees[t].prune(keep[t]);
  return std::max(max_drafted, 0);
}

}  // namespace fastspec
