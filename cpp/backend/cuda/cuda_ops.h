// The operations on one GPU: checks arguments, then launches kernels of cuda/ and cuBLASLt on the context's stream.
// Activations, weights and K/V have one element type.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/attention.h"
#include "backend/cuda/cuda_context.h"
#include "backend/cuda/linear.h"
#include "backend/cuda/proposer.h"
#include "backend/cuda/sampler.h"
#include "backend/cuda/scorer.h"
#include "backend/ops.h"

namespace fastspec::cuda {

class CudaOps final : public Ops {
 public:
  CudaOps(std::shared_ptr<CudaContext> context, DType dtype);

  void embed(const EmbeddingParams& params) override;
  void copy_rows(const CopyRowsParams& params) override;
  void rms_norm(const RmsNormParams& params) override;
  void linear(const LinearParams& params) override;
  void rope_store(const RopeStoreParams& params) override;
  void attention(const AttentionParams& params) override;
  void merge(const MergeParams& params) override;
  void score_keys(const ScoreKeysParams& params) override;
  void score_pages(const ScorePagesParams& params) override;
  void update_page_bounds(const PageBoundsParams& params) override;
  void select_slots(const SelectSlotsParams& params) override;
  void silu_mul(const SiluMulParams& params) override;
  void copy_slots(const CopySlotsParams& params) override;
  void accept(const AcceptParams& params) override { sampler_.accept(params); }
  void await_accept() override { sampler_.await_accept(); }
  int set_rules(const ProposalRules& rules) override { return proposer_.set_rules(rules); }
  void propose(const ProposeParams& params) override { proposer_.propose(params); }
  void grow_beam(const GrowBeamParams& params) override { proposer_.grow_beam(params); }
  void await_proposals() override { proposer_.await_proposals(); }
  DType activation_dtype() const override { return dtype_; }
  std::size_t workspace_bytes(const WorkspaceLimits& limits) const override;
  void reserve(const WorkspaceLimits& limits) override {
    attention_.reserve(limits);
    scorer_.reserve(limits);
  }
  std::string prompt_attention() const override { return attention_.prompt().description(); }

  /// Searches the algorithm for a linear layer of these shapes by time; see Linear::tune.
  double tune(const LinearParams& params);
  /// When flash attention answers, see Attention.
  void set_flash_use(FlashUse use) { attention_.set_flash_use(use); }
  const PromptAttention& prompt() const { return attention_.prompt(); }
  const CudaContext& context() const { return *context_; }

 private:
  std::shared_ptr<CudaContext> context_;
  DType dtype_;
  Linear linear_;
  Attention attention_;
  Scorer scorer_;
  Sampler sampler_;
  Proposer proposer_;
  Buffer copy_arguments_;              // views and moves of copy_slots
  std::vector<KvView> copied_layers_;  // the views that lie there
};

}  // namespace fastspec::cuda
