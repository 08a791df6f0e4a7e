// Scores of one chunk in shared memory and the best of them, in rounds: each takes the block's greatest key below the
// last one. A score of NaN is no candidate. A thread owns quads 4 * thread, 4 * thread + 1024, ... of the chunk.
#pragma once

#include "sampling/keys.cuh"
#include "sampling/row_access.cuh"

namespace fastspec::cuda {

constexpr float kNoScore = NAN;

__device__ __forceinline__ float4& score_quad(float* scores, int first) {
  return *reinterpret_cast<float4*>(scores + first);
}

/// Greatest key below `limit` among this thread's scores; ids are places in the chunk.
__device__ __forceinline__ SortKey greatest_below(float* scores, int chunk_size, SortKey limit) {
  SortKey best = 0;
  for (int first = 4 * static_cast<int>(threadIdx.x); first < chunk_size; first += 4 * kSamplingThreads) {
    const float4 quad = score_quad(scores, first);
    const float values[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const SortKey key = sort_key(values[i], static_cast<std::uint32_t>(first + i));
      if (values[i] == values[i] && key < limit) best = greater(best, key);
    }
  }
  return best;
}

/// Calls visit(rank, key) in every thread for the `count` best of the block, greatest first. Returns the last of them,
/// 0 where there are fewer.
template <typename Visit>
__device__ SortKey for_each_best(float* scores, int chunk_size, int count, Visit&& visit) {
  constexpr int kWarps = kSamplingThreads / kWarpSize;
  __shared__ SortKey warp_best[2][kWarps];  // two, so that a round needs one barrier
  __syncthreads();                          // the scores are written, the last call's keys read
  SortKey own = greatest_below(scores, chunk_size, ~SortKey{0});
  SortKey best = 0;
  for (int rank = 0; rank < count; ++rank) {
    const SortKey of_warp = warp_greatest(own);
    if (threadIdx.x % kWarpSize == 0) warp_best[rank % 2][threadIdx.x / kWarpSize] = of_warp;
    __syncthreads();
    best = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) best = greater(best, warp_best[rank % 2][warp]);
    if (best == 0) return 0;
    visit(rank, best);
    if (own == best) own = greatest_below(scores, chunk_size, best);
  }
  return best;
}

/// The block's list of the best, with the chunk's first token added to the ids; 0 after the last.
__device__ __forceinline__ void write_list(float* scores, int chunk_size, int first_token, int length, SortKey* list) {
  for (int i = static_cast<int>(threadIdx.x); i < length; i += kSamplingThreads) list[i] = 0;
  for_each_best(scores, chunk_size, length, [&](int rank, SortKey key) {
    if (threadIdx.x == 0) list[rank] = key - static_cast<SortKey>(first_token);
  });
}

/// Fills the chunk's scores: score(token, quad of logits) gives a quad of scores.
template <typename Score>
__device__ __forceinline__ void fill_scores(const Row& row, int begin, int end, int chunk_size, float* scores,
                                            Score&& score) {
  for_each_quad(row, begin, end, [&](int token, const float4& logits) {
    float4 quad = score(token, logits);
    // The last quad of a row may reach beyond it.
    if (token + 1 >= row.size) quad.y = kNoScore;
    if (token + 2 >= row.size) quad.z = kNoScore;
    if (token + 3 >= row.size) quad.w = kNoScore;
    score_quad(scores, token - begin) = quad;
  });
  for (int first = 4 * static_cast<int>(threadIdx.x); first < chunk_size; first += 4 * kSamplingThreads) {
    if (begin + first >= end) score_quad(scores, first) = {kNoScore, kNoScore, kNoScore, kNoScore};
  }
}

/// Keys of `num_chunks` descending lists, merged by one warp: visit(rank, key) in every lane, greatest first, at most
/// `count`. Returns how many there were.
template <typename Visit>
__device__ int merge_lists(const SortKey* lists, int num_chunks, int length, int count, Visit&& visit) {
  constexpr int kListsPerLane = kMaxChunks / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  int heads[kListsPerLane] = {};
  const auto head_key = [&](int i) -> SortKey {
    const int chunk = lane + i * kWarpSize;
    return chunk < num_chunks && heads[i] < length ? lists[std::int64_t{chunk} * length + heads[i]] : 0;
  };
  SortKey keys[kListsPerLane];
#pragma unroll
  for (int i = 0; i < kListsPerLane; ++i) keys[i] = head_key(i);
  for (int rank = 0; rank < count; ++rank) {
    SortKey own = 0;
#pragma unroll
    for (int i = 0; i < kListsPerLane; ++i) own = greater(own, keys[i]);
    const SortKey best = warp_greatest(own);
    if (best == 0) return rank;
    visit(rank, best);
#pragma unroll
    for (int i = 0; i < kListsPerLane; ++i) {
      if (keys[i] != best) continue;
      ++heads[i];
      keys[i] = head_key(i);
    }
  }
  return count;
}

}  // namespace fastspec::cuda
