// Ops::attention on the GPU: chooses the kernel of cuda/attention, keeps its workspace, and plans a pass once for all
// of its layers.
#pragma once

#include <memory>
#include <vector>

#include "attention/config.h"
#include "backend/cuda/cuda_context.h"
#include "backend/params.h"

namespace fastspec::cuda {

class Attention {
 public:
  explicit Attention(std::shared_ptr<CudaContext> context);
  void run(const AttentionParams& params);

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
  const AttentionPlan& plan_for(const AttentionParams& params, const AttentionConfig& config);
  void grow_workspace(int head_dim);

  std::shared_ptr<CudaContext> context_;
  DeviceLimits limits_;
  Buffer workspace_;
  std::vector<Plan> plans_;
  std::size_t num_valid_plans_ = 0;  // the first ones, made since the last upload
  std::uint64_t uploads_ = 0;
};

}  // namespace fastspec::cuda
