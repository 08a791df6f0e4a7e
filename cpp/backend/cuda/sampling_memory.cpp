// See sampling_memory.h.
#include "backend/cuda/sampling_memory.h"

#include "backend/cuda/cuda_error.h"

namespace fastspec::cuda {
namespace {

constexpr int kMinChunkSize = 2 * kChunkMultiple;
constexpr int kBlocksPerMultiprocessor = 4;

}  // namespace

void choose_chunks(int num_tasks, int num_multiprocessors, SamplingBatch& batch) {
  const int vocab_size = batch.logits.cols;
  const std::int64_t wanted_blocks = std::int64_t{num_multiprocessors} * kBlocksPerMultiprocessor;
  std::int64_t chunk = std::int64_t{vocab_size} * num_tasks / wanted_blocks;
  chunk = std::max<std::int64_t>({chunk, kMinChunkSize, (vocab_size + kMaxChunks - 1) / kMaxChunks});
  chunk = (chunk + kChunkMultiple - 1) / kChunkMultiple * kChunkMultiple;
  batch.chunk_size = static_cast<int>(std::min<std::int64_t>(chunk, kMaxChunkSize));
  batch.num_chunks = (vocab_size + batch.chunk_size - 1) / batch.chunk_size;
}

int rows_of_lists(const SamplingBatch& batch, int list_length, std::size_t bytes) {
  const std::size_t row_bytes = size(batch.num_chunks) * size(list_length) * sizeof(std::uint64_t);
  return static_cast<int>(std::clamp<std::size_t>(bytes / row_bytes, 1, size(kMaxSliceTasks)));
}

void FilterMemory::place(int rows, CudaContext& context, SamplingBatch& batch) {
  const int capacity = rows > capacity_ ? std::min(kMaxSliceFiltered, 2 * rows) : capacity_;
  Sections sections;
  const std::size_t counts = sections.add<std::uint32_t>(size(capacity) * kBins);
  const std::size_t masses = sections.add<std::uint64_t>(size(capacity) * kBins);
  const std::size_t arrivals = sections.add<unsigned>(size(capacity));
  const std::size_t filters = sections.add<FilterState>(size(capacity));
  if (capacity > capacity_) {
    Buffer memory = context.allocate(sections.bytes(), "histograms of sampling");
    check_cuda(cudaMemsetAsync(memory.data(), 0, sections.bytes(), context.stream()), "cudaMemsetAsync of ",
               sections.bytes(), " bytes");
    memory_.push_back(std::move(memory));
    capacity_ = capacity;
  }
  if (capacity == 0) return;
  batch.bin_counts = at<std::uint32_t>(memory_.back(), counts);
  batch.bin_masses = at<std::uint64_t>(memory_.back(), masses);
  batch.arrivals = at<unsigned>(memory_.back(), arrivals);
  batch.filters = at<FilterState>(memory_.back(), filters);
}

}  // namespace fastspec::cuda
