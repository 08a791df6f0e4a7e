// See cuda_ops.h.
#include "backend/cuda/cuda_ops.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "backend/cuda/check_params.h"
#include "backend/cuda/cuda_error.h"
#include "layers/layers.h"

namespace fastspec::cuda {
namespace {

// Code of kernels, which the driver loads with their first launch, and small arguments.
constexpr std::size_t kCodeBytes = std::size_t{192} << 20;

}  // namespace

CudaOps::CudaOps(std::shared_ptr<CudaContext> context, DType dtype)
    : context_(std::move(context)),
      dtype_(dtype),
      linear_(context_),
      attention_(context_, dtype),
      scorer_(context_, dtype),
      sampler_(context_),
      proposer_(context_) {}

std::size_t CudaOps::workspace_bytes(const WorkspaceLimits& limits) const {
  return attention_.workspace_bytes(limits) + scorer_.workspace_bytes(limits) + Linear::workspace_bytes(limits) +
         Sampler::kMostBytes + Proposer::kMostBytes + kCodeBytes;
}

void CudaOps::embed(const EmbeddingParams& params) {
  check_params(params, dtype_);
  context_->activate();
  launch_embedding(params, context_->stream());
  check_launch("embed");
}

void CudaOps::copy_rows(const CopyRowsParams& params) {
  check_params(params, dtype_);
  context_->activate();
  launch_copy_rows(params, context_->stream());
  check_launch("copy_rows");
}

void CudaOps::rms_norm(const RmsNormParams& params) {
  check_params(params, dtype_);
  context_->activate();
  launch_rms_norm(params, context_->stream());
  check_launch("rms_norm");
}

void CudaOps::linear(const LinearParams& params) {
  check_params(params, dtype_);
  context_->activate();
  linear_.run(params);
}

double CudaOps::tune(const LinearParams& params) {
  check_params(params, dtype_);
  context_->activate();
  return linear_.tune(params);
}

void CudaOps::rope_store(const RopeStoreParams& params) {
  check_params(params, dtype_);
  context_->activate();
  launch_rope_store(params, context_->stream());
  check_launch("rope_store");
}

void CudaOps::attention(const AttentionParams& params) {
  check_params(params, dtype_);
  context_->activate();
  attention_.run(params);
}

void CudaOps::score_keys(const ScoreKeysParams& params) {
  check_params(params, dtype_);
  context_->activate();
  scorer_.score(params, nullptr);
}

void CudaOps::score_pages(const ScorePagesParams& params) {
  check_params(params, dtype_);
  context_->activate();
  scorer_.score(params.scoring, params.bounds);
}

void CudaOps::update_page_bounds(const PageBoundsParams& params) {
  check_params(params, dtype_);
  context_->activate();
  scorer_.update_page_bounds(params);
}

void CudaOps::select_slots(const SelectSlotsParams& params) {
  check_params(params);
  context_->activate();
  scorer_.select_slots(params);
}

void CudaOps::merge(const MergeParams& params) {
  check_params(params, dtype_);
  context_->activate();
  launch_merge(params, context_->stream());
  check_launch("merge");
}

void CudaOps::silu_mul(const SiluMulParams& params) {
  check_params(params, dtype_);
  context_->activate();
  launch_silu_mul(params, context_->stream());
  check_launch("silu_mul");
}

void CudaOps::copy_slots(const CopySlotsParams& params) {
  check_params(params, dtype_);
  if (params.num_layers == 0 || params.num_moves == 0) return;
  context_->activate();
  const std::size_t layer_bytes = static_cast<std::size_t>(params.num_layers) * sizeof(KvView);
  const std::size_t move_bytes = static_cast<std::size_t>(params.num_moves) * sizeof(SlotMove);
  if (layer_bytes + move_bytes > copy_arguments_.bytes()) {
    copied_layers_.clear();
    copy_arguments_ = context_->allocate(2 * (layer_bytes + move_bytes), "arguments of copy_slots");
  }
  std::byte* place = copy_arguments_.as<std::byte>();
  const bool same_layers = static_cast<int>(copied_layers_.size()) == params.num_layers &&
                           std::equal(copied_layers_.begin(), copied_layers_.end(), params.layers);
  if (!same_layers) {
    context_->upload(place, params.layers, layer_bytes);
    copied_layers_.assign(params.layers, params.layers + params.num_layers);
  }
  context_->upload(place + layer_bytes, params.moves, move_bytes);
  launch_copy_slots({.layers = reinterpret_cast<const KvView*>(place),
                     .num_layers = params.num_layers,
                     .moves = reinterpret_cast<const SlotMove*>(place + layer_bytes),
                     .num_moves = params.num_moves},
                    context_->stream());
  check_launch("copy_slots");
}

}  // namespace fastspec::cuda
