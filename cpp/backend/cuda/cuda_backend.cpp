// See cuda_backend.h.
#include "backend/cuda/cuda_backend.h"

#include <charconv>
#include <memory>

#include "backend/cuda/cuda_context.h"
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/cuda_ops.h"
#include "base/check.h"

namespace fastspec::cuda {

Backend make_cuda_backend(std::string_view device, DType dtype) {
  int ordinal = 0;
  if (device != "cuda") {
    const std::string_view digits = device.substr(std::string_view("cuda:").size());
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), ordinal);
    if (digits.empty() || parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) {
      fail(ErrorCode::kInvalidArgument, "device \"", device, "\": a GPU is \"cuda:\" and its number");
    }
  }
  const std::shared_ptr<CudaContext> context = CudaContext::make(ordinal);
  return {std::make_unique<CudaDevice>(context), std::make_unique<CudaOps>(context, dtype)};
}

}  // namespace fastspec::cuda
