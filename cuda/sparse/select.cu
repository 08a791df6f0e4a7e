// Selection of slots: a team of blocks a sequence, one launch. Two searches by radix (lookahead, then history among
// what is left) give two thresholds, which decide about every position; counts of blocks and warps, in order of
// position, say where a slot is written. A round of a search is a meeting of the team, so what costs is their number:
// after two digits few enough are left to be compared with one another.
#include <algorithm>

#include "sparse/radix_select.cuh"
#include "sparse/sparse.h"

namespace fastspec::cuda {
namespace {

constexpr std::int32_t kKeysOfBlock = 2048;  // fewer are not worth another block
constexpr std::int32_t kCopiedKeys = 4096;   // of a block, whose scores it copies into shared memory

/// One sequence's scores, as a block sees them, and what of it is chosen in any case.
struct Selection {
  const float* history;    // from position `first` on
  const float* lookahead;  // likewise; null = none
  std::int32_t first;
  std::int32_t length;
  int sinks, recent;
  RankKey lookahead_threshold = ~RankKey{0};
  RankKey history_threshold = ~RankKey{0};

  __device__ __forceinline__ bool is_protected(std::int32_t position) const {
    return position < sinks || position >= length - recent;
  }
  __device__ __forceinline__ RankKey lookahead_key(std::int32_t position) const {
    if (lookahead == nullptr || is_protected(position)) return 0;
    const float score = lookahead[position - first];
    return score > 0 ? rank_key(score, position) : 0;
  }
  __device__ __forceinline__ bool by_lookahead(std::int32_t position) const {
    // The threshold that nothing reaches spares the read.
    return ~lookahead_threshold != 0 && lookahead_key(position) >= lookahead_threshold;
  }
  __device__ __forceinline__ RankKey history_key(std::int32_t position) const {
    if (is_protected(position) || by_lookahead(position)) return 0;
    return rank_key(history[position - first], position);
  }
  __device__ __forceinline__ bool is_chosen(std::int32_t position) const {
    return is_protected(position) || by_lookahead(position) ||
           rank_key(history[position - first], position) >= history_threshold;
  }
};

/// The positions of a thread's warp: neighbouring ones, 32 at a time.
struct WarpPositions {
  std::int32_t begin, end;
  std::int32_t block_begin, block_end;

  __device__ __forceinline__ explicit WarpPositions(std::int32_t length) {
    const int num_warps = kSelectWarps * Team::size();
    const std::int32_t share = (length + num_warps * kWarpSize - 1) / (num_warps * kWarpSize) * kWarpSize;
    const auto place_of = [&](int warp) { return min(length, (Team::rank() * kSelectWarps + warp) * share); };
    block_begin = place_of(0);
    block_end = place_of(kSelectWarps);
    begin = place_of(static_cast<int>(threadIdx.x) / kWarpSize);
    end = min(length, begin + share);
  }
  template <typename Visit>
  __device__ __forceinline__ void operator()(const Visit& visit) const {
#pragma unroll 4
    for (std::int32_t position = begin + static_cast<int>(threadIdx.x) % kWarpSize; position < end;
         position += kWarpSize) {
      visit(position);
    }
  }
};

/// Scores of the block's positions: a copy where there is room for one, which every round reads sooner. All threads
/// call it; what it wrote can be read after the next barrier.
__device__ __forceinline__ const float* copy_scores(const float* scores, const WarpPositions& positions, float* copy) {
  const std::int32_t count = positions.block_end - positions.block_begin;
  if (count > kCopiedKeys) return scores + positions.block_begin;
#pragma unroll
  for (int i = 0; i < kCopiedKeys / kSelectThreads; ++i) {
    const int key = i * kSelectThreads + static_cast<int>(threadIdx.x);
    if (key < count) copy[key] = scores[positions.block_begin + key];
  }
  return copy;
}

/// How many positions every warp has chosen, and the masses of the block, into shared memory that the team may read.
__device__ __forceinline__ void count_chosen(const Selection& selection, const WarpPositions& positions,
                                             SelectShared& shared) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize, warp = thread / kWarpSize;
  float masses[4] = {};
  float chosen = 0;
  positions([&](std::int32_t position) {
    const float inside = selection.is_chosen(position) ? 1.0f : 0.0f;
    const float history = counted_score(selection.history[position - selection.first]);
    const float lookahead =
        selection.lookahead == nullptr ? 0.0f : counted_score(selection.lookahead[position - selection.first]);
    chosen += inside;
    masses[0] += inside * history;
    masses[1] += history;
    masses[2] += inside * lookahead;
    masses[3] += lookahead;
  });
  chosen = warp_sum(chosen);
#pragma unroll
  for (int i = 0; i < 4; ++i) masses[i] = warp_sum(masses[i]);
  if (lane == 0) {
    shared.warp_counts[warp] = static_cast<unsigned>(chosen);
    for (int i = 0; i < 4; ++i) shared.warp_masses[warp][i] = masses[i];
  }
  __syncthreads();
  if (thread == 0) {
    shared.count = 0;
    for (int i = 0; i < kSelectWarps; ++i) shared.count += shared.warp_counts[i];
  }
  if (thread < 4) {
    shared.masses[thread] = 0;
    for (int i = 0; i < kSelectWarps; ++i) shared.masses[thread] += shared.warp_masses[i][thread];
  }
  Team::sync();
}

__device__ __forceinline__ void write_masses(const SelectShared& shared, float* mass) {
  const int which = static_cast<int>(threadIdx.x);
  if (mass == nullptr || which >= 2 || Team::rank() != 0) return;
  float inside = 0, all = 0;
#pragma unroll
  for (int rank = 0; rank < kMostTeamBlocks; ++rank) {
    if (rank >= Team::size()) continue;
    const float* masses = Team::of_block(shared.masses, rank);
    inside += masses[2 * which];
    all += masses[2 * which + 1];
  }
  mass[which] = all > 0 ? inside / all : 0.0f;
}

__device__ __forceinline__ Slot slot_at(const KvList& list, const Slot* entries, int page_shift,
                                        std::int32_t position) {
  if (!list.pages) return entries[list.offset + position];
  return entries[list.offset + (position >> page_shift)] << page_shift | (position & ((1 << page_shift) - 1));
}

/// Slots of the chosen positions, by position. All lanes of a warp go together.
__device__ __forceinline__ void write_slots(const SelectSlotsParams& params, const KvList& list,
                                            const Selection& selection, const WarpPositions& positions,
                                            const SelectShared& shared, Slot* slots) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const unsigned of_blocks = lane < Team::rank() ? *Team::of_block(&shared.count, lane) : 0u;
  const unsigned of_warps = lane < warp ? shared.warp_counts[lane] : 0u;
  unsigned next = __reduce_add_sync(kAllLanes, of_blocks + of_warps);
  for (std::int32_t first = positions.begin; first < positions.end; first += kWarpSize) {
    const std::int32_t position = first + lane;
    const bool chosen = position < positions.end && selection.is_chosen(position);
    const unsigned lanes = __ballot_sync(kAllLanes, chosen);
    if (chosen) {
      slots[next + static_cast<unsigned>(__popc(lanes & ((1u << lane) - 1)))] =
          slot_at(list, params.entries, params.page_shift, position);
    }
    next += static_cast<unsigned>(__popc(lanes));
  }
}

