// Host memory as a Device that notes what was asked of it and can refuse.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend/device.h"
#include "base/check.h"

namespace fastspec::test {

class RecordingDevice : public Device {
 public:
  std::string name() const override { return "recording"; }

  Buffer allocate(std::size_t bytes, const char* what) override {
    if (allocations_before_failure == 0) fail(ErrorCode::kOutOfMemory, what, ": ", bytes, " bytes");
    if (allocations_before_failure > 0) --allocations_before_failure;
    allocated_bytes += bytes;
    auto memory = std::make_shared<std::vector<std::byte>>(bytes);
    void* data = memory->data();
    return Buffer(data, bytes, std::shared_ptr<void>(std::move(memory)));
  }
  Buffer allocate_host(std::size_t bytes, const char* what) override { return allocate(bytes, what); }
  void copy_to_device(void* destination, const void* source, std::size_t bytes) override {
    largest_copy = std::max(largest_copy, bytes);
    std::memcpy(destination, source, bytes);
  }
  void copy_to_host(void* destination, const void* source, std::size_t bytes) override {
    std::memcpy(destination, source, bytes);
  }
  std::size_t available_bytes() const override { return std::size_t{1} << 40; }

  int allocations_before_failure = -1;  // -1 = never fail
  std::size_t allocated_bytes = 0;
  std::size_t largest_copy = 0;
};

}  // namespace fastspec::test
