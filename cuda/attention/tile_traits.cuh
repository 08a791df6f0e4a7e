// The shape of one tile kernel as compile-time constants, and the facts of the item at hand. No code of the math.
//
// A CTA works on tiles of kRows packed rows x kTileKeys keys. Its warps stand in a grid: kRowWarps rows of 16 packed
// rows by kKeyWarps groups of keys. Up to 16 packed rows every warp has keys of its own; from 64 on all warps share
// them.
#pragma once

#include "attention/attention.h"
#include "attention/swizzle.h"
#include "common/element.cuh"
#include "common/warp.cuh"

// 1 where the code being compiled may use warpgroup instructions.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FS_HOPPER_DEVICE 1
#else
#define FS_HOPPER_DEVICE 0
#endif

namespace fastspec::cuda {

template <typename T_, int kDim_, int kRows_, bool kHopper_>
struct TileTraits {
  using T = T_;
  static constexpr int kDim = kDim_;    // head_dim, padded
  static constexpr int kRows = kRows_;  // packed rows
  static constexpr bool kHopper = kHopper_;
  static constexpr int kWarps = kRows == 128 ? 8 : 4;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kCtasPerSm = kRows == 128 ? 1 : 2;
  static constexpr int kRowWarps = kRows / 16;
  static constexpr int kKeyWarps = kWarps / kRowWarps;
  static constexpr int kTileKeys = kDim > 128 ? 32 : 64;
  static constexpr int kTilesPerUnit = kUnitKeys / kTileKeys;
  static constexpr int kGroupKeys = kTileKeys / kKeyWarps;  // keys of a tile that one warp attends to
  static constexpr int kLoadKeys = kTileKeys / kWarps;      // keys of a tile that one warp copies
  static constexpr int kChunks = kDim / kChunkElements;
  static constexpr int kStages = kDim > 128 ? 2 : (kHopper && kRows == 128 ? 5 : 3);
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
  static_assert(!kHopper || (kKeyWarps == 1 && (kDim == 64 || kDim == 128)));
};

/// Everything a launch of a tile kernel needs.
struct TileLaunch {
  AttentionParams params;
  AttentionPlan plan;
  int group_size = 1;            // query heads of a K/V head
  int* counters = nullptr;       // [num_ctas] pieces of the item that starts as this CTA's last; zero between launches
  float* partial_lse = nullptr;  // [2 * num_ctas, tile_rows], base 2
  float* partial = nullptr;      // [2 * num_ctas, tile_rows, padded_dim], normalised
};

/// The item of a piece, the same in all threads of a CTA.
struct Item {
  int group_size = 1;
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

  __device__ int packed_in_tile(int tile_rows) const { return min(tile_rows, num_packed - first_packed); }
};

__device__ inline Item load_item(const TileLaunch& launch, const Piece& piece, int tile_rows) {
  const AttentionParams& params = launch.params;
  Item item;
  const SequencePlan plan = launch.plan.sequences[piece.sequence];
  const KvList list = params.lists[piece.sequence];
  item.row_begin = params.row_offsets[piece.sequence];
  item.num_rows = params.row_offsets[piece.sequence + 1] - item.row_begin;
  item.mask = params.masks[piece.sequence];
  item.group_size = launch.group_size;
  item.sink_units = plan.sink_units;
  item.hidden_units = plan.hidden_units;
  item.kv_head = piece.item / plan.row_tiles;
  item.first_packed = piece.item % plan.row_tiles * tile_rows;
  item.num_packed = item.num_rows * item.group_size;
  item.list_length = list.length;
  item.num_keys = list.length + (item.mask == NewMask::kNone ? 0 : item.num_rows);
  item.pages = list.pages;
  item.entries = params.entries + list.offset;
  item.slots = params.slots + item.row_begin;
  return item;
}

}  // namespace fastspec::cuda
