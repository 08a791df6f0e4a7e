// A device in host memory that records work by keeping it, and replays by running it again: what an engine does with
// graphs, on a backend that has none; and, with DeferringOps, what it does on a device that runs behind the host.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "backend/device.h"

namespace fastspec::testing {

constexpr std::size_t kGraphBytes = 1000;  // what a recording is said to take

class ReplayingDevice final : public Device {
 public:
  explicit ReplayingDevice(std::unique_ptr<Device> inner, bool asynchronous = false)
      : inner_(std::move(inner)), asynchronous_(asynchronous) {}

  std::string name() const override { return inner_->name(); }
  Buffer allocate(std::size_t bytes, const char* what) override { return inner_->allocate(bytes, what); }
  Buffer allocate_host(std::size_t bytes, const char* what) override { return inner_->allocate_host(bytes, what); }
  void copy_to_device(void* destination, const void* source, std::size_t bytes) override {
    inner_->copy_to_device(destination, source, bytes);
  }
  void copy_to_host(void* destination, const void* source, std::size_t bytes) override {
    inner_->copy_to_host(destination, source, bytes);
  }
  std::size_t available_bytes() const override { return inner_->available_bytes(); }
  bool is_asynchronous() const override { return asynchronous_; }
  bool has_graphs() const override { return true; }
  std::unique_ptr<Graph> capture(const std::function<void()>& work) override {
    return std::make_unique<KeptWork>(work);
  }

 private:
  class KeptWork final : public Graph {
   public:
    explicit KeptWork(std::function<void()> work) : work_(std::move(work)) {}
    void launch() override { work_(); }
    std::size_t bytes() const override { return kGraphBytes; }

   private:
    std::function<void()> work_;
  };

  std::unique_ptr<Device> inner_;
  bool asynchronous_;
};

}  // namespace fastspec::testing
