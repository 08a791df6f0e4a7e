// The kernel of compute capability 9.0 over packed row tiles, see HopperTraits: one warpgroup copies tiles into a ring
// as far ahead as there is room, over the ends of pieces too; two warpgroups do math, so that one may have the matrix
// unit while the other is at its softmax. Right at any lengths that the plan holds. Code for other targets traps: a
// launch there must end in an error, not in wrong numbers.
#pragma once

#include "attention/hopper_math.cuh"
#include "attention/key_ring.cuh"
#include "attention/merge_parts.cuh"
#include "attention/tile_query.cuh"
#include "common/barrier.cuh"

namespace fastspec::cuda {

#if FS_HOPPER_DEVICE

/// The ring as its two sides see it: a stage and how often the ring went round. Addresses are shared-memory addresses.
template <typename Traits>
struct RingPlace {
  std::uint32_t memory;  // of the stages
  std::uint32_t full;    // barriers [kStages]: all copies of a tile have arrived
  std::uint32_t empty;   // barriers [kStages]: every reader is done with the tile
  int stage = 0;
  std::uint32_t round = 0;  // parity

  __device__ void advance() {
    if (++stage == Traits::kStages) {
      stage = 0;
      round ^= 1;
    }
  }
  __device__ std::uint32_t tile() const { return memory + stage * Traits::kStageBytes; }
  __device__ std::uint32_t full_barrier() const { return full + stage * 8; }
  __device__ std::uint32_t empty_barrier() const { return empty + stage * 8; }
};

template <typename Traits>
__device__ __forceinline__ void copy_pieces(const TileLaunch& launch, RingPlace<Traits> place) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize % 4;
  KeyLoader<Traits> loader(launch.params.kv, warp * Traits::kLoadKeys, warp * Traits::kLoadKeys);
  PieceWalk walk = walk_of_cta(launch, launch.plan.ctas[blockIdx.x]);
  Piece piece;
  while (walk.next(piece)) {
    const Item item = make_item(launch, walk.plan, piece, Traits::kRows);
    loader.start(item, piece);
    while (loader.more()) {
      barrier_wait(place.empty_barrier(), place.round ^ 1);
      loader.copy_next(item, place.tile());
      barrier_arrive_after_copies(place.full_barrier());
      place.advance();
    }
  }
}

/// The two groups of kAlternate have seen different keys of the same rows. Each hands the other half of its rows over
/// and keeps rows `lane / 4 + 8 * kKept`; their sums are complete behind. `memory` is free again after a barrier.
template <typename Traits, int kKept>
__device__ void add_other_group(Softmax<Traits>& state, char* memory) {
  constexpr int kGiven = 1 - kKept;
  const int thread = static_cast<int>(threadIdx.x) % Traits::kGroupThreads;
  // Vector v of thread t lies at [v][t]: neighbouring lanes, neighbouring banks.
  const auto vectors = [&](int group) {
    return reinterpret_cast<float4*>(memory) + group * Traits::kExchangeVectors * Traits::kGroupThreads + thread;
  };
  const auto statistics = [&](int group) {
    return reinterpret_cast<float2*>(reinterpret_cast<float4*>(memory) +
                                     2 * Traits::kExchangeVectors * Traits::kGroupThreads) +
           group * Traits::kGroupThreads + thread;
  };
  complete_sums(state);
#pragma unroll
  for (int vector = 0; vector < Traits::kExchangeVectors; ++vector) {
    vectors(kGiven)[vector * Traits::kGroupThreads] =
        make_float4(state.output[2 * vector][2 * kGiven], state.output[2 * vector][2 * kGiven + 1],
                    state.output[2 * vector + 1][2 * kGiven], state.output[2 * vector + 1][2 * kGiven + 1]);
  }
  *statistics(kGiven) = make_float2(state.top[kGiven], state.sum[kGiven]);
  Traits::sync_math();
  const float2 other = *statistics(kKept);
  const float top = fmaxf(state.top[kKept], other.x);
  const float shift = top == kMinusInfinity ? 0.0f : top;
  const float own_weight = fast_exp2(state.top[kKept] - shift);
  const float other_weight = fast_exp2(other.x - shift);
  state.top[kKept] = top;
  state.sum[kKept] = state.sum[kKept] * own_weight + other.y * other_weight;
#pragma unroll
  for (int vector = 0; vector < Traits::kExchangeVectors; ++vector) {
    const float4 value = vectors(kKept)[vector * Traits::kGroupThreads];
    float (&low)[4] = state.output[2 * vector];
    float (&high)[4] = state.output[2 * vector + 1];
    low[2 * kKept] = low[2 * kKept] * own_weight + value.x * other_weight;
    low[2 * kKept + 1] = low[2 * kKept + 1] * own_weight + value.y * other_weight;
    high[2 * kKept] = high[2 * kKept] * own_weight + value.z * other_weight;
    high[2 * kKept + 1] = high[2 * kKept + 1] * own_weight + value.w * other_weight;
  }
}

