// Body of the launchers that tile_launch.h declares; included by instances/*.cu only.
#pragma once

#include "attention/hopper_kernel.cuh"
#include "attention/tile_kernel.cuh"
#include "attention/tile_launch.h"

namespace fastspec::cuda {

/// Launches `kernel` with the shared memory it needs.
inline cudaError_t launch_with_shared(void (*kernel)(TileLaunch), int num_ctas, int threads, int shared_bytes,
                                      const TileLaunch& launch, cudaStream_t stream) {
  // An attribute of the function on the current device, not work on a stream: allowed during capture.
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  kernel<<<num_ctas, threads, shared_bytes, stream>>>(launch);
  return cudaGetLastError();
}

template <typename T, int kDim>
cudaError_t launch_tiles(const AttentionConfig& config, const TileLaunch& launch, cudaStream_t stream) {
  const auto mma = [&]<int kRows>() {
    using Traits = TileTraits<T, kDim, kRows>;
    return launch_with_shared(attention_tile_kernel<Traits>, config.num_ctas, Traits::kThreads, Traits::kSharedBytes,
                              launch, stream);
  };
  const auto hopper = [&]<int kRows>() {
    using Traits = HopperTraits<T, kDim, kRows>;
    return launch_with_shared(attention_hopper_kernel<Traits>, config.num_ctas, Traits::kCtaThreads,
                              Traits::kSharedBytes, launch, stream);
  };
  if constexpr (kDim > 128) {
    return config.path == AttentionPath::kMma && config.tile_rows == 32 ? mma.template operator()<32>()
                                                                        : cudaErrorInvalidValue;
  } else {
    if (config.path == AttentionPath::kHopper) {
      if constexpr (kDim == 64 || kDim == 128) {
        switch (config.tile_rows) {
          case 64:
            return hopper.template operator()<64>();
          case 128:
            return hopper.template operator()<128>();
        }
      }
      return cudaErrorInvalidValue;
    }
    switch (config.tile_rows) {
      case 16:
        return mma.template operator()<16>();
      case 32:
        return mma.template operator()<32>();
      case 64:
        return mma.template operator()<64>();
      case 128:
        return mma.template operator()<128>();
    }
    return cudaErrorInvalidValue;
  }
}

}  // namespace fastspec::cuda
