// From the running softmax of a piece to memory: whole items go to the output, parts to the workspace (merge_parts.cuh
// then makes results of them). Reads no K/V.
#pragma once

#include "attention/tile_math.cuh"

namespace fastspec::cuda {

/// Where one packed row's results go. `output` may be a row of the result or of the workspace.
template <typename T>
struct OutputRow {
  T* output;   // [head_dim]
  float* lse;  // or null
};

template <typename T>
__device__ OutputRow<T> final_row(const AttentionParams& params, const Item& item, int packed) {
  const int row_in_sequence = item.row_of(packed);
  const int row = item.row_begin + row_in_sequence;
  const int head = (item.kv_head - row_in_sequence) * item.group_size + packed;
  T* output = static_cast<T*>(params.output.data) + row * params.output.stride +
              static_cast<std::int64_t>(head) * params.kv.head_dim;
  float* lse = params.lse == nullptr ? nullptr : params.lse + static_cast<std::int64_t>(row) * params.num_heads + head;
  return {output, lse};
}

/// Row `row` of the tile of a partial result. `slot` as in partial_slot(). 32-bit indices suffice: 2 * kMaxCtas tiles.
template <typename Traits>
__device__ OutputRow<float> partial_row(const TileLaunch& launch, int slot, int row) {
  static_assert(std::int64_t{2} * kMaxCtas * Traits::kRows * Traits::kDim < 0x7fffffff);
  const int index = slot * Traits::kRows + row;
  return {launch.partial + index * Traits::kDim, launch.partial_lse + index};
}

/// Writes columns `column`, `column + 1` of row `row` of the tile, normalised.
template <typename Traits>
__device__ __forceinline__ void store_pair(const TileLaunch& launch, const Item& item, const Piece& piece, int row,
                                           int column, float low, float high) {
  using T = typename Traits::T;
  if (piece.whole()) {
    if (column >= launch.params.kv.head_dim) return;
    const OutputRow<T> target = final_row<T>(launch.params, item, item.first_packed + row);
    *reinterpret_cast<std::uint32_t*>(target.output + column) = pack_pair<T>(low, high);
  } else {
    const int slot = partial_slot(static_cast<int>(blockIdx.x), piece.begin);
    const OutputRow<float> target = partial_row<Traits>(launch, slot, row);
    *reinterpret_cast<float2*>(target.output + column) = make_float2(low, high);
  }
}

/// `lse` in base 2.
template <typename Traits>
__device__ void store_lse(const TileLaunch& launch, const Item& item, const Piece& piece, int row, float lse) {
  if (piece.whole()) {
    float* target = final_row<typename Traits::T>(launch.params, item, item.first_packed + row).lse;
    if (target != nullptr) *target = lse * kLn2;
  } else {
    *partial_row<Traits>(launch, partial_slot(static_cast<int>(blockIdx.x), piece.begin), row).lse = lse;
  }
}

__device__ inline float inverse_or_zero(float sum) {
  return sum == 0.0f ? 0.0f : __fdividef(1.0f, sum);
}

__device__ inline float base2_lse(float top, float sum) {
  return sum == 0.0f ? kMinusInfinity : top + __log2f(sum);
}

/// Adds up the four lanes of each row.
template <typename Traits>
__device__ void complete_sums(Softmax<Traits>& state) {
  state.sum[0] = warp_sum<4>(state.sum[0]);
  state.sum[1] = warp_sum<4>(state.sum[1]);
}

/// Stores row `lane / 4 + 8 * kHalf` of the warp's 16 straight from registers; its sum must be complete.
template <typename Traits, int kHalf>
__device__ void store_half(const TileLaunch& launch, const Item& item, const Piece& piece, int row_warp,
                           const Softmax<Traits>& state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int row = row_warp * 16 + lane / 4 + 8 * kHalf;
  if (row >= item.packed_in_tile(Traits::kRows)) return;
  const float inverse = inverse_or_zero(state.sum[kHalf]);
  const int column = lane % 4 * 2;
  if (piece.whole()) {
    using T = typename Traits::T;
    T* const target = final_row<T>(launch.params, item, item.first_packed + row).output + column;
#pragma unroll
    for (int tile = 0; tile < Traits::kValueTiles; ++tile) {
      if (tile * 8 + column >= launch.params.kv.head_dim) break;
      *reinterpret_cast<std::uint32_t*>(target + tile * 8) =
          pack_pair<T>(state.output[tile][2 * kHalf] * inverse, state.output[tile][2 * kHalf + 1] * inverse);
    }
  } else {
    const int slot = partial_slot(static_cast<int>(blockIdx.x), piece.begin);
    float* const target = partial_row<Traits>(launch, slot, row).output + column;
#pragma unroll
    for (int tile = 0; tile < Traits::kValueTiles; ++tile) {
      *reinterpret_cast<float2*>(target + tile * 8) =
          make_float2(state.output[tile][2 * kHalf] * inverse, state.output[tile][2 * kHalf + 1] * inverse);
    }
  }
  if (lane % 4 == 0) {
    store_lse<Traits>(launch, item, piece, row, base2_lse(state.top[kHalf], state.sum[kHalf]));
  }
}

/// Stores where each warp holds its rows' whole result.
template <typename Traits>
__device__ void store_from_registers(const TileLaunch& launch, const Item& item, const Piece& piece, int row_warp,
                                     Softmax<Traits>& state) {
  complete_sums(state);
  store_half<Traits, 0>(launch, item, piece, row_warp, state);
  store_half<Traits, 1>(launch, item, piece, row_warp, state);
}

/// Layout of the exchange between key groups in shared memory.
template <typename Traits>
struct Exchange {
  static constexpr int kPitch = Traits::kDim + 8;  // the padding keeps rows in different banks
  static constexpr int kValues = Traits::kKeyWarps * Traits::kRows * kPitch;
  static constexpr int kBytes = (kValues + 2 * Traits::kKeyWarps * Traits::kRows) * static_cast<int>(sizeof(float));
  static_assert(Traits::kKeyWarps == 1 || kBytes <= Traits::kRingBytes + Traits::kQueryBytes);

