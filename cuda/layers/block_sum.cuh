// Sum over the threads of a block in a fixed order. All threads must call it; blocks are whole warps.
#pragma once

#include "common/warp.cuh"

namespace fastspec::cuda {

__device__ __forceinline__ float block_sum(float value) {
  __shared__ float warp_sums[kWarpSize];
  value = warp_sum(value);
  if (threadIdx.x % kWarpSize == 0) warp_sums[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  return warp_sum(lane < num_warps ? warp_sums[lane] : 0.0f);
}

}  // namespace fastspec::cuda
