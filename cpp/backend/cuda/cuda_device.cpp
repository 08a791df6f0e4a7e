// See cuda_device.h.
#include "backend/cuda/cuda_device.h"

#include "backend/cuda/cuda_error.h"

namespace fastspec::cuda {

std::string CudaDevice::model_name() const {
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, context_->ordinal()), "cudaGetDeviceProperties");
  return properties.name;
}

void CudaDevice::copy_to_host(void* destination, const void* source, std::size_t bytes) {
  context_->activate();
  if (bytes > 0) {
    check_cuda(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToHost, context_->stream()),
               "cudaMemcpyAsync of ", bytes, " bytes to the host");
  }
  context_->synchronize();
}

}  // namespace fastspec::cuda
