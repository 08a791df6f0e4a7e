// Log-probability of a token under the logits as they came.
#pragma once

#include "sampling/row_access.cuh"

namespace fastspec::cuda {

__device__ __forceinline__ float logprob(float logit, const RowStatistics& raw) {
  if (raw.top == kInfinity) return logit == kInfinity ? -logf(raw.sum) : -kInfinity;
  return (logit - raw.top) - logf(raw.sum);
}

}  // namespace fastspec::cuda
