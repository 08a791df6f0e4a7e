// Random levels of draft trees, and their next levels by definition: child after child the best that is left.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "backend/params.h"

namespace fastspec::testing {

struct BeamSizes {
  int num_trees = 1, num_parents = 1, width = 1, top_k = 1, depth = 0;
  bool prunes = false;  // columns stand for other tokens
  bool is_last = false;
  int levels_of_confidence = 0;  // few different ones make ties; 0 = any
};

constexpr TokenId kPoison = -77;
constexpr int kNumColumns = 300;

/// What grow_beam() reads.
struct BeamInputs {
  std::vector<TokenId> proposals, paths, token_ids;
  std::vector<float> confidences;
  std::vector<double> scores;
  std::vector<Slot> slots, ancestors;

  BeamInputs(const BeamSizes& sizes, std::mt19937_64& random) {
    const int parents = sizes.num_trees * sizes.num_parents;
    const auto pick = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
    for (int column = 0; sizes.prunes && column < kNumColumns; ++column) token_ids.push_back(3 * column + 1);
    for (int parent = 0; parent < parents; ++parent) {
      const int num_proposals = pick(3) > 0 ? sizes.top_k : pick(sizes.top_k + 1);
      std::vector<float> own;
      for (int rank = 0; rank < num_proposals; ++rank) own.push_back(confidence(sizes, random));
      std::sort(own.rbegin(), own.rend());
      own.resize(static_cast<std::size_t>(sizes.top_k), 0.0f);
      for (int rank = 0; rank < sizes.top_k; ++rank) {
        proposals.push_back(rank < num_proposals ? pick(kNumColumns) : kNoToken);
        confidences.push_back(own[static_cast<std::size_t>(rank)]);
      }
      const bool exists = sizes.depth == 0 || pick(5) > 0;
      scores.push_back(!exists ? -std::numeric_limits<double>::infinity()
                               : sizes.depth * std::log(static_cast<double>(confidence(sizes, random)) + 1e-3));
      slots.push_back(1000 + parent);
      for (int i = 0; i < sizes.depth - 1; ++i) ancestors.push_back(pick(1 << 20));
      for (int i = 0; i < sizes.depth; ++i) paths.push_back(pick(kNumColumns));
    }
  }

  static float confidence(const BeamSizes& sizes, std::mt19937_64& random) {
    if (random() % 20 == 0) return 1.0000001f;  // what rounding may make of 1
    if (sizes.levels_of_confidence == 0) return static_cast<float>(random() >> 40) * 0x1p-24f;
    return static_cast<float>(random() % static_cast<unsigned>(sizes.levels_of_confidence)) /
           static_cast<float>(sizes.levels_of_confidence);
  }

  /// @param roots are those of level 0, whose score is 0 without an array.
  GrowBeamParams params(const BeamSizes& sizes) const {
    return {.num_trees = sizes.num_trees,
            .num_parents = sizes.num_parents,
            .width = sizes.width,
            .top_k = sizes.top_k,
            .depth = sizes.depth,
            .proposals = proposals.data(),
            .confidences = confidences.data(),
            .scores = sizes.depth == 0 ? nullptr : scores.data(),
            .slots = slots.data(),
            .ancestors = ancestors.data(),
            .paths = paths.data(),
            .token_ids = sizes.prunes ? token_ids.data() : nullptr};
  }
};

/// What grow_beam() writes, poisoned before; each array with a guard behind it.
struct BeamOutputs {
  std::vector<TokenId> tokens, paths;
  std::vector<double> scores;
  std::vector<Slot> ancestors;
  std::vector<BeamNode> nodes;

  explicit BeamOutputs(const BeamSizes& sizes) {
    const auto children = static_cast<std::size_t>(sizes.num_trees) * static_cast<std::size_t>(sizes.width);
    const auto depth = static_cast<std::size_t>(sizes.depth);
    constexpr std::size_t kGuard = 3;
    tokens.assign(children + kGuard, kPoison);
    paths.assign(children * (depth + 1) + kGuard, kPoison);
    scores.assign(children + kGuard, kPoison);
    ancestors.assign(children * depth + kGuard, kPoison);
    nodes.assign(children + kGuard, {kPoison, kPoison, kPoison});
  }

