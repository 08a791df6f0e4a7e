// Makes the plan of one step and list class on the device: one small CTA, no host round trip. Reads lengths, not K/V.
#include "attention/attention.h"
#include "common/warp.cuh"

namespace fastspec::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;

/// Lowest position of rows [begin, end); every lane of the warp gets it.
__device__ int lowest_position(const std::int32_t* positions, int begin, int end) {
  int highest_negated = -0x7fffffff;
  for (int row = begin + static_cast<int>(threadIdx.x % kWarpSize); row < end; row += kWarpSize) {
    highest_negated = max(highest_negated, -positions[row]);
  }
  return -warp_max(highest_negated);
}

/// Everything of a sequence's plan but its place in the line; one warp a sequence.
__device__ void plan_sequences(const AttentionPlanParams& params) {
  const int group_size = params.num_heads / params.num_kv_heads;
  for (int s = static_cast<int>(threadIdx.x) / kWarpSize; s < params.num_sequences; s += kWarps) {
    const int begin = params.row_offsets[s];
    const int end = params.row_offsets[s + 1];
    const KvList list = params.lists[s];
    SequenceFacts facts;
    facts.num_rows = end - begin;
    facts.list_length = list.length;
    facts.pages = list.pages;
    facts.mask = params.masks[s];
    if (params.window > 0 && list.pages && end > begin) {
      facts.lowest_position = lowest_position(params.positions, begin, end);
    }
    const SequencePlan plan = plan_sequence(facts, group_size, params.config.tile_rows, params.window, params.sinks);
    if (threadIdx.x % kWarpSize == 0) params.plan.sequences[s] = plan;
  }
}

/// Inclusive prefix sum over the CTA; `sums` is [kThreads].
__device__ std::int64_t prefix_sum(std::int64_t value, std::int64_t* sums) {
  const int thread = static_cast<int>(threadIdx.x);
  sums[thread] = value;
  __syncthreads();
  for (int distance = 1; distance < kThreads; distance *= 2) {
    const std::int64_t before = thread >= distance ? sums[thread - distance] : 0;
    __syncthreads();
    value += before;
    sums[thread] = value;
    __syncthreads();
  }
  return value;
}

/// Puts the sequences in line; returns the total, the same for every thread.
__device__ std::int64_t place_sequences(const AttentionPlanParams& params, std::int64_t* sums) {
  std::int64_t total = 0;
  for (int base = 0; base < params.num_sequences; base += kThreads) {
    const int s = base + static_cast<int>(threadIdx.x);
    std::int64_t units = 0;
    if (s < params.num_sequences) units = total_units(params.plan.sequences[s], params.num_kv_heads);
    const std::int64_t end = total + prefix_sum(units, sums);
    if (s < params.num_sequences) params.plan.sequences[s].start = end - units;
    total += sums[kThreads - 1];
    __syncthreads();  // before the next round overwrites sums
  }
  return total;
}

__global__ void __launch_bounds__(kThreads) attention_plan_kernel(const __grid_constant__ AttentionPlanParams params) {
  __shared__ std::int64_t sums[kThreads];
  plan_sequences(params);
  __syncthreads();
  const std::int64_t total = place_sequences(params, sums);
  if (threadIdx.x == 0) {
    SequencePlan last;
    last.start = total;
    params.plan.sequences[params.num_sequences] = last;
  }
  __syncthreads();
  for (int cta = static_cast<int>(threadIdx.x); cta < params.config.num_ctas; cta += kThreads) {
    const Share share = share_of(total, cta, params.config.num_ctas);
    CtaPlan plan;
    plan.low = share.low;
    plan.high = share.high;
    plan.sequence = sequence_of_unit(params.plan.sequences, params.num_sequences, share.low);
    params.plan.ctas[cta] = plan;
  }
}

}  // namespace

cudaError_t launch_attention_plan(const AttentionPlanParams& params, cudaStream_t stream) {
  if (params.config.path == AttentionPath::kPlain || params.num_sequences == 0) return cudaSuccess;
  if (params.num_sequences < 0 || params.num_kv_heads <= 0 || params.num_heads % params.num_kv_heads != 0 ||
      params.window < 0 || params.sinks < 0 || params.config.tile_rows <= 0 || params.config.num_ctas <= 0) {
    return cudaErrorInvalidValue;
  }
  attention_plan_kernel<<<1, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace fastspec::cuda
