// How a call of score_keys is cut into work for kernels, and where its logits lie in the workspace. Pure functions of
// the host's arguments, shared with the device; tested without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/params.h"
#include "common/host_device.h"

namespace fastspec::cuda {

constexpr int kScoreGroup = 32;   // keys that share one reference of their logits: those of a warp
constexpr int kScoreChunk = 512;  // keys of a block
constexpr int kScorePacked = 64;  // packed rows (row x named head of a K/V head) that read K together
constexpr int kMaxScoreUnits = 128;

/// Packed rows of one K/V head that read its keys together: packed row p is row first_row + p / num_heads of the
/// sequence and named head first_head + p % num_heads.
struct ScoreUnit {
  std::int16_t kv_head = 0;
  std::int16_t first_head = 0;  // into ScoreWork::heads
  std::int16_t num_heads = 0;
  std::int16_t first_row = 0;
  std::int32_t packed = 0;  // of a sequence, before this unit

  FS_HOST_DEVICE int rows() const { return kScorePacked / num_heads; }
  /// How many of its rows a sequence has.
  FS_HOST_DEVICE int rows_of(int sequence_rows) const {
    const int left = sequence_rows - first_row;
    return left < 0 ? 0 : left < rows() ? left : rows();
  }
};

/// What kernels need beside ScoreKeysParams; travels by value.
struct ScoreWork {
  std::int16_t heads[kMaxScoredHeads] = {};
  ScoreUnit units[kMaxScoreUnits];  // of one K/V head one after another, by row
  int num_units = 0;
  int num_packed = 0;           // of a sequence
  std::int64_t key_stride = 0;  // logits from one packed row to the next; whole chunks

  FS_HOST_DEVICE int num_groups() const { return static_cast<int>(key_stride / kScoreGroup); }
  FS_HOST_DEVICE int num_chunks() const { return static_cast<int>(key_stride / kScoreChunk); }
};

/// @returns false where the call needs more than kMaxScoreUnits units.
inline bool cut_into_units(const ScoreKeysParams& params, ScoreWork& work) {
  work.num_units = 0;
  work.num_packed = 0;
  work.key_stride = (std::int64_t{params.max_keys} + kScoreChunk - 1) / kScoreChunk * kScoreChunk;
  const int group_size = params.num_heads / params.kv.num_kv_heads;
  for (int head = 0; head < params.num_scored_heads; ++head) {
    work.heads[head] = static_cast<std::int16_t>(params.heads[head]);
  }
  for (int first = 0, end; first < params.num_scored_heads; first = end) {
    const int kv_head = params.heads[first] / group_size;
    end = first + 1;
    while (end < params.num_scored_heads && end - first < kScorePacked && params.heads[end] / group_size == kv_head) {
      ++end;
    }
    ScoreUnit unit;
    unit.kv_head = static_cast<std::int16_t>(kv_head);
    unit.first_head = static_cast<std::int16_t>(first);
    unit.num_heads = static_cast<std::int16_t>(end - first);
    for (int row = 0; row < params.max_rows_per_sequence; row += unit.rows()) {
      if (work.num_units == kMaxScoreUnits) return false;
      unit.first_row = static_cast<std::int16_t>(row);
      unit.packed = work.num_packed;
      work.num_packed += unit.rows_of(params.max_rows_per_sequence) * unit.num_heads;
      work.units[work.num_units++] = unit;
    }
  }
  return true;
}

/// Where a slice of sequences has its logits. All arrays are [sequences of the slice, num_packed, ...].
struct ScoreMemory {
  void* logits = nullptr;  // [..., key_stride] base 2, less the group's largest; float32 of float32 keys, else fp16
  float* tops = nullptr;   // [..., num_groups] the group's largest
  float* lse = nullptr;    // [..., num_chunks] base-2 log of the sum of a chunk
};

/// Bytes of one sequence.
inline std::size_t score_bytes(std::int64_t key_stride, int num_packed, std::size_t logit_bytes) {
  const auto keys = static_cast<std::size_t>(key_stride);
  return static_cast<std::size_t>(num_packed) *
         (keys * logit_bytes + (keys / kScoreGroup + keys / kScoreChunk) * sizeof(float));
}

inline ScoreMemory score_memory_at(void* place, const ScoreWork& work, int num_sequences, std::size_t logit_bytes) {
  const std::size_t rows = static_cast<std::size_t>(work.num_packed) * static_cast<std::size_t>(num_sequences);
  ScoreMemory memory;
  memory.logits = place;
  memory.tops = reinterpret_cast<float*>(static_cast<std::byte*>(place) +
                                         rows * static_cast<std::size_t>(work.key_stride) * logit_bytes);
  memory.lse = memory.tops + rows * static_cast<std::size_t>(work.num_groups());
  return memory;
}

}  // namespace fastspec::cuda