  void add_to(const BeamSizes& sizes, GrowBeamParams& params) {
    params.nodes = nodes.data();
    if (sizes.is_last) return;
    params.child_tokens = tokens.data();
    params.child_scores = scores.data();
    params.child_ancestors = ancestors.data();
    params.child_paths = paths.data();
  }
};

/// By definition, one child after another, from what the params point to.
inline BeamOutputs grow_by_definition(const BeamSizes& sizes, const BeamInputs& in) {
  BeamOutputs out(sizes);
  for (int tree = 0; tree < sizes.num_trees; ++tree) {
    std::vector<bool> taken(static_cast<std::size_t>(sizes.num_parents) * static_cast<std::size_t>(sizes.top_k), false);
    for (int place = 0; place < sizes.width; ++place) {
      double best = -std::numeric_limits<double>::infinity();
      int chosen = -1;
      for (int i = 0; i < static_cast<int>(taken.size()); ++i) {
        const std::size_t row = static_cast<std::size_t>(tree * sizes.num_parents + i / sizes.top_k);
        const std::size_t at = row * static_cast<std::size_t>(sizes.top_k) + static_cast<std::size_t>(i % sizes.top_k);
        if (taken[static_cast<std::size_t>(i)] || in.proposals[at] == kNoToken || in.confidences[at] <= 0) continue;
        const double score =
            (sizes.depth == 0 ? 0.0 : in.scores[row]) + std::log(std::min<double>(in.confidences[at], 1));
        if (score > best) {
          best = score;
          chosen = i;
        }
      }
      if (chosen >= 0) taken[static_cast<std::size_t>(chosen)] = true;
      const int parent = std::max(chosen, 0) / sizes.top_k;
      const auto row = static_cast<std::size_t>(tree * sizes.num_parents + parent);
      const auto proposal =
          row * static_cast<std::size_t>(sizes.top_k) + static_cast<std::size_t>(std::max(chosen, 0) % sizes.top_k);
      const TokenId column = chosen < 0 ? 0 : in.proposals[proposal];
      const TokenId token = chosen >= 0 && sizes.prunes ? in.token_ids[static_cast<std::size_t>(column)] : column;
      const auto at = static_cast<std::size_t>(tree * sizes.width + place);
      const auto depth = static_cast<std::size_t>(sizes.depth);
      out.nodes[at] = {token, parent, chosen < 0 ? 0.0f : std::min(in.confidences[proposal], 1.0f)};
      if (sizes.is_last) continue;
      out.tokens[at] = token;
      out.scores[at] = best;
      for (std::size_t i = 0; i < depth; ++i) out.paths[at * (depth + 1) + i] = in.paths[row * depth + i];
      out.paths[at * (depth + 1) + depth] = column;
      for (std::size_t i = 0; i + 1 < depth; ++i) out.ancestors[at * depth + i] = in.ancestors[row * (depth - 1) + i];
      if (depth > 0) out.ancestors[at * depth + depth - 1] = in.slots[row];
    }
  }
  return out;
}

inline BeamSizes random_beam_sizes(int round, std::mt19937_64& random) {
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  const bool large = round % 20 == 0;
  BeamSizes sizes;
  sizes.depth = pick(0, 5);
  sizes.num_trees = pick(1, 5);
  sizes.num_parents = sizes.depth == 0 ? 1 : pick(1, large ? kMaxBeamWidth : 17);
  sizes.width = pick(1, large ? kMaxBeamWidth : 17);
  sizes.top_k = pick(1, large ? 40 : 17);
  sizes.prunes = pick(0, 1) == 1;
  sizes.is_last = pick(0, 3) == 0;
  sizes.levels_of_confidence = pick(0, 2) == 0 ? 0 : pick(1, 5);
  return sizes;
}

}  // namespace fastspec::testing
