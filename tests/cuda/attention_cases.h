// The problems that attention_check solves: each edge named once, then random ones. Data only.
#pragma once

#include <vector>

#include "cuda/attention_problem.h"

namespace fastspec::gpu_check {

/// @param small shapes fit for compute-sanitizer.
std::vector<ProblemSpec> attention_cases(bool small, std::uint64_t seed);

}  // namespace fastspec::gpu_check
