// Device memory, error checks and device facts for the GPU check programs. Nothing of the library's own memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attention/config.h"

namespace fastspec::gpu_check {

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

/// An array on the device; freed on destruction.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(std::size_t size) : size_(size) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_), bytes() == 0 ? 1 : bytes()), "cudaMalloc");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { write(values); }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }
  void fill_bytes(int value) { check(cudaMemset(data_, value, bytes()), "cudaMemset"); }
  void write(const std::vector<T>& values) {
    check(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "copy to device");
  }
  std::vector<T> read() const {
    std::vector<T> values(size_);
    check(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost), "copy to host");
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

inline cuda::DeviceLimits device_limits() {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  cuda::DeviceLimits limits;
  limits.num_sms = properties.multiProcessorCount;
  limits.shared_per_block = static_cast<int>(properties.sharedMemPerBlockOptin);
  limits.shared_per_sm = static_cast<int>(properties.sharedMemPerMultiprocessor);
  limits.compute_capability = 10 * properties.major + properties.minor;
  return limits;
}

}  // namespace fastspec::gpu_check