__global__ void __launch_bounds__(kSelectThreads)
    select_slots_kernel(const __grid_constant__ SelectSlotsParams params) {
  __shared__ SelectShared shared;
  const int sequence = static_cast<int>(blockIdx.y);
  const KvList list = params.lists[sequence];
  float* mass = params.mass == nullptr ? nullptr : params.mass + 2 * sequence;
  const std::int64_t score = sequence * params.score_stride;
  __shared__ float history[kCopiedKeys], lookahead[kCopiedKeys];
  const WarpPositions positions(list.length);
  Selection selection{copy_scores(params.history + score, positions, history),
                      nullptr,
                      positions.block_begin,
                      list.length,
                      params.sinks,
                      params.recent};
  if (params.lookahead != nullptr) {
    selection.lookahead = copy_scores(params.lookahead + score, positions, lookahead);
  }
  __syncthreads();
  int parity = 0;
  int left = min(params.budget, list.length) - min(list.length, params.sinks + params.recent);
  int by_lookahead = selection.lookahead == nullptr ? 0 : min(left, params.lookahead_slots);
  selection.lookahead_threshold = find_threshold(shared, parity, by_lookahead, positions, [&](std::int32_t position) {
    return selection.lookahead_key(position);
  });
  left -= by_lookahead;
  selection.history_threshold = find_threshold(shared, parity, left, positions,
                                               [&](std::int32_t position) { return selection.history_key(position); });
  count_chosen(selection, positions, shared);
  write_masses(shared, mass);
  write_slots(
      params, list, selection, positions, shared,
      params.slots + (params.offsets != nullptr ? params.offsets[sequence] : std::int64_t{sequence} * params.budget));
  Team::sync();  // nobody's shared memory goes while others read it
}

}  // namespace

cudaError_t launch_select_slots(const SelectSlotsParams& params, int architecture, cudaStream_t stream) {
  if (params.num_sequences == 0) return cudaSuccess;
  int num_blocks = 1;
  while (architecture >= 90 && num_blocks < kMostTeamBlocks && params.max_keys > num_blocks * kKeysOfBlock) {
    num_blocks *= 2;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_blocks), static_cast<unsigned>(params.num_sequences));
  config.blockDim = dim3(kSelectThreads);
  config.stream = stream;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(num_blocks);
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = num_blocks > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, select_slots_kernel, params);
}

}  // namespace fastspec::cuda
