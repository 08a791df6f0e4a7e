// Matrix products on libtorch for passes of many rows. No torch type appears here, so that only backend/torch sees
// torch.
#pragma once

#include "backend/params.h"

namespace fastspec::torch_backend {

/// output = input * weight^T, or output += input * weight^T; float32 throughout.
/// @param num_threads libtorch's threads, set for the process.
/// @throws Error(kInternal) where libtorch fails.
void gemm_float32(const Matrix& input, const Weight& weight, bool accumulate, const Matrix& output, int num_threads);

}  // namespace fastspec::torch_backend
