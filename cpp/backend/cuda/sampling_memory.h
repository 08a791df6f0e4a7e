// What accept and propose share of their workspaces: arrays cut from one block, chunks of a row, histograms.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cuda/cuda_context.h"
#include "sampling/sampling.h"

namespace fastspec::cuda {

/// Rows whose lists or histograms are worked on at a time, at most.
constexpr int kMaxSliceTasks = 4096;
constexpr int kMaxSliceFiltered = 256;

inline std::size_t size(int count) {
  return static_cast<std::size_t>(count);
}

/// Memory cut into aligned arrays.
class Sections {
 public:
  template <typename T>
  std::size_t add(std::size_t count) {
    const std::size_t offset = (bytes_ + 255) / 256 * 256;
    bytes_ = offset + count * sizeof(T);
    return offset;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

template <typename T>
T* at(const Buffer& buffer, std::size_t offset) {
  return reinterpret_cast<T*>(buffer.as<std::byte>() + offset);
}

/// Enough blocks to fill the GPU, chunks no smaller than is worth a block.
void choose_chunks(int num_tasks, int num_multiprocessors, SamplingBatch& batch);

/// Rows whose lists fit `bytes`, at least one.
int rows_of_lists(const SamplingBatch& batch, int list_length, std::size_t bytes);

/// Histograms and counters of filtered rows, zero between calls.
class FilterMemory {
 public:
  /// For up to kMaxSliceFiltered rows. What was used before stays valid: it may have been recorded.
  void place(int rows, CudaContext& context, SamplingBatch& batch);

 private:
  std::vector<Buffer> memory_;  // the last is the largest
  int capacity_ = 0;
};

}  // namespace fastspec::cuda
