// The shape of one tile kernel as compile-time constants, and the facts of the item at hand. No code of the math.
//
// A CTA works on tiles of kRows packed rows x kTileKeys keys. Its warps stand in a grid: kRowWarps rows of 16 packed
// rows by kKeyWarps groups of keys. Up to 16 packed rows every warp has keys of its own; from 64 on all warps share
// them.
#pragma once

#include "attention/attention.h"
#include "attention/swizzle.h"
#include "common/async_copy.cuh"
#include "common/element.cuh"
#include "common/warp.cuh"

// 1 where the code being compiled may use warpgroup instructions.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FS_HOPPER_DEVICE 1
#else
#define FS_HOPPER_DEVICE 0
#endif

namespace fastspec::cuda {

/// Every warp copies keys and does math; for compute capability >= 8.0.
template <typename T_, int kDim_, int kRows_>
struct TileTraits {
  using T = T_;
  static constexpr bool kHopper = false;
  static constexpr int kDim = kDim_;    // head_dim, padded
  static constexpr int kRows = kRows_;  // packed rows
  static constexpr int kWarps = kRows == 128 ? 8 : 4;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kCtasPerSm = tile_ctas_per_sm(AttentionPath::kMma, kRows);
  static constexpr int kRowWarps = kRows / 16;
  static constexpr int kKeyWarps = kWarps / kRowWarps;
  static constexpr int kTileKeys = kDim > 128 ? 32 : 64;
  static constexpr int kTilesPerUnit = kUnitKeys / kTileKeys;
  static constexpr int kGroupKeys = kTileKeys / kKeyWarps;  // keys of a tile that one warp attends to
  static constexpr int kLoadKeys = kTileKeys / kWarps;      // keys of a tile that one warp copies
  static constexpr int kChunks = kDim / kChunkElements;
  static constexpr int kStages = kDim > 128 ? 2 : 3;
  static constexpr int kMatrixBytes = tile_bytes(kGroupKeys, kDim);  // K or V of one key group and stage
  static constexpr int kStageBytes = 2 * kMatrixBytes;
  static constexpr int kGroupRingBytes = kStages * kStageBytes;
  static constexpr int kRingBytes = kKeyWarps * kGroupRingBytes;
  // Wide heads leave no registers for the query.
  static constexpr bool kQueryInShared = kDim > 128;
  static constexpr int kQueryBytes = kQueryInShared ? tile_bytes(kRows, kDim) : 0;
  static constexpr int kSharedBytes = kRingBytes + kQueryBytes + 1024;  // the ring starts at a multiple of 1024

  static constexpr int kScoreTiles = kGroupKeys / 8;  // of 16 x 8 scores
  static constexpr int kValueTiles = kDim / 8;        // of 16 x 8 outputs

  static_assert(kRowWarps * kKeyWarps == kWarps && kGroupKeys % 16 == 0);
  static_assert(kLoadKeys * kChunks % kWarpSize == 0);
  static_assert(kRows * kCtasPerSm <= kMaxTileRowsPerSm);

  /// Barrier of all threads that do math.
  __device__ static void sync_math() { __syncthreads(); }
};

/// Two warpgroups do math, a third one copies; for compute capability 9.0. With 64 rows the two take every other key
/// tile and add up at the end; with 128 rows each has 64 of them and both meet every tile.
template <typename T_, int kDim_, int kRows_>
struct HopperTraits {
  using T = T_;
  static constexpr bool kHopper = true;
  static constexpr int kDim = kDim_;
  static constexpr int kRows = kRows_;
  static constexpr bool kAlternate = kRows == 64;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * kWarpSize;  // of the math
  static constexpr int kGroupThreads = 128;
  static constexpr int kCtaThreads = kThreads + kGroupThreads;
  static constexpr int kCtasPerSm = tile_ctas_per_sm(AttentionPath::kHopper, kRows);
  static constexpr int kKeyWarps = 1;
  static constexpr int kTileKeys = 64;
  static constexpr int kTilesPerUnit = kUnitKeys / kTileKeys;
  static constexpr int kGroupKeys = kTileKeys;
  static constexpr int kLoadKeys = kTileKeys / 4;
  static constexpr int kChunks = kDim / kChunkElements;
  static constexpr int kStages = kDim == 128 ? 5 : 10;
  static constexpr int kMatrixBytes = tile_bytes(kTileKeys, kDim);
  static constexpr int kStageBytes = 2 * kMatrixBytes;
  static constexpr int kRingBytes = kStages * kStageBytes;
  static constexpr bool kQueryInShared = false;
  // Half of each group's output and the statistics of its rows: see add_other_group().
  static constexpr int kExchangeVectors = kDim / 16;
  static constexpr int kExchangeBytes = kAlternate ? kThreads * (kExchangeVectors * 16 + 8) : 0;
  static constexpr int kSharedBytes = kRingBytes + kExchangeBytes + 1024;
  static constexpr int kScoreTiles = kTileKeys / 8;
  static constexpr int kValueTiles = kDim / 8;

