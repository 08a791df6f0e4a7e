// Sort keys of scored tokens: a greater key is a higher score or, for equal scores, a lower id. 0 is no token.
#pragma once

#include <cstdint>

#include "common/warp.cuh"

namespace fastspec::cuda {

using SortKey = std::uint64_t;

/// Unsigned order of floats; -0 equals +0. NaN has no place in it.
__device__ __forceinline__ std::uint32_t ordered_bits(float value) {
  const std::uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float from_ordered_bits(std::uint32_t bits) {
  return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

__device__ __forceinline__ SortKey sort_key(float score, std::uint32_t token) {
  return SortKey{ordered_bits(score)} << 32 | (0xffffffffu - token);
}

__device__ __forceinline__ float score_of(SortKey key) {
  return from_ordered_bits(static_cast<std::uint32_t>(key >> 32));
}

__device__ __forceinline__ std::uint32_t token_of(SortKey key) {
  return 0xffffffffu - static_cast<std::uint32_t>(key);
}

__device__ __forceinline__ SortKey greater(SortKey a, SortKey b) {
  return a > b ? a : b;
}

/// Largest key of a warp, in every lane.
__device__ __forceinline__ SortKey warp_greatest(SortKey key) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    key = greater(key, __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(key), distance));
  }
  return key;
}

}  // namespace fastspec::cuda
