// Gumbel noise of backend/noise.h on the device: the exact value, and a fast one to decide which tokens need it.
#pragma once

#include "backend/noise.h"

namespace fastspec::cuda {

/// The same as noise::gumbel(), as far as logarithms in double agree.
__device__ __forceinline__ float exact_gumbel(std::uint32_t word) {
  return static_cast<float>(-log(-log(noise::uniform(word))));
}

/// Largest difference between fast_gumbel and exact_gumbel, with room.
constexpr float kFastGumbelError = 1e-4f;

/// In float32, through 1 - u, which is exact enough near 1.
__device__ __forceinline__ float fast_gumbel(std::uint32_t word) {
  const float complement = (static_cast<float>(0xFFFFFFu - (word >> 8)) + 0.5f) * 0x1p-24f;  // 1 - u
  float minus_log;
  if (complement < 0.125f) {
    float series = 1.0f / 6.0f;
    series = series * complement + 0.2f;
    series = series * complement + 0.25f;
    series = series * complement + 1.0f / 3.0f;
    series = series * complement + 0.5f;
    minus_log = complement * (series * complement + 1.0f);
  } else {
    minus_log = -__logf(1.0f - complement);
  }
  return -__logf(minus_log);
}

}  // namespace fastspec::cuda
