// See backend.h. The only file that may hold an #if about which backends were built.
#include "backend/backend.h"

#include "backend/cpu/cpu_device.h"
#include "backend/cpu/fast_ops.h"
#include "backend/cpu/reference_ops.h"
#include "base/check.h"

#if FASTSPEC_HAS_CUDA
#include "backend/cuda/cuda_backend.h"
#endif

namespace fastspec {

Backend make_backend(std::string_view device, DType dtype, int num_threads) {
  (void)dtype;  // the CPU paths take every element type, per operation
  if (device == "cpu") return {std::make_unique<cpu::CpuDevice>(), std::make_unique<cpu::FastOps>(num_threads)};
  if (device == "cpu:reference") {
    return {std::make_unique<cpu::CpuDevice>(), std::make_unique<cpu::ReferenceOps>(num_threads)};
  }
  if (device == "cuda" || device.rfind("cuda:", 0) == 0) {
#if FASTSPEC_HAS_CUDA
    return cuda::make_cuda_backend(device, dtype);
#else
    fail(ErrorCode::kUnsupported, "device \"", device,
         "\": this build has no CUDA backend; it has cpu and cpu:reference");
#endif
  }
  fail(ErrorCode::kInvalidArgument, "unknown device \"", device, "\"; this build has cpu and cpu:reference");
}

}  // namespace fastspec
