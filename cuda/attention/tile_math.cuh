// The arithmetic of one warp on one tile: scores, visibility, online softmax, weighted values. Reads shared memory that
// the ring filled; issues no copies and no CTA-wide barrier.
// Fragments are those of common/mma.cuh: lane 4g + q holds rows g and g + 8 of the warp's 16, columns 2q, 2q + 1.
#pragma once

#include "attention/tile_traits.cuh"
#include "attention/visibility.h"
#include "common/mma.cuh"

namespace fastspec::cuda {

/// Base-2 exponentials: scores carry scale * log2(e).
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kMinusInfinity = -__builtin_huge_valf();

/// 2^x: one instruction, relative error about 2^-22, 0 below -126 and at -inf. Enough for results in 16 bits.
__device__ __forceinline__ float fast_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// Sum of weights and weighted values so far, of the keys of this warp.
template <typename Traits>
struct Softmax {
  float top[2];  // of rows g and g + 8; the same in the four lanes of a row
  float sum[2];  // this lane's part
  float output[Traits::kValueTiles][4];

  __device__ void clear() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = kMinusInfinity;
      sum[half] = 0;
    }
#pragma unroll
    for (int tile = 0; tile < Traits::kValueTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) output[tile][i] = 0;
    }
  }
};

template <typename Traits>
using Scores = float[Traits::kScoreTiles][4];
/// Weights in the element type, as the A operand of 16-key steps.
template <typename Traits>
using Weights = std::uint32_t[Traits::kScoreTiles / 2][4];
/// The warp's 16 query rows as A operands of 16-column steps; one step where they stay in shared memory.
template <typename Traits>
using Query = std::uint32_t[Traits::kQueryInShared ? 1 : Traits::kDim / 16][4];

/// What decides visibility for this lane's two rows.
struct LaneRows {
  int row[2];       // within the sequence; padding rows repeat the last one
  int position[2];  // 0 without a window
  int full_from;    // keys of a page list at or past this position are visible to all rows of the warp
};

template <typename Traits>
__device__ LaneRows load_lane_rows(const AttentionParams& params, const Item& item, int row_warp) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  LaneRows rows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int packed = min(item.first_packed + row_warp * 16 + lane / 4 + 8 * half, item.num_packed - 1);
    rows.row[half] = packed / item.group_size;
    rows.position[half] = params.window > 0 ? params.positions[item.row_begin + rows.row[half]] : 0;
  }
  rows.full_from = 0;
  if (params.window > 0 && item.pages) {
    rows.full_from = warp_max(max(rows.position[0], rows.position[1])) - params.window + 1;
  }
  return rows;
}

/// scores = query * keys^T for the warp's keys, unscaled.
/// @param query_tile shared-memory address of the CTA's query tile; read where kQueryInShared.
template <typename Traits>
__device__ __forceinline__ void multiply_keys(Scores<Traits>& scores, Query<Traits>& query, std::uint32_t query_tile,
                                              int row_warp, std::uint32_t keys) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int key = lane / 16 * 8 + lane % 8;
  const int upper = lane / 8 % 2;
#pragma unroll
  for (int tile = 0; tile < Traits::kScoreTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[tile][i] = 0;
  }
#pragma unroll
  for (int step = 0; step < Traits::kDim / 16; ++step) {
    const int q = Traits::kQueryInShared ? 0 : step;
    if constexpr (Traits::kQueryInShared) {
      load_matrices(query[0],
                    query_tile + chunk_offset(Traits::kRows, row_warp * 16 + lane % 16, 2 * step + lane / 16));
    }
#pragma unroll
    for (int pair = 0; pair < Traits::kScoreTiles / 2; ++pair) {
      std::uint32_t k[4];
      load_matrices(k, keys + chunk_offset(Traits::kGroupKeys, pair * 16 + key, 2 * step + upper));
      mma_16x8x16<typename Traits::T>(scores[2 * pair], query[q], k[0], k[1]);
      mma_16x8x16<typename Traits::T>(scores[2 * pair + 1], query[q], k[2], k[3]);
    }
  }
}

/// output += weights * values for the warp's keys.
template <typename Traits>
__device__ __forceinline__ void add_values(float (&output)[Traits::kValueTiles][4], const Weights<Traits>& weights,
                                           std::uint32_t values) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int key = lane % 16;
  const int upper = lane / 16;
