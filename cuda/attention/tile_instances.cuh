// Body of the launchers that tile_launch.h declares; included by instances/*.cu only.
#pragma once

#include "attention/tile_kernel.cuh"
#include "attention/tile_launch.h"

namespace fastspec::cuda {

template <typename Traits>
cudaError_t launch_tile_kernel(int num_ctas, const TileLaunch& launch, cudaStream_t stream) {
  static_assert(Traits::kCtasPerSm == tile_ctas_per_sm(Traits::kRows));
  static_assert(Traits::kRows * Traits::kCtasPerSm <= kMaxTileRowsPerSm);
  // An attribute of the function on the current device, not work on a stream: allowed during capture.
  const cudaError_t error = cudaFuncSetAttribute(attention_tile_kernel<Traits>,
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes);
  if (error != cudaSuccess) return error;
  attention_tile_kernel<Traits><<<num_ctas, Traits::kThreads, Traits::kSharedBytes, stream>>>(launch);
  return cudaGetLastError();
}

template <typename T, int kDim>
cudaError_t launch_tiles(const AttentionConfig& config, const TileLaunch& launch, cudaStream_t stream) {
  const auto mma = [&]<int kRows>() {
    return launch_tile_kernel<TileTraits<T, kDim, kRows, false>>(config.num_ctas, launch, stream);
  };
  if constexpr (kDim > 128) {
    return config.path == AttentionPath::kMma && config.tile_rows == 32 ? mma.template operator()<32>()
                                                                        : cudaErrorInvalidValue;
  } else {
    if (config.path == AttentionPath::kHopper) {
      if constexpr (kDim == 64 || kDim == 128) {
        switch (config.tile_rows) {
          case 64:
            return launch_tile_kernel<TileTraits<T, kDim, 64, true>>(config.num_ctas, launch, stream);
          case 128:
            return launch_tile_kernel<TileTraits<T, kDim, 128, true>>(config.num_ctas, launch, stream);
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
