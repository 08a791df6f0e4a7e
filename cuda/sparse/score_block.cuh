// What the kernels of logits have in common: which packed rows and keys a block has, and how it leaves the chunk's
// statistics. A block is (chunk of keys, unit, sequence of the slice); its warps take groups of 32 keys in turn.
#pragma once

#include <cmath>

#include "common/warp.cuh"
#include "sparse/sparse.h"
#include "sparse/stored_logit.cuh"

namespace fastspec::cuda {

constexpr int kScoreWarps = 4;
constexpr int kScoreThreads = kScoreWarps * kWarpSize;
constexpr int kGroupsOfChunk = kScoreChunk / kScoreGroup;
constexpr float kLog2E = 1.4426950408889634f;

struct ScoreArguments {
  ScoreKeysParams params;
  const void* bounds = nullptr;
  ScoreWork work;
  ScoreMemory memory;
  int first_sequence = 0;
};

/// Largest logit of every group of the chunk and the sum of 2^(logit - largest): -inf and 0 where there is no key.
struct ChunkStatistics {
  float top[kScorePacked][kGroupsOfChunk];
  float sum[kScorePacked][kGroupsOfChunk];
};

/// The block's share of a call.
struct ScoreBlock {
  const ScoreUnit& unit;
  const KvList* list;
  std::int32_t length;     // keys of the sequence
  std::int32_t first_key;  // of the chunk
  int row_begin;           // entry of the unit's first row in ScoreKeysParams::rows
  int num_packed;          // of the unit; 0 = nothing to do
  std::int64_t packed;     // the first of them among all of the slice

  __device__ __forceinline__ explicit ScoreBlock(const ScoreArguments& arguments)
      : unit(arguments.work.units[blockIdx.y]) {
    const ScoreKeysParams& params = arguments.params;
    const int sequence = arguments.first_sequence + static_cast<int>(blockIdx.z);
    list = params.lists + sequence;
    length = list->length;
    first_key = static_cast<std::int32_t>(blockIdx.x) * kScoreChunk;
    row_begin = params.row_offsets[sequence] + unit.first_row;
    num_packed = unit.rows_of(params.row_offsets[sequence + 1] - params.row_offsets[sequence]) * unit.num_heads;
    if (first_key >= length) num_packed = 0;
    packed = std::int64_t{blockIdx.z} * arguments.work.num_packed + unit.packed;
  }

  /// Query of packed row p.
  template <typename T>
  __device__ __forceinline__ const T* query(const ScoreArguments& arguments, int p) const {
    const ScoreKeysParams& params = arguments.params;
    const int entry = row_begin + p / unit.num_heads;
    const int row = params.rows != nullptr ? params.rows[entry] : entry;
    const int head = arguments.work.heads[unit.first_head + p % unit.num_heads];
    return static_cast<const T*>(params.query.data) + row * params.query.stride +
           std::int64_t{head} * params.kv.head_dim;
  }

  /// Where K of a key lies, in elements from the pool's base.
  __device__ __forceinline__ std::int64_t key_offset(const ScoreKeysParams& params, std::int32_t key) const {
    const KvView& kv = params.kv;
    const Slot* entries = params.entries + list->offset;
    const int in_page = (1 << kv.page_shift) - 1;
    const Slot slot = list->pages ? 0 : entries[key];
    const Slot page = list->pages ? entries[key >> kv.page_shift] : slot >> kv.page_shift;
    const std::int64_t offset = (list->pages ? key : static_cast<std::int32_t>(slot & in_page)) & in_page;
    return page * kv.page_stride + unit.kv_head * kv.head_stride + offset * kv.slot_stride;
  }

  template <typename Logit>
  __device__ __forceinline__ Logit* logits(const ScoreArguments& arguments, int p) const {
    return static_cast<Logit*>(arguments.memory.logits) + (packed + p) * arguments.work.key_stride;
  }

  /// Statistics of the chunk's groups, which all threads have written, to the workspace. All threads call it.
  __device__ __forceinline__ void finish(const ScoreArguments& arguments, const ChunkStatistics& statistics) const {
    __syncthreads();
    const int chunk = static_cast<int>(blockIdx.x);
    const int num_groups = (min(length - first_key, kScoreChunk) + kScoreGroup - 1) / kScoreGroup;
    for (int i = static_cast<int>(threadIdx.x); i < num_packed * kGroupsOfChunk; i += kScoreThreads) {
      const int p = i / kGroupsOfChunk, group = i % kGroupsOfChunk;
      if (group >= num_groups) continue;
      arguments.memory.tops[(packed + p) * arguments.work.num_groups() + chunk * kGroupsOfChunk + group] =
          statistics.top[p][group];
    }
    for (int p = static_cast<int>(threadIdx.x); p < num_packed; p += kScoreThreads) {
      float top = -INFINITY, sum = 0;
      for (int group = 0; group < num_groups; ++group) top = fmaxf(top, statistics.top[p][group]);
      for (int group = 0; group < num_groups; ++group) {
        sum += statistics.sum[p][group] * exp2f(statistics.top[p][group] - top);
      }
      arguments.memory.lse[(packed + p) * arguments.work.num_chunks() + chunk] = top + log2f(sum);
    }
  }
};

}  // namespace fastspec::cuda
