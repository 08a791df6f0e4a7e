// Memory of one GPU as a Device. Allocates and copies; computes nothing.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_context.h"
#include "backend/cuda/kernel_recorder.h"
#include "backend/device.h"

namespace fastspec::cuda {

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}

  std::string name() const override { return "cuda:" + std::to_string(context_->ordinal()); }
  std::string model_name() const override;
  Buffer allocate(std::size_t bytes, const char* what) override { return context_->allocate(bytes, what); }
  Buffer allocate_host(std::size_t bytes, const char* what) override { return context_->allocate_pinned(bytes, what); }
  /// Asynchronous; `source` may change as soon as this returns.
  void copy_to_device(void* destination, const void* source, std::size_t bytes) override {
    context_->upload(destination, source, bytes);
  }
  /// Waits for everything enqueued before.
  void copy_to_host(void* destination, const void* source, std::size_t bytes) override;
  void copy_staged(const StagedCopy& copy) override { context_->copy_staged(copy, true); }
  bool is_asynchronous() const override { return true; }
  void synchronize() override { context_->synchronize(); }
  DeviceTimes times() const override { return context_->times(); }
  void start_trace() override { start_recording_kernels(); }
  std::vector<DeviceSpan> stop_trace() override { return stop_recording_kernels(context_->ordinal()); }
  std::size_t available_bytes() const override { return context_->available_bytes(); }
  std::size_t total_bytes() const override { return context_->total_bytes(); }
  bool has_graphs() const override { return true; }
  std::unique_ptr<Graph> capture(const std::function<void()>& work) override { return context_->capture(work); }

 private:
  std::shared_ptr<CudaContext> context_;
};

}  // namespace fastspec::cuda
