// Where a 16-byte chunk of a row lies in a shared-memory tile of 16-bit elements. Pure functions.
//
// A tile is cut into blocks of 64 columns; a block is [rows][128 bytes], and chunk c of row r lies at c ^ (r % 8):
// eight rows read at one column meet eight different bank groups, and the warpgroup matrix instructions know this
// layout as the 128-byte swizzle (blocks must start at multiples of 1024 bytes for that).
#pragma once

#include "common/host_device.h"

namespace fastspec::cuda {

constexpr int kChunkElements = 8;  // 16 bytes
constexpr int kBlockColumns = 64;  // 128 bytes
constexpr int kBlockRowBytes = 128;
constexpr int kChunksPerBlock = kBlockColumns / kChunkElements;

/// Bytes of a tile of `rows` x `columns`.
FS_HOST_DEVICE constexpr int tile_bytes(int rows, int columns) {
  return (columns + kBlockColumns - 1) / kBlockColumns * rows * kBlockRowBytes;
}

/// Byte offset of chunk `chunk` (columns 8 * chunk ...) of row `row` in a tile of `rows` rows.
FS_HOST_DEVICE constexpr int chunk_offset(int rows, int row, int chunk) {
  return chunk / kChunksPerBlock * rows * kBlockRowBytes + row * kBlockRowBytes +
         ((chunk % kChunksPerBlock) ^ (row % 8)) * 16;
}

}  // namespace fastspec::cuda
