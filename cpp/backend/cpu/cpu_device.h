// Host memory as a Device. Allocates and copies; computes nothing.
#pragma once

#include <cstddef>
#include <string>

#include "backend/device.h"

namespace fastspec::cpu {

class CpuDevice final : public Device {
 public:
  std::string name() const override { return "cpu"; }
  std::string model_name() const override;
  Buffer allocate(std::size_t bytes, const char* what) override;
  Buffer allocate_host(std::size_t bytes, const char* what) override { return allocate(bytes, what); }
  void copy_to_device(void* destination, const void* source, std::size_t bytes) override;
  void copy_to_host(void* destination, const void* source, std::size_t bytes) override;
  /// The smaller of the machine's available memory and what the control group still allows.
  std::size_t available_bytes() const override;
};

}  // namespace fastspec::cpu
