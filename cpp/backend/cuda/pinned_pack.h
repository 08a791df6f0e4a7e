// Many small host arrays that go to the device as one copy. Grows to the largest call and stays.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_context.h"
#include "backend/cuda/cuda_error.h"

namespace fastspec::cuda {

class PinnedPack {
 public:
  explicit PinnedPack(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}

  /// Where an array lies in the copy.
  template <typename T>
  struct Place {
    std::size_t offset = 0;
  };

  /// Forgets the arrays. The last upload must have been waited for.
  void clear() { used_ = 0; }

  template <typename T>
  Place<T> add(std::span<const T> values) {
    const std::size_t offset = (used_ + kAlignment - 1) / kAlignment * kAlignment;
    reserve(offset + values.size_bytes());
    if (!values.empty()) std::memcpy(pinned_.as<std::byte>() + offset, values.data(), values.size_bytes());
    used_ = offset + values.size_bytes();
    return {offset};
  }
  template <typename T>
  Place<T> add(const std::vector<T>& values) {
    return add(std::span<const T>(values));
  }

  /// Finds a place for everything added: pointers from at() are valid from here until something is added.
  void place() {
    if (used_ > device_.bytes()) device_ = context_->allocate(2 * used_, "sampling arguments");
  }
  /// Other values for an array that was added.
  template <typename T>
  void replace(Place<T> place, const std::vector<T>& values) {
    if (!values.empty()) std::memcpy(pinned_.as<std::byte>() + place.offset, values.data(), values.size() * sizeof(T));
  }

  /// One copy of everything added, to its place.
  void upload() {
    place();
    if (used_ == 0) return;
    if (used_ <= kStagedBytes) {
      // A kernel reads few bytes from the host sooner than a copy engine does.
      context_->copy_staged({.destination = device_.data(), .source = pinned_.data(), .bytes = used_}, false);
      return;
    }
    check_cuda(cudaMemcpyAsync(device_.data(), pinned_.data(), used_, cudaMemcpyHostToDevice, context_->stream()),
               "cudaMemcpyAsync of ", used_, " bytes of sampling arguments");
  }

  template <typename T>
  const T* at(Place<T> place) const {
    return reinterpret_cast<const T*>(device_.as<std::byte>() + place.offset);
  }

 private:
  static constexpr std::size_t kAlignment = 16;
  static constexpr std::size_t kStagedBytes = std::size_t{64} << 10;

  void reserve(std::size_t bytes) {
    if (bytes <= pinned_.bytes()) return;
    Buffer larger = context_->allocate_pinned(2 * bytes, "sampling arguments");
    if (used_ > 0) std::memcpy(larger.data(), pinned_.data(), used_);
    pinned_ = std::move(larger);
  }

  std::shared_ptr<CudaContext> context_;
  Buffer pinned_, device_;
  std::size_t used_ = 0;
};

}  // namespace fastspec::cuda
