// One GPU as the backend uses it: its number, the stream that everything runs on, and pinned memory through which small
// host data goes to the device. Shared by the Device, its buffers and the Ops; not for use by two threads at once.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "backend/device.h"
#include "host/host_link.h"

namespace fastspec::cuda {

class CudaContext : public std::enable_shared_from_this<CudaContext> {
 public:
  /// @throws Error(kUnsupported) without a driver or for a GPU that is too old, Error(kInvalidArgument) for a number
  /// that no GPU has.
  static std::shared_ptr<CudaContext> make(int ordinal);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  /// Makes the GPU the calling thread's current one. Every entry point of the backend calls it first.
  void activate() const;
  int ordinal() const { return ordinal_; }
  cudaStream_t stream() const { return stream_; }
  int num_multiprocessors() const { return num_multiprocessors_; }
  /// 90 for compute capability 9.0.
  int architecture() const { return architecture_; }

  /// Device memory, freed with its last owner. @throws Error(kOutOfMemory) naming `what` and the sizes.
  Buffer allocate(std::size_t bytes, const char* what);
  /// Pinned host memory that kernels can write to through the same pointer.
  Buffer allocate_pinned(std::size_t bytes, const char* what);
  /// Copies to the device in stream order; `source` may change as soon as this returns.
  void upload(void* destination, const void* source, std::size_t bytes);
  /// Grows with every upload: what was derived from uploaded data holds while it stays the same.
  std::uint64_t num_uploads() const { return num_uploads_; }
  /// Records what `work` enqueues, see Device::capture. Plans of attention are made anew inside, since what they were
  /// made from will have changed by the time of a launch.
  std::unique_ptr<Graph> capture(const std::function<void()>& work);
  bool is_capturing() const { return is_capturing_; }
  /// Waits until everything enqueued is done.
  void synchronize();

  /// See Device::copy_staged. @param begins_step notes the time, unless one was noted since the step's end.
  void copy_staged(const StagedCopy& copy, bool begins_step);
  /// Enqueues a signal behind everything enqueued before. @returns what wait() takes.
  std::uint64_t signal(bool ends_step);
  /// Polls until the signal has come, without a call of the driver. @throws Error(kDeviceFailure).
  void wait(std::uint64_t signal) const;
  /// Of the steps whose signals were waited for.
  DeviceTimes times() const { return {marks().begin, marks().end}; }
  /// Memory of the GPU that is free now, and all of it.
  std::size_t available_bytes() const;
  std::size_t total_bytes() const;

 private:
  /// Half of the pinned ring; it may be filled again once `done` has happened.
  struct Half {
    Buffer memory;
    cudaEvent_t done = nullptr;
    bool in_flight = false;
  };

  explicit CudaContext(int ordinal) : ordinal_(ordinal) {}
  void open();
  void open_marks();
  void next_half();
  StepMarks& marks() const { return *marks_.as<StepMarks>(); }

  int ordinal_;
  int num_multiprocessors_ = 0;
  int architecture_ = 0;
  cudaStream_t stream_ = nullptr;
  std::array<Half, 2> halves_;
  int half_ = 0;
  std::size_t used_ = 0;  // bytes of the current half
  std::uint64_t num_uploads_ = 0;
  bool is_capturing_ = false;
  Buffer marks_;  // StepMarks in mapped host memory
  Buffer begun_;  // device memory, see launch_signal
  std::uint64_t num_signals_ = 0;

  friend class CudaGraph;
};

}  // namespace fastspec::cuda