#pragma unroll
  for (int step = 0; step < Traits::kScoreTiles / 2; ++step) {
#pragma unroll
    for (int pair = 0; pair < Traits::kDim / 16; ++pair) {
      std::uint32_t v[4];
      load_matrices_transposed(v, values + chunk_offset(Traits::kGroupKeys, step * 16 + key, 2 * pair + upper));
      mma_16x8x16<typename Traits::T>(output[2 * pair], weights[step], v[0], v[1]);
      mma_16x8x16<typename Traits::T>(output[2 * pair + 1], weights[step], v[2], v[3]);
    }
  }
}

__device__ inline bool sees(const AttentionParams& params, const Item& item, const LaneRows& rows, int half, int key) {
  const int row = half == 0 ? rows.row[0] : rows.row[1];  // not by index: the arrays stay in registers
  const int position = half == 0 ? rows.position[0] : rows.position[1];
  if (key >= item.num_keys) return false;
  if (key < item.list_length) {
    return !item.pages || in_window(params.window, params.sinks, position, key);
  }
  const int new_key = key - item.list_length;
  const std::uint64_t* words = params.mask_bits + static_cast<std::int64_t>(item.row_begin + row) * kMaskWords;
  if (!mask_allows(item.mask, words, row, new_key)) return false;
  return params.window <= 0 ||
         in_window(params.window, params.sinks, position, params.positions[item.row_begin + new_key]);
}

/// Whether some row of the warp may not see some of the keys [first, first + kGroupKeys).
template <typename Traits>
__device__ bool needs_mask(const Item& item, const LaneRows& rows, int first) {
  return first + Traits::kGroupKeys > item.list_length || first < rows.full_from;
}

/// Overwrites the scores of unseen keys; `first` is the first key of the warp's tile.
template <typename Traits>
__device__ void mask_scores(Scores<Traits>& scores, const AttentionParams& params, const Item& item,
                            const LaneRows& rows, int first) {
  static_assert(Traits::kScoreTiles <= 8, "one bit a score");
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
  // The rules are walked in a loop that is not unrolled: few tiles need them, and their code is long.
  std::uint32_t seen = 0;
#pragma unroll 1
  for (int index = 0; index < Traits::kScoreTiles * 4; ++index) {
    const int key = first + index / 4 * 8 + column + index % 2;
    if (sees(params, item, rows, index / 2 % 2, key)) seen |= 1u << index;
  }
#pragma unroll
  for (int tile = 0; tile < Traits::kScoreTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((seen >> (tile * 4 + i) & 1u) == 0) scores[tile][i] = kMinusInfinity;
    }
  }
}

/// Scales the scores, takes them into the running softmax and rounds the weights to the element type.
template <typename Traits>
__device__ __forceinline__ void take_scores(Softmax<Traits>& state, Scores<Traits>& scores, Weights<Traits>& weights) {
  float shift[2];  // the new top, or 0 where no key was seen
  float correction[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = state.top[half];
#pragma unroll
    for (int tile = 0; tile < Traits::kScoreTiles; ++tile) {
      top = fmaxf(top, fmaxf(scores[tile][2 * half], scores[tile][2 * half + 1]));
    }
    top = warp_max<4>(top);
    shift[half] = top == kMinusInfinity ? 0.0f : top;
    correction[half] = fast_exp2(state.top[half] - shift[half]);
    state.top[half] = top;
  }
  // Once a row has met its largest scores nothing changes any more: most tiles skip the correction.
  if (__any_sync(kAllLanes, correction[0] != 1.0f || correction[1] != 1.0f)) {
#pragma unroll
    for (int tile = 0; tile < Traits::kValueTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state.output[tile][i] *= correction[i / 2];
    }
    state.sum[0] *= correction[0];
    state.sum[1] *= correction[1];
  }
#pragma unroll
  for (int tile = 0; tile < Traits::kScoreTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[tile][i] = fast_exp2(scores[tile][i] - shift[i / 2]);
      state.sum[i / 2] += scores[tile][i];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      weights[tile / 2][tile % 2 * 2 + half] =
          pack_pair<typename Traits::T>(scores[tile][2 * half], scores[tile][2 * half + 1]);
    }
  }
}

/// Turns raw products into base-2 logits.
template <typename Traits>
__device__ __forceinline__ void scale_scores(Scores<Traits>& scores, float scale_log2) {
#pragma unroll
  for (int tile = 0; tile < Traits::kScoreTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[tile][i] *= scale_log2;
  }
}

}  // namespace fastspec::cuda
