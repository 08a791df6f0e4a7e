// The next level of draft trees: one block a tree. Its first warp merges the parents' proposals, which are ordered, as
// one merges sorted lists; then every warp writes children.
#include "common/warp.cuh"
#include "sampling/sampling.h"

namespace fastspec::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kParentsPerLane = kMaxBeamWidth / kWarpSize;
constexpr double kNoChild = -INFINITY;

/// The children chosen, best first.
struct Chosen {
  double score[kMaxBeamWidth];
  int parent[kMaxBeamWidth];
  int rank[kMaxBeamWidth];  // among the parent's proposals; -1 = there is no child
};

__device__ double child_score(const GrowBeamParams& params, int tree, int parent, int rank) {
  if (parent >= params.num_parents || rank >= params.top_k) return kNoChild;
  const std::int64_t row = std::int64_t{tree} * params.num_parents + parent;
  const double above = params.scores == nullptr ? 0.0 : params.scores[row];
  const std::int64_t at = row * params.top_k + rank;
  const float confidence = params.confidences[at];
  if (above == kNoChild || params.proposals[at] == kNoToken || !(confidence > 0)) return kNoChild;
  return __dadd_rn(above, log(static_cast<double>(fminf(confidence, 1.0f))));
}

/// Lane l has parents l, l + 32, ..., the best proposal left of each of them and its score.
__device__ void choose_children(const GrowBeamParams& params, int tree, Chosen& chosen) {
  const int lane = static_cast<int>(threadIdx.x);
  int ranks[kParentsPerLane] = {};
  double scores[kParentsPerLane];
#pragma unroll
  for (int i = 0; i < kParentsPerLane; ++i) scores[i] = child_score(params, tree, lane + i * kWarpSize, 0);
  for (int place = 0; place < params.width; ++place) {
    double best = kNoChild;
    int parent = kMaxBeamWidth;
    int rank = -1;
#pragma unroll
    for (int i = 0; i < kParentsPerLane; ++i) {
      if (scores[i] <= best) continue;
      best = scores[i];
      parent = lane + i * kWarpSize;
      rank = ranks[i];
    }
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      const double other = __shfl_xor_sync(kAllLanes, best, distance);
      const int other_parent = __shfl_xor_sync(kAllLanes, parent, distance);
      const int other_rank = __shfl_xor_sync(kAllLanes, rank, distance);
      if (other > best || (other == best && other_parent < parent)) {
        best = other;
        parent = other_parent;
        rank = other_rank;
      }
    }
    if (lane == 0) {
      chosen.score[place] = best;
      chosen.parent[place] = rank < 0 ? 0 : parent;
      chosen.rank[place] = rank;
    }
    if (rank < 0) continue;  // in every lane
#pragma unroll
    for (int i = 0; i < kParentsPerLane; ++i) {
      if (lane + i * kWarpSize != parent) continue;
      ++ranks[i];
      scores[i] = child_score(params, tree, parent, ranks[i]);
    }
  }
}

/// One warp writes one child.
__device__ void write_child(const GrowBeamParams& params, int tree, int place, const Chosen& chosen) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int rank = chosen.rank[place];
  const std::int64_t parent = std::int64_t{tree} * params.num_parents + chosen.parent[place];
  const std::int64_t at = std::int64_t{tree} * params.width + place;
  const TokenId column = rank < 0 ? 0 : params.proposals[parent * params.top_k + rank];
  if (lane == 0) {
    const TokenId token = rank < 0 || params.token_ids == nullptr ? column : params.token_ids[column];
    const float confidence = rank < 0 ? 0.0f : fminf(params.confidences[parent * params.top_k + rank], 1.0f);
    params.nodes[at] = {token, chosen.parent[place], confidence};
    if (params.child_tokens != nullptr) {
      params.child_tokens[at] = token;
      params.child_scores[at] = chosen.score[place];
    }
  }
  if (params.child_tokens == nullptr) return;
  const int depth = params.depth;
  for (int i = lane; i <= depth; i += kWarpSize) {
    params.child_paths[at * (depth + 1) + i] = i < depth ? params.paths[parent * depth + i] : column;
  }
  for (int i = lane; i < depth; i += kWarpSize) {
    params.child_ancestors[at * depth + i] =
        i < depth - 1 ? params.ancestors[parent * (depth - 1) + i] : params.slots[parent];
  }
}

__global__ void __launch_bounds__(kThreads) grow_beam_kernel(GrowBeamParams params) {
  __shared__ Chosen chosen;
  const int tree = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  if (warp == 0) choose_children(params, tree, chosen);
  __syncthreads();
  for (int place = warp; place < params.width; place += kWarps) write_child(params, tree, place, chosen);
}

}  // namespace

void launch_grow_beam(const GrowBeamParams& params, cudaStream_t stream) {
  if (params.num_trees == 0) return;
  grow_beam_kernel<<<params.num_trees, kThreads, 0, stream>>>(params);
}

}  // namespace fastspec::cuda
