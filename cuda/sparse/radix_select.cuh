// The k-th largest of numbers that a team of blocks holds, digit by digit. A number is a score and, below it, the
// position from the end, so that no two are equal and of equal scores the lower position comes first.
#pragma once

#include <cstdint>

#include "common/warp.cuh"
#include "sparse/team.cuh"

namespace fastspec::cuda {

using RankKey = std::uint64_t;  // 0 = not among the candidates

constexpr int kSelectThreads = 512;
constexpr int kSelectWarps = kSelectThreads / kWarpSize;
constexpr int kDigitBits = 8;  // so that the first digit is a score's exponent
constexpr int kBins = 1 << kDigitBits;
constexpr int kPositionBits = 24;
constexpr int kRankKeyBits = 31 + kPositionBits;  // scores have no sign
constexpr RankKey kLastPosition = (RankKey{1} << kPositionBits) - 1;
constexpr int kMostCandidates = 256;  // that are compared with one another instead of counted by digits
static_assert(kBins <= kSelectThreads && kMostCandidates <= kSelectThreads && kMostTeamBlocks <= kSelectWarps);

__device__ __forceinline__ float counted_score(float score) {
  return score > 0 ? score : 0.0f;
}

/// Greater than 0 for every position below kLastPosition.
__device__ __forceinline__ RankKey rank_key(float score, std::int32_t position) {
  return RankKey{__float_as_uint(counted_score(score))} << kPositionBits |
         (kLastPosition - static_cast<RankKey>(position));
}

struct SelectShared {
  unsigned histograms[2][kBins];
  unsigned warp_sums[kBins / kWarpSize];
  unsigned bin, above, inside;          // of the digit that was found: what lies above its bin, and in it
  unsigned all;                         // numbers that were looked at
  RankKey candidates[kMostCandidates];  // the block's, in the bin that a search has come down to
  unsigned num_candidates;
  RankKey gathered[kMostCandidates];  // the team's
  RankKey threshold;
  unsigned warp_counts[kSelectWarps];
  float warp_masses[kSelectWarps][4];
  unsigned count;   // chosen positions of the block
  float masses[4];  // of the block: inside and all of history, inside and all of lookahead
};

/// Finds the bin that holds the `wanted`-th largest, from the team's histograms. All threads of all blocks call it and
/// find the same.
__device__ __forceinline__ void find_bin(SelectShared& shared, const unsigned* histogram, unsigned wanted) {
  Team::sync();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  unsigned own = 0, sum = 0;
  if (thread < kBins) {
    const int bin = kBins - 1 - thread;
    // Unrolled, so that the blocks are asked all at once.
#pragma unroll
    for (int rank = 0; rank < kMostTeamBlocks; ++rank) {
      if (rank < Team::size()) own += Team::of_block(histogram, rank)[bin];
    }
    sum = own;
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const unsigned before = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(distance));
      if (lane >= distance) sum += before;
    }
    if (lane == kWarpSize - 1) shared.warp_sums[thread / kWarpSize] = sum;
  }
  __syncthreads();
  if (thread < kBins) {
    for (int warp = 0; warp < thread / kWarpSize; ++warp) sum += shared.warp_sums[warp];
    if (thread == kBins - 1) shared.all = sum;
    if (sum - own < wanted && wanted <= sum) {
      shared.bin = static_cast<unsigned>(kBins - 1 - thread);
      shared.above = sum - own;
      shared.inside = own;
    }
  }
  __syncthreads();
}

/// The `wanted`-th largest of those of the team's numbers that equal `prefix` above their lowest `low_bits` bits; there
/// are `shared.inside` of them, at most kMostCandidates. Every block brings them together and compares them.
template <typename ForPositions, typename KeyOf>
__device__ __forceinline__ RankKey find_candidate(SelectShared& shared, unsigned wanted, RankKey prefix, int low_bits,
                                                  const ForPositions& for_positions, const KeyOf& key_of) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize, warp = thread / kWarpSize;
  // Others have long read those of the search before: the team has met since, over the digits of this one.
  if (thread == 0) shared.num_candidates = 0;
  __syncthreads();
  for_positions([&](std::int32_t position) {
    const RankKey key = key_of(position);
    if (key == 0 || (key ^ prefix) >> low_bits != 0) return;
    shared.candidates[atomicAdd(&shared.num_candidates, 1u)] = key;
  });
  Team::sync();
  if (warp < Team::size()) {
    const unsigned of_lane = lane < Team::size() ? *Team::of_block(&shared.num_candidates, lane) : 0u;
    const unsigned before = __reduce_add_sync(kAllLanes, lane < warp ? of_lane : 0u);
    const unsigned own = __shfl_sync(kAllLanes, of_lane, warp);
    const RankKey* source = Team::of_block(shared.candidates, warp);
    for (unsigned i = static_cast<unsigned>(lane); i < own; i += kWarpSize) shared.gathered[before + i] = source[i];
  }
  __syncthreads();
  const auto total = static_cast<int>(shared.inside);
  if (thread < total) {
    const RankKey key = shared.gathered[thread];
    unsigned greater = 0;
    for (int i = 0; i < total; ++i) greater += shared.gathered[i] > key ? 1u : 0u;
    if (greater + 1 == wanted) shared.threshold = key;
  }
  __syncthreads();
  return shared.threshold;
}

/// Threshold such that min(count, all candidates) of the numbers are at least it; `count` becomes that many.
/// @param for_positions (visit): calls visit(position) for the thread's share of positions.
/// @param key_of (position): the number, 0 = no candidate.
template <typename ForPositions, typename KeyOf>
__device__ __forceinline__ RankKey find_threshold(SelectShared& shared, int& parity, int& count,
                                                  const ForPositions& for_positions, const KeyOf& key_of) {
  if (count == 0) return ~RankKey{0};
  unsigned wanted = static_cast<unsigned>(count);
  RankKey prefix = 0;
  for (int high = kRankKeyBits; high > 0; high -= kDigitBits) {
    const int shift = max(high - kDigitBits, 0);
    // Others may still read the last round's histogram: rounds take turns at two.
    unsigned* histogram = shared.histograms[parity];
    parity ^= 1;
    if (threadIdx.x < kBins) histogram[threadIdx.x] = 0;
    __syncthreads();
    for_positions([&](std::int32_t position) {
      const RankKey key = key_of(position);
      if (key == 0 || (key ^ prefix) >> high != 0) return;
      atomicAdd(&histogram[key >> shift & (kBins - 1)], 1u);
    });
    find_bin(shared, histogram, wanted);
    if (high == kRankKeyBits && shared.all <= wanted) {
      count = static_cast<int>(shared.all);
      return 1;
    }
    prefix |= RankKey{shared.bin} << shift;
    wanted -= shared.above;
    if (shared.inside == wanted) break;  // the whole bin
    if (shared.inside <= kMostCandidates) {
      return find_candidate(shared, wanted, prefix, shift, for_positions, key_of);
    }
  }
  return prefix;
}

}  // namespace fastspec::cuda
