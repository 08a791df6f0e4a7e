// Turns status codes of the CUDA runtime into Error(kDeviceFailure) naming the call. Included by cpp/backend/cuda only.
#pragma once

#include <cuda_runtime_api.h>

#include "base/check.h"

namespace fastspec::cuda {

/// @param call what was tried: "cudaMemcpyAsync of 64 bytes", "launch of rms_norm".
template <typename... Parts>
void check_cuda(cudaError_t status, const Parts&... call) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // so that the next call does not report this one's failure
  fail(ErrorCode::kDeviceFailure, call..., ": ", cudaGetErrorName(status), ": ", cudaGetErrorString(status));
}

/// After a kernel launch.
inline void check_launch(const char* what) {
  check_cuda(cudaGetLastError(), "launch of ", what);
}

}  // namespace fastspec::cuda
