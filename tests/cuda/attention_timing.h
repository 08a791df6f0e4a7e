// Times the attention kernels at the shapes that count and holds them against the memory's rate.
#pragma once

#include <string>

#include "attention/config.h"

namespace fastspec::gpu_check {

/// Prints one line per case and kernel. Every result is compared with the plain kernel's first.
/// @param only run cases whose name contains it; empty = all.
/// @returns false if a result is wrong (a missed goal is printed, not counted).
bool time_attention(const cuda::DeviceLimits& limits, const std::string& only);

}  // namespace fastspec::gpu_check
