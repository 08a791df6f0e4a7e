// Where a step meets the host: its arrays come in through mapped host memory, and the host learns there that its draws
// are done. Plain structs; no allocation, no synchronisation.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/params.h"

namespace fastspec::cuda {

/// In mapped host memory; the device writes, the host polls. Times are the device's global timer, in nanoseconds.
struct StepMarks {
  std::int64_t begin;    // of the first marked copy since the last signal that ends a step
  std::int64_t end;      // of the last signal that ends a step
  std::uint64_t signal;  // value of the last signal; what was launched before it is done and can be read
};

/// Copies a block and sets entries, see StagedCopy; source, updates and their number are mapped host memory.
/// @param marks null: the copy is no begin of a step. @param begun one flag in device memory, 0 at first.
void launch_staged_copy(const StagedCopy& copy, StepMarks* marks, int* begun, cudaStream_t stream);

/// The kernel of a signal that ends a step, as records of kernels name it.
constexpr const char* kStepEndKernel = "step_end_kernel";

/// Sets marks->signal to `value` behind everything launched before.
void launch_signal(StepMarks* marks, std::uint64_t value, bool ends_step, int* begun, cudaStream_t stream);

}  // namespace fastspec::cuda
