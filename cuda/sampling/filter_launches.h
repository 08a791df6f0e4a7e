// The two halves of launch_filters.
#pragma once

#include <cuda_runtime_api.h>

#include "sampling/sampling.h"

namespace fastspec::cuda {

void launch_histogram(const SamplingBatch& batch, cudaStream_t stream);
void launch_cutoff(const SamplingBatch& batch, cudaStream_t stream);

}  // namespace fastspec::cuda