  float* memory;

  __device__ float* row(int key_warp, int row_index) const {
    return memory + (key_warp * Traits::kRows + row_index) * kPitch;
  }
  /// top, sum
  __device__ float* stats(int key_warp, int row_index) const {
    return memory + kValues + 2 * (key_warp * Traits::kRows + row_index);
  }
};

/// Merges the key groups of the CTA through shared memory, then stores. `memory` must be idle: no copy under way, every
/// warp past its last read; the caller puts a barrier behind.
template <typename Traits>
__device__ void store_over_key_groups(const TileLaunch& launch, const Item& item, const Piece& piece, int row_warp,
                                      int key_warp, Softmax<Traits>& state, float* memory) {
  complete_sums(state);
  const Exchange<Traits> exchange{memory};
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row_warp * 16 + lane / 4 + 8 * half;
    float* values = exchange.row(key_warp, row) + lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < Traits::kValueTiles; ++tile) {
      *reinterpret_cast<float2*>(values + tile * 8) =
          make_float2(state.output[tile][2 * half], state.output[tile][2 * half + 1]);
    }
    if (lane % 4 == 0) {
      exchange.stats(key_warp, row)[0] = state.top[half];
      exchange.stats(key_warp, row)[1] = state.sum[half];
    }
  }
  __syncthreads();
  constexpr int kPairs = Traits::kDim / 2;
  const int num_pairs = item.packed_in_tile(Traits::kRows) * kPairs;
  for (int index = static_cast<int>(threadIdx.x); index < num_pairs; index += Traits::kThreads) {
    const int row = index / kPairs;
    const int column = index % kPairs * 2;
    float top = kMinusInfinity;
#pragma unroll
    for (int group = 0; group < Traits::kKeyWarps; ++group) top = fmaxf(top, exchange.stats(group, row)[0]);
    const float shift = top == kMinusInfinity ? 0.0f : top;
    float sum = 0;
    float2 total = make_float2(0, 0);
#pragma unroll
    for (int group = 0; group < Traits::kKeyWarps; ++group) {
      const float weight = fast_exp2(exchange.stats(group, row)[0] - shift);
      const float2 value = *reinterpret_cast<const float2*>(exchange.row(group, row) + column);
      sum += weight * exchange.stats(group, row)[1];
      total.x += weight * value.x;
      total.y += weight * value.y;
    }
    const float inverse = inverse_or_zero(sum);
    store_pair<Traits>(launch, item, piece, row, column, total.x * inverse, total.y * inverse);
    if (column == 0) store_lse<Traits>(launch, item, piece, row, base2_lse(top, sum));
  }
}

}  // namespace fastspec::cuda
