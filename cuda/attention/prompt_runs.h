// Which sequences of a pass flash attention over gathered keys answers, and in which launches. Pure functions of
// shapes; no CUDA header.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backend/params.h"

namespace fastspec::cuda {

/// Sequences [begin, end) of a pass that one launch answers.
struct PromptRun {
  int begin = 0;
  int end = 0;
  bool gathered = false;  // by flash attention over gathered keys; else by our own kernels over lists
  int first_row = 0;
  int num_rows = 0;
  int max_rows = 0;           // of one sequence
  int max_keys = 0;           // of one sequence, cached and new
  std::int64_t num_keys = 0;  // of all
};

/// One sequence as the choice sees it.
struct PromptShape {
  int num_rows = 0;
  int num_cached = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  bool hopper = false;  // our own kernel would be the one of warpgroup instructions
};

// Estimates for one H200, whose proportions serve other GPUs: attention_timing measures both sides.
constexpr double kHopperRate = 450e12;  // FLOP/s over all keys of all rows: our kernels skip no masked tile
constexpr double kMmaRate = 280e12;
constexpr double kFlashRate = 330e12;          // over the keys that are seen
constexpr double kGatherRate = 3.5e12;         // bytes/s, read and written
constexpr double kFlashStart = 40e-6;          // seconds: the gathering launch, torch's call, a copy of the output
constexpr double kFewestPackedRows = 4 * 128;  // below, rows share no tile worth gathering for
constexpr std::int64_t kMostGatheredRows = 1u << 30;  // keys and rows are 32-bit numbers to flash attention

inline double own_seconds(const PromptShape& shape) {
  const double keys = double(shape.num_cached) + shape.num_rows;
  return 4.0 * shape.num_heads * shape.head_dim * shape.num_rows * keys / (shape.hopper ? kHopperRate : kMmaRate);
}

inline double flash_seconds(const PromptShape& shape) {
  const double keys = double(shape.num_cached) + shape.num_rows;
  const double seen = shape.num_cached + 0.5 * shape.num_rows;
  const double gathered_bytes = 8.0 * shape.num_kv_heads * shape.head_dim * keys;  // K and V, read and written, 16-bit
  return kFlashStart + gathered_bytes / kGatherRate +
         4.0 * shape.num_heads * shape.head_dim * shape.num_rows * seen / kFlashRate;
}

inline bool flash_is_faster(const PromptShape& shape) {
  const double packed = double(shape.num_rows) * shape.num_heads / shape.num_kv_heads;
  return packed >= kFewestPackedRows && flash_seconds(shape) < own_seconds(shape);
}

/// Cuts the sequences of a pass into launches, in order. A gathered run holds at most `capacity` keys, and causal
/// sequences only; `is_gathered(num_rows, num_cached)` chooses among those.
template <typename Choice>
std::vector<PromptRun> cut_into_runs(const HostSequences& host, int num_sequences, std::int64_t capacity,
                                     const Choice& is_gathered) {
  std::vector<PromptRun> runs;
  for (int s = 0; s < num_sequences; ++s) {
    const int rows = host.row_offsets[s + 1] - host.row_offsets[s];
    const int keys = host.lists[s].length + rows;
    const bool gathered =
        rows > 1 && host.masks[s] == NewMask::kCausal && keys <= capacity && is_gathered(rows, host.lists[s].length);
    const bool joins = !runs.empty() && runs.back().gathered == gathered &&
                       (!gathered || runs.back().num_keys + keys <= std::min(capacity, kMostGatheredRows));
    if (!joins) runs.push_back({.begin = s, .end = s, .gathered = gathered, .first_row = host.row_offsets[s]});
    PromptRun& run = runs.back();
    run.end = s + 1;
    run.num_rows += rows;
    run.max_rows = std::max(run.max_rows, rows);
    run.max_keys = std::max(run.max_keys, keys);
    run.num_keys += keys;
  }
  return runs;
}

}  // namespace fastspec::cuda
