// Inner products and reductions of the reference path: 16 partial sums in a fixed order, whatever the compiler does.
// Only for reference_*.cpp, which are compiled without floating-point contraction.
#pragma once

#include <cstring>

namespace fastspec::cpu::reference {

constexpr int kLanes = 16;

/// Sum of 16 partial sums as a balanced tree.
inline float reduce(const float (&lanes)[kLanes]) {
  float sums[kLanes / 2];
  for (int i = 0; i < 8; ++i) sums[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) sums[i] += sums[i + 4];
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

/// Inner product; element i goes to partial sum i mod 16.
inline float dot(const float* a, const float* b, int size) {
  float lanes[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (int lane = 0; i + lane < size; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  return reduce(lanes);
}

inline float sum(const float* values, int size) {
  float lanes[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += values[i + lane];
  }
  for (int lane = 0; i + lane < size; ++lane) lanes[lane] += values[i + lane];
  return reduce(lanes);
}

}  // namespace fastspec::cpu::reference
