// Reductions within a warp in a fixed order. All 32 lanes must call them.
#pragma once

namespace fastspec::cuda {

constexpr int kWarpSize = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

/// Over groups of `kWidth` neighbouring lanes; every lane gets the result.
template <int kWidth = kWarpSize>
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = kWidth / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

template <int kWidth = kWarpSize>
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int distance = kWidth / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

template <int kWidth = kWarpSize>
__device__ __forceinline__ int warp_max(int value) {
#pragma unroll
  for (int distance = kWidth / 2; distance > 0; distance /= 2) {
    value = max(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

}  // namespace fastspec::cuda
