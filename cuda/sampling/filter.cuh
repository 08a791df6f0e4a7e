// What top-k, top-p and min-p keep is a beginning of the tokens in order of their keys, so one key says it: the cutoff.
// The pieces that the two filter kernels share: bins of a histogram over logits, and masses, which are integers so that
// their sums have no order.
#pragma once

#include "sampling/keys.cuh"
#include "sampling/row_access.cuh"

namespace fastspec::cuda {

constexpr int kLowMassBits = 19;
constexpr float kMassUnit = 0x1p37f;  // of the most probable token; a chunk's sum fits in two 32-bit words

/// exp((logit - top) / temperature) in units.
__device__ __forceinline__ std::uint64_t mass_of(float logit, float top, float temperature) {
  return __float2ull_rn(expf((logit - top) / temperature) * kMassUnit);
}

__device__ __forceinline__ int bin_of(float logit, float top, float scale) {
  return static_cast<int>(fminf((top - logit) * scale, static_cast<float>(kBins - 1)));
}

/// Bins per unit of logit. Far tokens share the last bin: they rarely matter.
__device__ __forceinline__ float bin_scale(const RowStatistics& statistics, float temperature) {
  const float range = fminf(statistics.top - statistics.lowest, 32.0f * fmaxf(1.0f, temperature));
  return range > 1e-20f ? static_cast<float>(kBins - 1) / range : 0.0f;
}

__device__ __forceinline__ bool filters_by_count(const DeviceRule& rule, int vocab_size) {
  return rule.top_k > 0 && rule.top_k < vocab_size;
}

__device__ __forceinline__ bool filters_by_mass(const DeviceRule& rule) {
  return rule.top_p < 1.0f;
}

/// The least mass that reaches top_p of `total`.
__device__ __forceinline__ std::uint64_t mass_target(float top_p, std::uint64_t total) {
  return static_cast<std::uint64_t>(ceil(static_cast<double>(fmaxf(top_p, 0.0f)) * static_cast<double>(total)));
}

/// The task of a row of the filter arrays.
__device__ __forceinline__ int filtered_task(const SamplingBatch& batch, int filter_row) {
  return batch.filtered_tasks != nullptr ? batch.filtered_tasks[filter_row] : batch.first_task + filter_row;
}

/// Whether this block is the last of a row's chunks to get here; resets the counter then. What the other blocks wrote
/// before is visible to the last.
__device__ __forceinline__ bool is_last_arrival(unsigned* arrivals, int num_chunks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const auto limit = static_cast<unsigned>(num_chunks - 1);
    last = atomicInc(arrivals, limit) == limit;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

}  // namespace fastspec::cuda
