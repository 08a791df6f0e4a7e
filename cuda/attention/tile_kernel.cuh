// The kernel over packed row tiles: each persistent CTA walks the pieces of its share. Right at any lengths that the
// plan holds; never asks how many rows or keys there are in all.
#pragma once

#include "attention/hopper_math.cuh"
#include "attention/key_ring.cuh"
#include "attention/tile_output.cuh"

namespace fastspec::cuda {

/// First element of one packed row of the query; null for rows past the sequence's end.
template <typename T>
__device__ const T* query_row(const AttentionParams& params, const Item& item, int row_in_tile) {
  const int packed = item.first_packed + row_in_tile;
  if (packed >= item.num_packed) return nullptr;
  const int row = item.row_begin + packed / item.group_size;
  const int head = item.kv_head * item.group_size + packed % item.group_size;
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

/// Query rows of the tile into shared memory; needs a barrier behind.
template <typename Traits>
__device__ void load_query_shared(const AttentionParams& params, const Item& item, char* target) {
  for (int index = static_cast<int>(threadIdx.x); index < Traits::kRows * Traits::kChunks; index += Traits::kThreads) {
    const int row = index / Traits::kChunks;
    const int chunk = index % Traits::kChunks;
    const auto* source = query_row<typename Traits::T>(params, item, row);
    uint4 value = make_uint4(0, 0, 0, 0);
    if (source != nullptr && chunk * kChunkElements < params.kv.head_dim) {
      value = *reinterpret_cast<const uint4*>(source + chunk * kChunkElements);
    }
    *reinterpret_cast<uint4*>(target + chunk_offset(Traits::kRows, row, chunk)) = value;
  }
}

/// One tile: scores, visibility, softmax, values.
template <typename Traits>
__device__ __forceinline__ void attend_tile(const AttentionParams& params, const Item& item, const LaneRows& rows,
                                            Query<Traits>& query, std::uint32_t query_tile, int row_warp,
                                            std::uint32_t keys, int first, Softmax<Traits>& state) {
  Scores<Traits> scores;
  Weights<Traits> weights;
  if constexpr (Traits::kHopper) {
    multiply_keys_hopper<Traits>(scores, query, keys);
  } else {
    multiply_keys<Traits>(scores, query, query_tile, row_warp, keys);
  }
  scale_scores<Traits>(scores, params.scale * kLog2E);
  if (needs_mask<Traits>(item, rows, first)) mask_scores<Traits>(scores, params, item, rows, first);
  take_scores<Traits>(state, scores, weights);
  if constexpr (Traits::kHopper) {
    add_values_hopper<Traits>(state.output, weights, keys + Traits::kMatrixBytes);
  } else {
    add_values<Traits>(state.output, weights, keys + Traits::kMatrixBytes);
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
      causal_end = item.list_length + last_packed / item.group_size + 1;
    }
  }
};

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kCtasPerSm)
    attention_tile_kernel(const __grid_constant__ TileLaunch launch) {
  extern __shared__ char shared_memory[];
  __shared__ int last_part_flag;
  const AttentionParams& params = launch.params;
  const std::uint32_t padding = (1024 - shared_address(shared_memory) % 1024) % 1024;
  char* const ring_memory = shared_memory + padding;
  const std::uint32_t query_tile = shared_address(ring_memory) + Traits::kRingBytes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int row_warp = warp % Traits::kRowWarps;
  const int key_warp = warp / Traits::kRowWarps;

  const CtaPlan share = launch.plan.ctas[blockIdx.x];
  PieceWalk walk{launch.plan.sequences, share.low, share.high, share.sequence};
  KeyRing<Traits> ring(params.kv, shared_address(ring_memory), row_warp, key_warp);
  Piece piece;
  Item item;
  const auto advance = [&] {
    if (!walk.next(piece)) return false;
    item = load_item(launch, piece, Traits::kRows);
    ring.start(item, piece);
    return true;
  };

  bool more = advance();
  while (more) {
    const Skip<Traits> skip(item, row_warp);
    const LaneRows rows = load_lane_rows<Traits>(params, item, row_warp);
    Query<Traits> query;
    if constexpr (Traits::kQueryInShared) {
      load_query_shared<Traits>(params, item, ring_memory + Traits::kRingBytes);
      __syncthreads();
    } else {
      load_query_registers<Traits>(params, item, row_warp, query);
    }
    Softmax<Traits> state;
    state.clear();
    const int num_tiles = ring.num_tiles();
    for (int tile = 0; tile < num_tiles; ++tile) {
      const std::uint32_t keys = ring.take(item);
      const int first = ring.first_key_of(item, tile);
      if (skip.idle || first >= skip.causal_end) continue;
      attend_tile<Traits>(params, item, rows, query, query_tile, row_warp, keys, first + key_warp * Traits::kGroupKeys,
                          state);
    }
    __syncthreads();  // the ring is idle: all copies were waited for, all tiles read
    const Piece done = piece;
    if constexpr (Traits::kKeyWarps == 1) more = advance();  // the next piece's first tiles travel during the stores
    const Item done_item = load_item(launch, done, Traits::kRows);
    if constexpr (Traits::kKeyWarps == 1) {
      store_from_registers<Traits>(launch, done_item, done, row_warp, state);
    } else {
      store_over_key_groups<Traits>(launch, done_item, done, row_warp, key_warp, state,
                                    reinterpret_cast<float*>(ring_memory));
    }
    if (!done.whole()) __threadfence();
    __syncthreads();
    if constexpr (Traits::kKeyWarps != 1) more = advance();
    if (!done.whole()) finish_part<Traits>(launch, done_item, done, &last_part_flag);
  }
}

}  // namespace fastspec::cuda