  static_assert((kRows == 64 || kRows == 128) && (kDim == 64 || kDim == 128));
  static_assert(kRows * kCtasPerSm <= kMaxTileRowsPerSm);

  __device__ static void sync_math() { named_barrier(1, kThreads); }
};

/// Everything a launch of a tile kernel needs.
struct TileLaunch {
  AttentionParams params;
  AttentionPlan plan;
  int group_size = 1;               // query heads of a K/V head
  std::uint32_t group_inverse = 0;  // see Item::row_of
  int* counters = nullptr;          // [kCountersPerCta, num_ctas] parts that have come in; zero between launches
  float* partial_lse = nullptr;     // [2 * num_ctas, tile_rows], base 2
  float* partial = nullptr;         // [2 * num_ctas, tile_rows, padded_dim], normalised
};

/// The item of a piece, the same in all threads of a CTA.
struct Item {
  int group_size = 1;
  std::uint32_t group_inverse = 0;
  int kv_head = 0;
  int first_packed = 0;  // of the tile, within the sequence
  int num_packed = 0;    // of the sequence; the tile may end before its last row
  int row_begin = 0;     // rows of the sequence
  int num_rows = 0;
  int list_length = 0;
  int num_keys = 0;
  bool pages = true;
  NewMask mask = NewMask::kCausal;
  const Slot* entries = nullptr;  // [list_length] slots, or [pages]
  const Slot* slots = nullptr;    // [num_rows]
  int sink_units = 0;             // see SequencePlan
  int hidden_units = 0;

  /// packed / group_size. 2^32 / group_size, rounded up, makes a multiplication of it while packed * group_size < 2^32;
  /// 0 stands for 2^32.
  __device__ int row_of(int packed) const {
    return group_inverse == 0 ? packed : static_cast<int>(__umulhi(static_cast<unsigned>(packed), group_inverse));
  }
  __device__ int packed_in_tile(int tile_rows) const { return min(tile_rows, num_packed - first_packed); }
};

/// @param plan of the piece's sequence.
__device__ inline Item make_item(const TileLaunch& launch, const SequencePlan& plan, const Piece& piece,
                                 int tile_rows) {
  Item item;
  item.row_begin = plan.row_begin;
  item.num_rows = plan.num_rows;
  item.mask = plan.mask;
  item.group_size = launch.group_size;
  item.sink_units = plan.sink_units;
  item.hidden_units = plan.hidden_units;
  item.group_inverse = launch.group_inverse;
  item.kv_head = plan.row_tiles == 1 ? piece.item : piece.item / plan.row_tiles;  // few have more; division is slow
  item.first_packed = (piece.item - item.kv_head * plan.row_tiles) * tile_rows;
  item.num_packed = item.num_rows * item.group_size;
  item.list_length = plan.list_length;
  item.num_keys = plan.list_length + (item.mask == NewMask::kNone ? 0 : item.num_rows);
  item.pages = plan.pages;
  item.entries = launch.params.entries + plan.entries_offset;
  item.slots = launch.params.slots + item.row_begin;
  return item;
}

/// First key of tile `tile` of a piece that begins at unit `begin`, within the sequence.
template <typename Traits>
__device__ int tile_first_key(const Item& item, int begin, int tile) {
  return first_key(item.sink_units, item.hidden_units, begin + tile / Traits::kTilesPerUnit) +
         tile % Traits::kTilesPerUnit * Traits::kTileKeys;
}

__device__ inline PieceWalk walk_of_cta(const TileLaunch& launch, const CtaPlan& share) {
  return {launch.plan.sequences, share.low, share.high, share.sequence, share.row_tile, share.plan};
}

}  // namespace fastspec::cuda
