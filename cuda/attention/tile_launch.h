// Launchers of the tile kernels, one for each element type and padded head size, defined in instances/*.cu. Called by
// launch.cu only.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/attention.h"
#include "common/element.cuh"

namespace fastspec::cuda {

struct TileLaunch;

template <typename T, int kDim>
cudaError_t launch_tiles(const AttentionConfig& config, const TileLaunch& launch, cudaStream_t stream);

/// Any dtype and strides; needs no plan.
cudaError_t launch_attention_plain(const AttentionParams& params, cudaStream_t stream);

}  // namespace fastspec::cuda
