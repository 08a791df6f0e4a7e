// Memory of one device, and recording of work on it. Contracts only; each backend implements them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "backend/graph.h"

namespace fastspec {

/// Owned device memory, freed on destruction. Aligned to 64 bytes or better.
class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, std::size_t bytes, std::shared_ptr<void> owner)
      : data_(data), bytes_(bytes), owner_(std::move(owner)) {}
  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  template <typename T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::shared_ptr<void> owner_;
};

class Device {
 public:
  virtual ~Device() = default;
  /// "cpu", "cuda:0"
  virtual std::string name() const = 0;
  /// Uninitialised memory. @throws Error(kOutOfMemory) naming `what` and the sizes.
  virtual Buffer allocate(std::size_t bytes, const char* what) = 0;
  /// Uninitialised host memory that copies to and from the device best. @throws as allocate().
  virtual Buffer allocate_host(std::size_t bytes, const char* what) = 0;
  /// Host to device and back; ordered with the operations issued before and after.
  virtual void copy_to_device(void* destination, const void* source, std::size_t bytes) = 0;
  virtual void copy_to_host(void* destination, const void* source, std::size_t bytes) = 0;
  /// Bytes that an allocation could still get.
  virtual std::size_t available_bytes() const = 0;
  /// Bytes of a device with memory of its own, which an engine may fill; 0 where it shares the host's.
  virtual std::size_t total_bytes() const { return 0; }
  /// Whether capture() can record.
  virtual bool has_graphs() const { return false; }
  /// Records what `work` issues, without running it. `work` must have run before with the same shapes, so that it
  /// allocates nothing, and must not wait for the device. @returns nullptr where the device has no graphs, or no memory
  /// for one more.
  virtual std::unique_ptr<Graph> capture([[maybe_unused]] const std::function<void()>& work) { return nullptr; }
};

}  // namespace fastspec
