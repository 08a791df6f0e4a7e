// Acceptance on the GPU: packs the call, runs the kernels of cuda/sampling over slices that fit a bounded
// workspace, and waits for the device's signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "backend/cuda/cuda_context.h"
#include "backend/cuda/pinned_pack.h"
#include "backend/cuda/sampling_arguments.h"
#include "backend/cuda/sampling_memory.h"
#include "backend/params.h"

namespace fastspec::cuda {

class Sampler {
 public:
  /// Device memory that calls of any size take at most: 1.5 times the changed rows and lists of a slice, and
  /// histograms.
  static constexpr std::size_t kMostBytes = std::size_t{224} << 20;

  explicit Sampler(std::shared_ptr<CudaContext> context);

  /// Draws and walks; await_accept() writes the results. @throws Error(kInternal) for malformed trees and tokens
  /// outside the vocabulary, Error(kUnsupported) beyond the sizes of sampling.h.
  void accept(const AcceptParams& params);
  void await_accept();

 private:
  /// Slices, uploads and lays out what arguments_ holds. @param list_length best tokens a chunk must list.
  SamplingBatch prepare(const Matrix& logits, int list_length);
  void upload_arguments(SamplingBatch& batch);
  void place_workspace(SamplingBatch& batch);
  /// Draws or lists up to launch_scores for one slice.
  void run_slice(SamplingBatch& batch, const TaskSlice& slice) const;
  WalkParams make_walk(const SamplingBatch& batch);
  void find_top_logprobs(SamplingBatch batch, const WalkParams& walk) const;
  void copy_results(AcceptResult* results, const WalkParams& walk) const;

  std::shared_ptr<CudaContext> context_;
  SamplingArguments arguments_;
  PinnedPack pack_;
  Buffer workspace_;  // partial results of a call
  FilterMemory filter_memory_;
  Buffer results_;  // pinned, written by the kernels

  /// An accept that was not waited for; what it is about is in arguments_.
  struct Pending {
    AcceptResult* results;
    WalkParams walk;
    std::uint64_t signal;
  };
  std::optional<Pending> pending_;

  // Device addresses of arguments_' arrays, and of what a call's kernels share beside the batch.
  const int* adjusted_tasks_ = nullptr;
  const int* filtered_tasks_ = nullptr;
  const DeviceTree* trees_ = nullptr;
  const TokenId* node_tokens_ = nullptr;
  const std::int32_t* node_parents_ = nullptr;
  const std::int32_t* top_nodes_ = nullptr;
  const std::int32_t* top_node_trees_ = nullptr;
  int* depths_ = nullptr;
};

}  // namespace fastspec::cuda
