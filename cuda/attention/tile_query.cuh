// The query rows of a tile: from global memory to registers, and which key tiles they need not meet at all.
#pragma once

#include "attention/tile_math.cuh"

namespace fastspec::cuda {

/// First element of one packed row of the query; null for rows past the sequence's end.
template <typename T>
__device__ const T* query_row(const AttentionParams& params, const Item& item, int row_in_tile) {
  const int packed = item.first_packed + row_in_tile;
  if (packed >= item.num_packed) return nullptr;
  const int row_in_sequence = item.row_of(packed);
  const int row = item.row_begin + row_in_sequence;
  const int head = (item.kv_head - row_in_sequence) * item.group_size + packed;
  return static_cast<const T*>(params.query.data) + row * params.query.stride +
         static_cast<std::int64_t>(head) * params.kv.head_dim;
}

/// Query rows of the warp as A operands, straight from global memory; columns past head_dim are zero.
template <typename Traits>
__device__ void load_query_registers(const AttentionParams& params, const Item& item, int row_warp,
                                     Query<Traits>& query) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto* source = query_row<typename Traits::T>(params, item, row_warp * 16 + lane / 4 + 8 * half);
#pragma unroll
    for (int step = 0; step < Traits::kDim / 16; ++step) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int column = step * 16 + upper * 8 + lane % 4 * 2;
        query[step][half + 2 * upper] = source != nullptr && column < params.kv.head_dim
                                            ? *reinterpret_cast<const std::uint32_t*>(source + column)
                                            : 0u;
      }
    }
  }
}

/// Whether the 16 rows of a warp (kHopper: the 64 of its warpgroup) hold any packed row, and whether tiles of new keys
/// behind the tile's last row may be left out (causal).
template <typename Traits>
struct Skip {
  bool idle;
  int causal_end;  // keys at or past it are seen by no row of the tile

  __device__ Skip(const Item& item, int row_warp) {
    const int first_row = Traits::kHopper ? row_warp / 4 * 64 : row_warp * 16;
    idle = first_row >= item.packed_in_tile(Traits::kRows);
    causal_end = item.num_keys;
    if (item.mask == NewMask::kCausal) {
      const int last_packed = item.first_packed + item.packed_in_tile(Traits::kRows) - 1;
      causal_end = item.list_length + item.row_of(last_packed) + 1;
    }
  }
};

}  // namespace fastspec::cuda
