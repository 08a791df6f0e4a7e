// Memory of one device, recording of work on it, and a record of what it ran. Contracts only; each backend implements
// them.
#pragma once

#include <fastspec/error.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/graph.h"
#include "backend/params.h"

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

/// Two nanosecond readings of the device's own clock; 0 where it has none, or where nothing was noted yet.
struct DeviceTimes {
  std::int64_t begin = 0;  // of the first staged copy since the draws before the last ones
  std::int64_t end = 0;    // of the last draws that were waited for
};

/// One kernel or copy that a device ran, in nanoseconds of one clock.
struct DeviceSpan {
  std::string name;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool ends_step = false;
};

class Device {
 public:
  virtual ~Device() = default;
  /// "cpu", "cuda:0"
  virtual std::string name() const = 0;
  /// What it is, for telling measurements apart: "NVIDIA H200"; of a CPU the processor's name.
  virtual std::string model_name() const { return name(); }
  /// Uninitialised memory. @throws Error(kOutOfMemory) naming `what` and the sizes.
  virtual Buffer allocate(std::size_t bytes, const char* what) = 0;
  /// Uninitialised host memory that copies to and from the device best. @throws as allocate().
  virtual Buffer allocate_host(std::size_t bytes, const char* what) = 0;
  /// Host to device and back; ordered with the operations issued before and after.
  virtual void copy_to_device(void* destination, const void* source, std::size_t bytes) = 0;
  virtual void copy_to_host(void* destination, const void* source, std::size_t bytes) = 0;
  /// Copies from memory of allocate_host(), which must stay as it is until the device has read it. Unlike
  /// copy_to_device() it can be recorded: a replay copies what is there by then.
  virtual void copy_staged(const StagedCopy& copy) {
    copy_to_device(copy.destination, copy.source, copy.bytes);
    for (std::int64_t i = 0; copy.num_updates != nullptr && i < *copy.num_updates; ++i) {
      copy_to_device(copy.entries + copy.updates[i].index, &copy.updates[i].value, sizeof(Slot));
    }
  }
  /// Whether operations may still run when the calls that issued them have returned. An engine then launches the next
  /// step before it does the host's part of the last one.
  virtual bool is_asynchronous() const { return false; }
  /// Waits until everything issued is done.
  virtual void synchronize() {}
  virtual DeviceTimes times() const { return {}; }
  /// Keeps a record of every kernel from here to stop_trace(). @throws Error(kUnsupported) where there can be none.
  virtual void start_trace() {
    throw Error(ErrorCode::kUnsupported,
                "operations on " + name() + " run with the host: there are no kernels to trace");
  }
  /// What ran since start_trace() and is done.
  virtual std::vector<DeviceSpan> stop_trace() { return {}; }
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
