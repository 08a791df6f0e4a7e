// The operations of sparse passes on the GPU: cuts scoring into units and slices that fit its workspace, which it
// keeps.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "backend/cuda/cuda_context.h"
#include "backend/ops.h"
#include "backend/params.h"

namespace fastspec::cuda {

class Scorer {
 public:
  explicit Scorer(std::shared_ptr<CudaContext> context, DType dtype);

  /// @param bounds null: score_keys; else score_pages. @throws Error(kUnsupported) for too many rows and heads.
  void score(const ScoreKeysParams& params, const void* bounds);
  void select_slots(const SelectSlotsParams& params);
  void update_page_bounds(const PageBoundsParams& params);

  std::size_t workspace_bytes(const WorkspaceLimits& limits) const;
  void reserve(const WorkspaceLimits& limits) { grow(workspace_bytes(limits)); }

 private:
  void grow(std::size_t bytes);

  std::shared_ptr<CudaContext> context_;
  std::size_t logit_bytes_;
  Buffer workspace_;
  std::vector<Buffer> outgrown_;  // memory that captured work may still point to
};

}  // namespace fastspec::cuda
