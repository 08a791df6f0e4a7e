// First passes over rows of logits: statistics, the copy of rows that a rule changes, and those changes.
#include "sampling/row_access.cuh"
#include "sampling/sampling.h"

namespace fastspec::cuda {
namespace {

constexpr int kWarps = kSamplingThreads / kWarpSize;

/// One thread's running statistics; tokens come in ascending order.
template <bool kWithSum>
__device__ __forceinline__ void add_quad(RowStatistics& running, int token, const float4& quad) {
  const float values[4] = {quad.x, quad.y, quad.z, quad.w};
  const float before = running.top;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float value = values[i];
    running.has_nan = running.has_nan || value != value;
    running.lowest = fminf(running.lowest, value == -kInfinity ? kInfinity : value);
    running.second = fmaxf(running.second, fminf(running.top, value));
    if (value > running.top) {
      running.top = value;
      running.token = token + i;
    }
  }
  if constexpr (kWithSum) {
    if (running.top != before) running.sum *= term(before, running.top);
#pragma unroll
    for (int i = 0; i < 4; ++i) running.sum += term(values[i], running.top);
  }
}

/// Statistics of a block's threads, valid in the first warp.
__device__ RowStatistics block_combine(RowStatistics value) {
  __shared__ RowStatistics warps[kWarps];
  value = warp_combine(value);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  if (lane == 0) warps[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  return warp_combine(lane < kWarps ? warps[lane] : no_statistics());
}

template <typename Visit>
__device__ RowStatistics scan_chunk(const Row& row, int begin, int end, bool with_sum, Visit&& visit) {
  RowStatistics running = no_statistics();
  if (with_sum) {
    for_each_quad(row, begin, end, [&](int token, const float4& quad) {
      add_quad<true>(running, token, quad);
      visit(token, quad);
    });
  } else {
    for_each_quad(row, begin, end, [&](int token, const float4& quad) {
      add_quad<false>(running, token, quad);
      visit(token, quad);
    });
  }
  return block_combine(running);
}

/// Block (chunk, task of the slice).
__global__ void __launch_bounds__(kSamplingThreads) raw_statistics_kernel(SamplingBatch batch) {
  const int task_index = batch.first_task + static_cast<int>(blockIdx.y);
  const RowTask task = task_at(batch, task_index);
  if (is_idle(batch, task)) return;
  const Row row = raw_row(batch, task);
  const int begin = static_cast<int>(blockIdx.x) * batch.chunk_size;
  const int end = min(begin + batch.chunk_size, row.size);
  float* copy = task.adjusted_row < 0 ? nullptr : adjusted_logits(batch, task.adjusted_row);
  const RowStatistics result = scan_chunk(row, begin, end, task.wants_logprob, [&](int token, const float4& quad) {
    // Rows of the copy are whole quads.
    if (copy != nullptr) *reinterpret_cast<float4*>(copy + token) = quad;
  });
  if (threadIdx.x == 0) batch.statistics[std::int64_t{task_index} * batch.num_chunks + blockIdx.x] = result;
}

/// Block (chunk, adjusted row).
__global__ void __launch_bounds__(kSamplingThreads) adjusted_statistics_kernel(SamplingBatch batch) {
  const RowTask task = batch.tasks[batch.adjusted_tasks[blockIdx.y]];
  const Row row = final_row(batch, task);
  const int begin = static_cast<int>(blockIdx.x) * batch.chunk_size;
  const int end = min(begin + batch.chunk_size, row.size);
  const RowStatistics result = scan_chunk(row, begin, end, task.wants_logprob, [](int, const float4&) {});
  if (threadIdx.x == 0) {
    batch.adjusted_statistics[std::int64_t{task.adjusted_row} * batch.num_chunks + blockIdx.x] = result;
  }
}

/// As the CPU computes it, every step rounded.
__device__ float penalised(float logit, const DeviceRule& rule, int in_output, bool in_prompt) {
  if (in_output == 0 && !in_prompt) return logit;
  logit = logit > 0 ? __fdiv_rn(logit, rule.repetition_penalty) : __fmul_rn(logit, rule.repetition_penalty);
  if (in_output == 0) return logit;
  const float frequency = __fmul_rn(rule.frequency_penalty, static_cast<float>(in_output));
  return __fsub_rn(__fsub_rn(logit, frequency), rule.presence_penalty);
}

__device__ void apply_penalties(const SamplingBatch& batch, const RowTask& task, const DeviceRule& rule,
                                float* logits) {
  __shared__ unsigned counted[kMaxPath / 32];  // tokens of the path that the history holds too
  const int thread = static_cast<int>(threadIdx.x);
  const TokenId* path = batch.tokens + task.first_path;
  for (int i = thread; i < kMaxPath / 32; i += kSamplingThreads) counted[i] = 0;
  __syncthreads();
  for (int i = thread; i < rule.num_counts; i += kSamplingThreads) {
    TokenCount entry = rule.counts[i];
    for (int k = 0; k < task.path_length; ++k) {
      if (path[k] != entry.token) continue;
      entry.in_output += 1;
      atomicOr(&counted[k / 32], 1u << (k % 32));
    }
    logits[entry.token] = penalised(logits[entry.token], rule, entry.in_output, entry.in_prompt);
  }
  __syncthreads();
  for (int k = thread; k < task.path_length; k += kSamplingThreads) {
    if (counted[k / 32] >> (k % 32) & 1u) continue;
    int occurrences = 0;
    bool first = true;
    for (int other = 0; other < task.path_length; ++other) {
      if (path[other] != path[k]) continue;
      ++occurrences;
      first = first && other >= k;
    }
    if (first) logits[path[k]] = penalised(logits[path[k]], rule, occurrences, false);
  }
  __syncthreads();
}

/// What the rule does to a row, in one block. NaN stays, so that it is seen later.
__device__ void adjust_row(const SamplingBatch& batch, const RowTask& task, const DeviceRule& rule, float* logits) {
  const int thread = static_cast<int>(threadIdx.x);
  if (task.penalises) apply_penalties(batch, task, rule, logits);
  const LogitBias* bias = rule.bias;
  for (int i = thread; i < rule.num_bias; i += kSamplingThreads) {
    if (i > 0 && bias[i - 1].token == bias[i].token) continue;  // added by the first of its token
    float logit = logits[bias[i].token];
    for (int k = i; k < rule.num_bias && bias[k].token == bias[i].token; ++k) logit = __fadd_rn(logit, bias[k].bias);
    logits[bias[i].token] = logit;
  }
  __syncthreads();
  if (!task.forbids) return;
  for (int i = thread; i < rule.num_forbidden; i += kSamplingThreads) {
    float& logit = logits[rule.forbidden[i]];
    if (logit == logit) logit = -kInfinity;
  }
}

/// One block an adjusted row, which is a copy.
__global__ void __launch_bounds__(kSamplingThreads) adjust_copies_kernel(SamplingBatch batch) {
  const RowTask task = batch.tasks[batch.adjusted_tasks[blockIdx.x]];
  adjust_row(batch, task, batch.rules[task.rule], adjusted_logits(batch, task.adjusted_row));
}

/// One block a row of proposals, whose logits nobody else reads.
__global__ void __launch_bounds__(kSamplingThreads) adjust_kernel(SamplingBatch batch) {
  const RowTask task = task_at(batch, batch.first_task + static_cast<int>(blockIdx.x));
  if (is_idle(batch, task)) return;
  float* logits = static_cast<float*>(batch.logits.data) + task.logits_row * batch.logits.stride;
  adjust_row(batch, task, batch.rules[task.rule], logits);
}

}  // namespace

void launch_adjustments(const SamplingBatch& batch, cudaStream_t stream) {
  if (batch.num_tasks == 0) return;
  adjust_kernel<<<batch.num_tasks, kSamplingThreads, 0, stream>>>(batch);
}

void launch_statistics(const SamplingBatch& batch, cudaStream_t stream) {
  if (batch.num_tasks == 0) return;
  raw_statistics_kernel<<<dim3(batch.num_chunks, batch.num_tasks), kSamplingThreads, 0, stream>>>(batch);
  if (batch.num_adjusted == 0) return;
  adjust_copies_kernel<<<batch.num_adjusted, kSamplingThreads, 0, stream>>>(batch);
  adjusted_statistics_kernel<<<dim3(batch.num_chunks, batch.num_adjusted), kSamplingThreads, 0, stream>>>(batch);
}

}  // namespace fastspec::cuda
