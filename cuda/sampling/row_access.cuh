// How blocks read rows of logits: where a task's row lies, four logits at a time, and the meeting of chunk statistics.
#pragma once

#include <cmath>

#include "common/warp.cuh"
#include "sampling/sampling.h"

namespace fastspec::cuda {

constexpr int kSamplingThreads = 256;
constexpr float kInfinity = INFINITY;

struct Row {
  const float* logits;
  int size;
  bool aligned;  // to 16 bytes
};

__device__ __forceinline__ Row make_row(const float* logits, int size) {
  return {logits, size, reinterpret_cast<std::uintptr_t>(logits) % 16 == 0};
}

/// A task as the host packed it, or what the row and the rule of a proposal make.
__device__ __forceinline__ RowTask task_at(const SamplingBatch& batch, int index) {
  if (batch.tasks != nullptr) return batch.tasks[index];
  RowTask task{};
  task.logits_row = index;
  task.rule = index / batch.rows_per_rule;
  const DeviceRule& rule = batch.rules[task.rule];
  task.position = static_cast<std::uint32_t>(batch.positions[index] + 1);
  task.first_path = index * batch.path_length;
  task.path_length = batch.path_length;
  task.adjusted_row = -1;
  task.filter_row = rule.filters ? index - batch.first_task : -1;
  task.penalises = rule.penalises && (rule.num_counts > 0 || batch.path_length > 0);
  task.forbids = rule.num_forbidden > 0 && batch.path_length < rule.num_forbidding;
  task.proposes = rule.is_used;
  return task;
}

/// Whether a row has nothing to propose, whatever its logits are.
__device__ __forceinline__ bool is_idle(const SamplingBatch& batch, const RowTask& task) {
  return batch.tasks == nullptr && !task.proposes;
}

__device__ __forceinline__ Row raw_row(const SamplingBatch& batch, const RowTask& task) {
  const float* logits = static_cast<const float*>(batch.logits.data) + task.logits_row * batch.logits.stride;
  return make_row(logits, batch.logits.cols);
}

__device__ __forceinline__ float* adjusted_logits(const SamplingBatch& batch, int adjusted_row) {
  return batch.adjusted + adjusted_row * batch.adjusted_stride;
}

/// The row after penalties, bias and forbidden tokens.
__device__ __forceinline__ Row final_row(const SamplingBatch& batch, const RowTask& task) {
  if (task.adjusted_row < 0) return raw_row(batch, task);
  return make_row(adjusted_logits(batch, task.adjusted_row), batch.logits.cols);
}

/// Logits first .. first + 3; beyond the row's end -inf. `first` is a multiple of 4.
__device__ __forceinline__ float4 load_quad(const Row& row, int first) {
  if (row.aligned && first + 4 <= row.size) return *reinterpret_cast<const float4*>(row.logits + first);
  float4 quad;
  quad.x = first < row.size ? row.logits[first] : -kInfinity;
  quad.y = first + 1 < row.size ? row.logits[first + 1] : -kInfinity;
  quad.z = first + 2 < row.size ? row.logits[first + 2] : -kInfinity;
  quad.w = first + 3 < row.size ? row.logits[first + 3] : -kInfinity;
  return quad;
}

/// Calls visit(first token, quad) for the quads of [begin, end) that are this thread's, four loads in flight.
template <typename Visit>
__device__ __forceinline__ void for_each_quad(const Row& row, int begin, int end, Visit&& visit) {
  constexpr int kInFlight = 4;
  constexpr int kStep = 4 * kSamplingThreads;
  for (int first = begin + 4 * static_cast<int>(threadIdx.x); first < end; first += kInFlight * kStep) {
    float4 quads[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i * kStep < end) quads[i] = load_quad(row, first + i * kStep);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i * kStep < end) visit(first + i * kStep, quads[i]);
    }
  }
}

/// exp(value - top), 1 where they are the same infinity.
__device__ __forceinline__ float term(float value, float top) {
  return value == top ? 1.0f : __expf(value - top);
}

__device__ __forceinline__ RowStatistics no_statistics() {
  return {-kInfinity, -kInfinity, kInfinity, 0.0f, 0x7fffffff, false};
}

__device__ __forceinline__ RowStatistics combine(const RowStatistics& a, const RowStatistics& b) {
  const bool second_wins = b.top > a.top || (b.top == a.top && b.token < a.token);
  RowStatistics result;
  result.top = fmaxf(a.top, b.top);
  result.second = fmaxf(fminf(a.top, b.top), fmaxf(a.second, b.second));
  result.lowest = fminf(a.lowest, b.lowest);
  result.sum = a.sum * term(a.top, result.top) + b.sum * term(b.top, result.top);
  result.token = second_wins ? b.token : a.token;
  result.has_nan = a.has_nan || b.has_nan;
  return result;
}

/// Over a warp, in every lane.
__device__ __forceinline__ RowStatistics warp_combine(RowStatistics value) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    RowStatistics other;
    other.top = __shfl_xor_sync(kAllLanes, value.top, distance);
    other.second = __shfl_xor_sync(kAllLanes, value.second, distance);
    other.lowest = __shfl_xor_sync(kAllLanes, value.lowest, distance);
    other.sum = __shfl_xor_sync(kAllLanes, value.sum, distance);
    other.token = __shfl_xor_sync(kAllLanes, value.token, distance);
    other.has_nan = __shfl_xor_sync(kAllLanes, static_cast<int>(value.has_nan), distance) != 0;
    value = combine(value, other);
  }
  return value;
}

/// A row's statistics from those of its chunks; for whole warps, in every lane.
__device__ __forceinline__ RowStatistics gather_statistics(const RowStatistics* chunks, int num_chunks) {
  RowStatistics result = no_statistics();
  for (int chunk = static_cast<int>(threadIdx.x) % kWarpSize; chunk < num_chunks; chunk += kWarpSize) {
    result = combine(result, chunks[chunk]);
  }
  return warp_combine(result);
}

__device__ __forceinline__ RowStatistics raw_statistics(const SamplingBatch& batch, int task_index) {
  return gather_statistics(batch.statistics + std::int64_t{task_index} * batch.num_chunks, batch.num_chunks);
}

/// After penalties, bias and forbidden tokens; has_nan also where the logits as they came hold one.
__device__ __forceinline__ RowStatistics final_statistics(const SamplingBatch& batch, int task_index) {
  const RowStatistics raw = raw_statistics(batch, task_index);
  const int adjusted_row = batch.tasks == nullptr ? -1 : batch.tasks[task_index].adjusted_row;
  if (adjusted_row < 0) return raw;
  RowStatistics result =
      gather_statistics(batch.adjusted_statistics + std::int64_t{adjusted_row} * batch.num_chunks, batch.num_chunks);
  result.has_nan = result.has_nan || raw.has_nan;
  return result;
}

/// Whether nothing can be drawn.
__device__ __forceinline__ bool is_hopeless(const RowStatistics& statistics) {
  return statistics.has_nan || statistics.top == -kInfinity;
}

/// Whether the largest logit is drawn, without noise.
__device__ __forceinline__ bool is_greedy(const RowStatistics& statistics, const DeviceRule& rule) {
  return rule.temperature == 0 || statistics.top == kInfinity;
}

}  // namespace fastspec::cuda
