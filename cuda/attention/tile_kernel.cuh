// The kernel over packed row tiles: each persistent CTA walks the pieces of its share. Right at any lengths that the
// plan holds; never asks how many rows or keys there are in all.
#pragma once

#include "attention/key_ring.cuh"
#include "attention/merge_parts.cuh"
#include "attention/tile_query.cuh"

namespace fastspec::cuda {

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
  multiply_keys<Traits>(scores, query, query_tile, row_warp, keys);
  if (needs_mask<Traits>(item, rows, first)) mask_scores<Traits>(scores, params, item, rows, first);
  take_scores<Traits>(state, scores, weights, params.scale * kLog2E);
  add_values<Traits>(state.output, weights, keys + Traits::kMatrixBytes);
}

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

  const CtaPlan& share = launch.plan.ctas[blockIdx.x];
  PieceWalk walk = walk_of_cta(launch, share);
  KeyRing<Traits> ring(params.kv, shared_address(ring_memory), row_warp, key_warp);
  Piece piece;
  Item item;
  const auto advance = [&] {
    if (!walk.next(piece)) return false;
    item = make_item(launch, walk.plan, piece, Traits::kRows);
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
      const int first = tile_first_key<Traits>(item, piece.begin, tile);
      if (skip.idle || first >= skip.causal_end) continue;
      attend_tile<Traits>(params, item, rows, query, query_tile, row_warp, keys, first + key_warp * Traits::kGroupKeys,
                          state);
    }
    __syncthreads();  // the ring is idle: all copies were waited for, all tiles read
    const Piece done = piece;
    Item done_item = item;
    if constexpr (Traits::kKeyWarps == 1) {
      more = advance();  // the next piece's first tiles travel during the stores
      // Read again: registers are too few for two items.
      done_item = make_item(launch, launch.plan.sequences[done.sequence], done, Traits::kRows);
      store_from_registers<Traits>(launch, done_item, done, row_warp, state);
    } else {
      store_over_key_groups<Traits>(launch, done_item, done, row_warp, key_warp, state,
                                    reinterpret_cast<float*>(ring_memory));
      __syncthreads();  // the exchange is over, the ring free again
      more = advance();
    }
    if (!done.whole()) {
      const ItemParts parts = parts_of(share.line, done, walk.row_tile);
      finish_part<Traits>(launch, done_item, parts, &last_part_flag);
    }
  }
}

}  // namespace fastspec::cuda
