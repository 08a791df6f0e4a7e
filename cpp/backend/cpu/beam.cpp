// See beam.h.
#include "backend/cpu/beam.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"

namespace fastspec::cpu {
namespace {

struct Candidate {
  double score = -std::numeric_limits<double>::infinity();
  float confidence = 0;
  TokenId column = 0;
  int parent = 0;
};

/// The best children of a tree, best first: `width` of them, the last of which may not exist.
void choose_children(const GrowBeamParams& params, int tree, std::vector<Candidate>& chosen) {
  chosen.clear();
  const std::int64_t first_parent = std::int64_t{tree} * params.num_parents;
  for (int parent = 0; parent < params.num_parents; ++parent) {
    const double above = params.scores == nullptr ? 0.0 : params.scores[first_parent + parent];
    if (std::isinf(above)) continue;  // does not exist
    for (int rank = 0; rank < params.top_k; ++rank) {
      const std::int64_t at = (first_parent + parent) * params.top_k + rank;
      if (params.proposals[at] == kNoToken || !(params.confidences[at] > 0)) continue;
      const float confidence = std::min(params.confidences[at], 1.0f);
      chosen.push_back({above + std::log(static_cast<double>(confidence)), confidence, params.proposals[at], parent});
    }
  }
  // Candidates stand in the order of parent and rank, so a stable sort breaks ties by them.
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
  chosen.resize(static_cast<std::size_t>(params.width));
}

void write_child(const GrowBeamParams& params, int tree, int place, const Candidate& child) {
  const std::int64_t parent = std::int64_t{tree} * params.num_parents + child.parent;
  const std::int64_t at = std::int64_t{tree} * params.width + place;
  const bool exists = child.confidence > 0;
  const TokenId token = exists && params.token_ids != nullptr ? params.token_ids[child.column] : child.column;
  params.nodes[at] = {token, child.parent, child.confidence};
  if (params.child_tokens == nullptr) return;
  params.child_tokens[at] = token;
  params.child_scores[at] = child.score;
  TokenId* path = params.child_paths + at * (params.depth + 1);
  std::copy_n(params.paths + parent * params.depth, params.depth, path);
  path[params.depth] = child.column;
  if (params.depth == 0) return;
  Slot* ancestors = params.child_ancestors + at * params.depth;
  std::copy_n(params.ancestors + parent * (params.depth - 1), params.depth - 1, ancestors);
  ancestors[params.depth - 1] = params.slots[parent];
}

}  // namespace

void grow_beam(const GrowBeamParams& params) {
  FS_CHECK(params.num_parents > 0 && params.num_parents <= kMaxBeamWidth && params.width > 0 &&
               params.width <= kMaxBeamWidth && params.top_k > 0 && params.depth >= 0,
           "grow_beam: ", params.num_parents, " parents, ", params.width, " children, top_k ", params.top_k, ", depth ",
           params.depth);
  std::vector<Candidate> chosen;
  for (int tree = 0; tree < params.num_trees; ++tree) {
    choose_children(params, tree, chosen);
    for (int place = 0; place < params.width; ++place) {
      write_child(params, tree, place, chosen[static_cast<std::size_t>(place)]);
    }
  }
}

}  // namespace fastspec::cpu
