// Ops::attention on the GPU: long prompt chunks go to flash attention (prompt_attention.h), the rest to a kernel of
// cuda/attention that is chosen here; keeps its workspace, and plans a pass once for all of its layers.
#pragma once

#include <memory>
#include <vector>

#include "attention/config.h"
#include "backend/cuda/cuda_context.h"
#include "backend/cuda/prompt_attention.h"
#include "backend/ops.h"
#include "backend/params.h"

namespace fastspec::cuda {

/// When flash attention over gathered keys answers a causal chunk.
enum class FlashUse { kWhereFaster, kAlways, kNever };

class Attention {
 public:
  Attention(std::shared_ptr<CudaContext> context, DType dtype);
  void run(const AttentionParams& params);

  std::size_t workspace_bytes(const WorkspaceLimits& limits) const;
  void reserve(const WorkspaceLimits& limits);
  /// For tests and measurements.
  void set_flash_use(FlashUse use) { flash_use_ = use; }
  const PromptAttention& prompt() const { return prompt_; }

 private:
  /// What a plan depends on: it holds as long as these and the data behind the pointers do.
  struct PlanKey {
    int num_sequences, num_heads, num_kv_heads;
    const void *row_offsets, *lists, *masks, *positions;
    int window, sinks;
    AttentionPath path;
    int padded_dim, tile_rows, num_ctas;
    bool operator==(const PlanKey&) const = default;
  };
  struct Plan {
    PlanKey key{};
    Buffer memory;
    AttentionPlan plan;
  };

  AttentionConfig choose(const AttentionParams& params) const;
  /// Keys of a gathered run: those of one longest sequence, as long as that is a small part of the GPU's memory.
  std::int64_t gathered_keys(const WorkspaceLimits& limits) const;
  /// Empty where our own kernels answer the whole pass.
  std::vector<PromptRun> prompt_runs(const AttentionParams& params) const;
  void run_own(const AttentionParams& params);
  const AttentionPlan& plan_for(const AttentionParams& params, const AttentionConfig& config);
  void grow_workspace(int head_dim);

  std::shared_ptr<CudaContext> context_;
  DeviceLimits limits_;
  PromptAttention prompt_;
  FlashUse flash_use_ = FlashUse::kWhereFaster;
  Buffer workspace_;
  std::vector<Buffer> outgrown_;  // memory that captured work may still point to
  std::vector<Plan> plans_;
  std::size_t num_valid_plans_ = 0;  // the first ones, made since the last upload
  std::uint64_t uploads_ = 0;
};

}  // namespace fastspec::cuda
