// From the running softmax of a piece to memory: whole items go to the output, parts to the workspace, and the CTA that
// brings the last part merges all of them in piece order. Reads no K/V.
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
  const int row = item.row_begin + packed / item.group_size;
  const int head = item.kv_head * item.group_size + packed % item.group_size;
  T* output = static_cast<T*>(params.output.data) + row * params.output.stride +
              static_cast<std::int64_t>(head) * params.kv.head_dim;
  float* lse = params.lse == nullptr ? nullptr : params.lse + static_cast<std::int64_t>(row) * params.num_heads + head;
  return {output, lse};
}

/// Row `row` of the tile of a partial result. `slot` as in partial_slot().
template <typename Traits>
__device__ OutputRow<float> partial_row(const TileLaunch& launch, int slot, int row) {
  const std::int64_t index = static_cast<std::int64_t>(slot) * Traits::kRows + row;
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
  return sum == 0.0f ? 0.0f : 1.0f / sum;
}

__device__ inline float base2_lse(float top, float sum) {
  return sum == 0.0f ? kMinusInfinity : top + log2f(sum);
}

/// Adds up the four lanes of each row.
template <typename Traits>
__device__ void complete_sums(Softmax<Traits>& state) {
  state.sum[0] = warp_sum<4>(state.sum[0]);
  state.sum[1] = warp_sum<4>(state.sum[1]);
}

/// Stores straight from registers: one key group, so each warp holds its rows' whole result.
template <typename Traits>
__device__ void store_from_registers(const TileLaunch& launch, const Item& item, const Piece& piece, int row_warp,
                                     Softmax<Traits>& state) {
  complete_sums(state);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row_warp * 16 + lane / 4 + 8 * half;
    if (row >= item.packed_in_tile(Traits::kRows)) continue;
    const float inverse = inverse_or_zero(state.sum[half]);
#pragma unroll
    for (int tile = 0; tile < Traits::kValueTiles; ++tile) {
      store_pair<Traits>(launch, item, piece, row, tile * 8 + lane % 4 * 2, state.output[tile][2 * half] * inverse,
                         state.output[tile][2 * half + 1] * inverse);
    }
    if (lane % 4 == 0) {
      store_lse<Traits>(launch, item, piece, row, base2_lse(state.top[half], state.sum[half]));
    }
  }
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
      const float weight = exp2f(exchange.stats(group, row)[0] - shift);
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

/// The partial results of one item: piece i lies in the workspace of CTA first_cta + i.
struct ItemParts {
  int first_cta;
  int count;

  __device__ int slot(int part) const { return partial_slot(first_cta + part, part); }
};

__device__ inline ItemParts parts_of(const TileLaunch& launch, const Piece& piece) {
  const std::int64_t total = launch.plan.sequences[launch.params.num_sequences].start;
  const int num_ctas = static_cast<int>(gridDim.x);
  const int first = cta_of(total, num_ctas, piece.item_start);
  return {first, cta_of(total, num_ctas, piece.item_start + piece.units - 1) - first + 1};
}

/// Counts this CTA's part in; true in all threads of the CTA that brought the last one. Call with the part written by
/// all threads, each behind a __threadfence(), and a barrier after that.
__device__ inline bool is_last_part(const TileLaunch& launch, const ItemParts& parts, int* flag) {
  if (threadIdx.x == 0) {
    int* counter = launch.counters + parts.first_cta;
    const bool last = atomicAdd(counter, 1) == parts.count - 1;
    if (last) *counter = 0;  // for the next launch
    *flag = last ? 1 : 0;
  }
  __syncthreads();
  const bool last = *flag != 0;
  if (last) __threadfence();
  return last;
}

/// One warp merges one row: lanes weigh 32 parts at a time, then all lanes add up columns.
template <typename Traits>
__device__ void merge_row(const TileLaunch& launch, const Item& item, const ItemParts& parts, int row) {
  using T = typename Traits::T;
  constexpr int kVectors = (Traits::kDim + 127) / 128;  // float4 a lane
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  float top = kMinusInfinity;
  for (int part = lane; part < parts.count; part += kWarpSize) {
    top = fmaxf(top, __ldcg(partial_row<Traits>(launch, parts.slot(part), row).lse));
  }
  top = warp_max(top);
  const float shift = top == kMinusInfinity ? 0.0f : top;
  float sum = 0;
  float total[kVectors][4] = {};
  for (int base = 0; base < parts.count; base += kWarpSize) {
    float weight = 0;
    if (base + lane < parts.count) {
      weight = exp2f(__ldcg(partial_row<Traits>(launch, parts.slot(base + lane), row).lse) - shift);
    }
    sum += weight;
    const int here = min(kWarpSize, parts.count - base);
#pragma unroll 8
    for (int part = 0; part < here; ++part) {
      const float part_weight = __shfl_sync(kAllLanes, weight, part);
      const float* values = partial_row<Traits>(launch, parts.slot(base + part), row).output;
#pragma unroll
      for (int vector = 0; vector < kVectors; ++vector) {
        const int column = vector * 128 + lane * 4;
        if (column >= Traits::kDim) continue;
        const float4 value = __ldcg(reinterpret_cast<const float4*>(values + column));
        total[vector][0] += part_weight * value.x;
        total[vector][1] += part_weight * value.y;
        total[vector][2] += part_weight * value.z;
        total[vector][3] += part_weight * value.w;
      }
    }
  }
  sum = warp_sum(sum);
  const float inverse = inverse_or_zero(sum);
  const OutputRow<T> target = final_row<T>(launch.params, item, item.first_packed + row);
#pragma unroll
  for (int vector = 0; vector < kVectors; ++vector) {
    const int column = vector * 128 + lane * 4;
    if (column >= launch.params.kv.head_dim) continue;
    uint2 packed;
    packed.x = pack_pair<T>(total[vector][0] * inverse, total[vector][1] * inverse);
    packed.y = pack_pair<T>(total[vector][2] * inverse, total[vector][3] * inverse);
    *reinterpret_cast<uint2*>(target.output + column) = packed;
  }
  if (lane == 0 && target.lse != nullptr) *target.lse = base2_lse(top, sum) * kLn2;
}

/// Counts the CTA's part in and merges where it was the last.
template <typename Traits>
__device__ void finish_part(const TileLaunch& launch, const Item& item, const Piece& piece, int* flag) {
  const ItemParts parts = parts_of(launch, piece);
  if (!is_last_part(launch, parts, flag)) return;
  const int num_rows = item.packed_in_tile(Traits::kRows);
  for (int row = static_cast<int>(threadIdx.x) / kWarpSize; row < num_rows; row += Traits::kWarps) {
    merge_row<Traits>(launch, item, parts, row);
  }
}

}  // namespace fastspec::cuda
