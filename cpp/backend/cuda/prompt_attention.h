// Long prompt chunks on the GPU: gathers a sequence's keys into dense arrays and hands them to libtorch's flash
// attention, where this build and this machine have one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "attention/prompt_runs.h"
#include "backend/cuda/cuda_context.h"
#include "backend/params.h"
#include "backend/torch/flash_attention.h"

namespace fastspec::cuda {

class PromptAttention {
 public:
  /// Loads libtorch's CUDA libraries; logs once a process what answers prompts.
  PromptAttention(std::shared_ptr<CudaContext> context, DType dtype);

  /// False where passes are answered by our own kernels alone: libtorch is a CPU build, or failed.
  bool is_available() const { return function_ != nullptr; }
  /// For people: "libtorch's flash attention", or why not.
  const std::string& description() const { return description_; }

  /// Launches of it so far.
  std::int64_t num_runs() const { return num_runs_; }

  /// Allocates the dense arrays for runs of up to `num_keys` keys. @throws Error(kOutOfMemory).
  void reserve(std::int64_t num_keys, int max_sequences, int num_kv_heads, int head_dim);
  static std::size_t bytes(std::int64_t num_keys, int max_sequences, int num_kv_heads, int head_dim);
  /// Keys that a run may hold for a model of this shape; 0 before reserve().
  std::int64_t capacity(int num_kv_heads, int head_dim) const;

  /// @returns false where libtorch failed: it is not asked again, and the run is still to be answered.
  bool run(const AttentionParams& params, const PromptRun& run);

 private:
  std::shared_ptr<CudaContext> context_;
  FlashAttentionFunction* function_ = nullptr;
  std::string description_;
  std::int64_t num_runs_ = 0;
  Buffer keys_, values_, key_offsets_;
};

}  // namespace fastspec::cuda