/// All tiles of one piece that this warpgroup has to meet. The values of a tile are added while the next tile is
/// waited for and multiplied, so a stage is given back one tile late, but before tiles that no row sees are passed over:
/// held until the end of many of them, it would be the one that the copies wait for.
template <typename Traits>
__device__ __forceinline__ void attend_piece(const AttentionParams& params, const Item& item, const Piece& piece,
                                             int group, int row_warp, RingPlace<Traits>& place,
                                             Softmax<Traits>& state) {
  const Skip<Traits> skip(item, row_warp);
  const LaneRows rows = load_lane_rows<Traits>(params, item, row_warp);
  Query<Traits> query;
  load_query_registers<Traits>(params, item, row_warp, query);
  if (item.mask == NewMask::kAncestor && piece.end == piece.units) prefetch_masks(params, item, rows);
  state.clear();
  Scores<Traits> scores;
  Weights<Traits> weights;
  const float scale_log2 = params.scale * kLog2E;
  const int num_tiles = (piece.end - piece.begin) * Traits::kTilesPerUnit;
  std::uint32_t held = 0;  // empty barrier of the stage whose values are being added
  const auto finish_values = [&] {
    warpgroup_wait();
    pin_registers(state.output);
    if (held != 0) barrier_arrive_warp(held);
    held = 0;
  };
  for (int tile = 0; tile < num_tiles; ++tile, place.advance()) {
    if (Traits::kAlternate && tile % 2 != group) continue;
    const int first = tile_first_key<Traits>(item, piece.begin, tile);
    barrier_wait(place.full_barrier(), place.round);
    if (skip.idle || first >= skip.causal_end) {
      if (held != 0) finish_values();
      barrier_arrive_warp(place.empty_barrier());
      continue;
    }
    // Copies are ordinary writes; the matrix unit reads by another way.
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
    start_keys<Traits>(scores, query, place.tile());
    warpgroup_wait();
    pin_registers(scores);
    pin_registers(state.output);
    if (held != 0) barrier_arrive_warp(held);
    if (needs_mask<Traits>(item, rows, first)) mask_scores<Traits>(scores, params, item, rows, first);
    take_scores<Traits>(state, scores, weights, scale_log2);
    start_values<Traits>(state.output, weights, place.tile() + Traits::kMatrixBytes);
    held = place.empty_barrier();
  }
  finish_values();
}

template <typename Traits>
__device__ __forceinline__ void attend_pieces(const TileLaunch& launch, RingPlace<Traits> place, char* exchange,
                                              int* flag) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int group = warp / 4;
  const int row_warp = Traits::kAlternate ? warp % 4 : warp;
  const CtaPlan share = launch.plan.ctas[blockIdx.x];
  PieceWalk walk = walk_of_cta(launch, share);
  Piece piece;
  while (walk.next(piece)) {
    const Item item = make_item(launch, walk.plan, piece, Traits::kRows);
    const ItemParts parts = parts_of(share.line, piece, walk.row_tile);
    Softmax<Traits> state;
    attend_piece<Traits>(launch.params, item, piece, group, row_warp, place, state);
    if constexpr (!Traits::kAlternate) {
      store_from_registers<Traits>(launch, item, piece, row_warp, state);
    } else if (group == 0) {
      add_other_group<Traits, 0>(state, exchange);
      store_half<Traits, 0>(launch, item, piece, row_warp, state);
    } else {
      add_other_group<Traits, 1>(state, exchange);
      store_half<Traits, 1>(launch, item, piece, row_warp, state);
    }
    if (piece.whole()) {
      if constexpr (Traits::kAlternate) Traits::sync_math();  // frees the exchange
    } else {
      finish_part<Traits>(launch, item, parts, flag);
    }
  }
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kCtaThreads, 1)
    attention_hopper_kernel(const __grid_constant__ TileLaunch launch) {
  extern __shared__ char shared_memory[];
  __shared__ std::uint64_t full[Traits::kStages];
  __shared__ std::uint64_t empty[Traits::kStages];
  __shared__ int last_part_flag;
  const std::uint32_t padding = (1024 - shared_address(shared_memory) % 1024) % 1024;
  char* const ring_memory = shared_memory + padding;
  const RingPlace<Traits> place{shared_address(ring_memory), shared_address(full), shared_address(empty)};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Traits::kStages; ++stage) {
      barrier_init(place.full + stage * 8, Traits::kGroupThreads);
      barrier_init(place.empty + stage * 8, Traits::kAlternate ? 4 : 8);
    }
  }
  __syncthreads();
  if (threadIdx.x >= Traits::kThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;\n");
    copy_pieces<Traits>(launch, place);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 216;\n");
    attend_pieces<Traits>(launch, place, ring_memory + Traits::kRingBytes, &last_part_flag);
  }
}

#else

template <typename Traits>
__global__ void attention_hopper_kernel(const __grid_constant__ TileLaunch) {
  __trap();
}

#endif

}  // namespace fastspec::cuda
