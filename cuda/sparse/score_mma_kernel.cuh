// Logits of 16-bit keys on the matrix units. Every element of K is read once, straight into the operand registers of
// its warp: the order of dimensions in an inner product is free, so a lane takes 16 bytes at a time, and so is the
// order of keys in a tile, so a lane ends up with eight neighbouring keys of a row. Registers ask for the next group's
// keys as soon as their own are multiplied for the last time.
#pragma once

#include "common/mma.cuh"
#include "sparse/score_block.cuh"

namespace fastspec::cuda {

constexpr int kKeyTiles = kScoreGroup / 8;  // of 8 keys, in a group

/// For what nobody reads again: it leaves L2 before the logits do, which the next kernel reads.
__device__ __forceinline__ std::uint64_t streaming_policy() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ uint4 load_streamed(const void* place, std::uint64_t policy) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4], %5;\n"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(place), "l"(policy));
  return value;
}

/// Operands of the queries, as mma_16x8x16 takes them: lane 4g + q of row tile t has dimensions 32b + 8q .. + 7 of rows
/// g and g + 8; a step of 16 takes four of them.
template <typename T, int kDim>
__device__ __forceinline__ void load_queries(const ScoreArguments& arguments, const ScoreBlock& block,
                                             uint4 (*queries)[kDim / 16][kWarpSize]) {
  const int head_dim = arguments.params.kv.head_dim;
  const int count = (block.num_packed + 15) / 16 * (kDim / 16) * kWarpSize;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kScoreThreads) {
    const int lane = i % kWarpSize, step = i / kWarpSize % (kDim / 16), tile = i / kWarpSize / (kDim / 16);
    const int d = step / 2 * 32 + lane % 4 * 8 + step % 2 * 4;
    std::uint32_t words[4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int p = tile * 16 + half * 8 + lane / 4;
      if (p >= block.num_packed || d >= head_dim) continue;
      const auto* source = reinterpret_cast<const std::uint32_t*>(block.query<T>(arguments, p) + d);
      words[half] = source[0];
      words[2 + half] = source[1];
    }
    queries[tile][step][lane] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

/// A lane's part of the keys of a group, and where those of the next one lie.
template <typename T, int kDim>
struct GroupKeys {
  static constexpr int kLoads = kDim / 32;
  const T* base;  // of the lane's first dimensions
  std::uint64_t policy;
  int head_dim;
  uint4 words[kKeyTiles][kLoads];
  std::int64_t offsets[kKeyTiles];  // of the keys to load next; -1 = none

  __device__ __forceinline__ explicit GroupKeys(const ScoreKeysParams& params)
      : base(static_cast<const T*>(params.kv.base) + threadIdx.x % 4 * 8),
        policy(streaming_policy()),
        head_dim(params.kv.head_dim) {}

  /// Key n of tile j is key 8 (n / 2) + 2 j + n % 2 of the group.
  __device__ __forceinline__ void look_up(const ScoreArguments& arguments, const ScoreBlock& block, int group) {
    const int n = static_cast<int>(threadIdx.x) % kWarpSize / 4;
#pragma unroll
    for (int j = 0; j < kKeyTiles; ++j) {
      const std::int32_t key = block.first_key + group * kScoreGroup + n / 2 * 8 + j * 2 + n % 2;
      offsets[j] = group < kGroupsOfChunk && key < block.length ? block.key_offset(arguments.params, key) : -1;
    }
  }
  /// Dimensions 32b .. 32b + 31 of all tiles.
  __device__ __forceinline__ void load(int b) {
#pragma unroll
    for (int j = 0; j < kKeyTiles; ++j) {
      const bool wanted = offsets[j] >= 0 && b * 32 + static_cast<int>(threadIdx.x) % 4 * 8 < head_dim;
      words[j][b] = wanted ? load_streamed(base + offsets[j] + b * 32, policy) : make_uint4(0, 0, 0, 0);
    }
  }
};

/// Scaled logits of a row's eight keys become distances from the group's largest, stored; its statistics too.
template <typename Logit>
__device__ __forceinline__ void leave_row(float (&values)[8], int num_valid, Logit* place, bool exists, float& top,
                                          float& sum) {
  top = -INFINITY;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i >= num_valid) values[i] = -INFINITY;
    top = fmaxf(top, values[i]);
  }
  top = warp_max<4>(top);
  sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    values[i] -= top;
    sum += exp2f(values[i]);
  }
  sum = warp_sum<4>(sum);
  if (exists) store_eight(place, values);
}

/// The 16 packed rows of a tile, of which a lane has rows g and g + 8.
__device__ __forceinline__ void leave_tile(const ScoreArguments& arguments, const ScoreBlock& block, int group,
                                           int tile, const float (&sums)[kKeyTiles][4], ChunkStatistics& statistics) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, q = lane % 4;
  const float scale = arguments.params.scale * kLog2E;
  const std::int32_t first = block.first_key + group * kScoreGroup + q * 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int p = tile * 16 + half * 8 + lane / 4;
    const bool exists = p < block.num_packed;
    float values[8], top, sum;
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = sums[i / 2][half * 2 + i % 2] * scale;
    Fp16* place = block.logits<Fp16>(arguments, exists ? p : 0) + first;
    leave_row(values, block.length - first, place, exists, top, sum);
    if (exists && q == 0) {
      statistics.top[p][group] = top;
      statistics.sum[p][group] = sum;
    }
  }
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kScoreThreads, kDim > 128 ? 2 : 3)
    score_mma_kernel(const __grid_constant__ ScoreArguments arguments) {
  constexpr int kLoads = kDim / 32;
  const ScoreBlock block(arguments);
  if (block.num_packed == 0) return;
  __shared__ uint4 queries[kScorePacked / 16][kDim / 16][kWarpSize];
  __shared__ ChunkStatistics statistics;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int num_tiles = (block.num_packed + 15) / 16;
  GroupKeys<T, kDim> keys(arguments.params);
  keys.look_up(arguments, block, warp);
#pragma unroll
  for (int b = 0; b < kLoads; ++b) keys.load(b);
  keys.look_up(arguments, block, warp + kScoreWarps);
  load_queries<T, kDim>(arguments, block, queries);
  __syncthreads();

  for (int group = warp; group < kGroupsOfChunk; group += kScoreWarps) {
    if (block.first_key + group * kScoreGroup >= block.length) break;
    for (int tile = 0; tile < num_tiles; ++tile) {
      float sums[kKeyTiles][4] = {};
#pragma unroll
      for (int b = 0; b < kLoads; ++b) {
        const uint4 even = queries[tile][2 * b][lane], odd = queries[tile][2 * b + 1][lane];
#pragma unroll
        for (int j = 0; j < kKeyTiles; ++j) {
          const uint4 key = keys.words[j][b];
          mma_16x8x16<T>(sums[j], {even.x, even.y, even.z, even.w}, key.x, key.y);
          mma_16x8x16<T>(sums[j], {odd.x, odd.y, odd.z, odd.w}, key.z, key.w);
        }
        if (tile == num_tiles - 1) keys.load(b);
      }
      leave_tile(arguments, block, group, tile, sums, statistics);
    }
    keys.look_up(arguments, block, group + 2 * kScoreWarps);
  }
  block.finish(arguments, statistics);
}

}  // namespace fastspec::cuda
