// Makes the CUDA backend. The only header of cpp/backend/cuda that the rest of the library sees; names nothing of CUDA.
#pragma once

#include <string_view>

#include "backend/backend.h"

namespace fastspec::cuda {

/// @param device "cuda" (the first GPU) or "cuda:N".
/// @throws as make_backend.
Backend make_cuda_backend(std::string_view device, DType dtype);

}  // namespace fastspec::cuda
