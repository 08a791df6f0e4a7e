// What the reference and the fast CPU path share: operations that only move data, the merge, and sampling. Owns the
// thread pool. The arithmetic that may differ (linear, norms, RoPE, attention) belongs to the subclasses.
#pragma once

#include "backend/cpu/beam.h"
#include "backend/cpu/sampling.h"
#include "backend/cpu/selection.h"
#include "backend/cpu/thread_pool.h"
#include "backend/ops.h"

namespace fastspec::cpu {

class CpuOps : public Ops {
 public:
  explicit CpuOps(int num_threads) : pool_(num_threads), sampler_(pool_) {}

  void embed(const EmbeddingParams& params) override;
  void copy_rows(const CopyRowsParams& params) override;
  void merge(const MergeParams& params) override;
  void copy_slots(const CopySlotsParams& params) override;
  void update_page_bounds(const PageBoundsParams& params) override { cpu::update_page_bounds(params, pool_); }
  void select_slots(const SelectSlotsParams& params) override { cpu::select_slots(params, pool_); }
  void accept(const AcceptParams& params) override { sampler_.accept(params); }
  void await_accept() override {}
  int set_rules(const ProposalRules& rules) override { return sampler_.set_rules(rules); }
  void propose(const ProposeParams& params) override { sampler_.propose(params); }
  void grow_beam(const GrowBeamParams& params) override { cpu::grow_beam(params); }
  void await_proposals() override {}
  DType activation_dtype() const override { return DType::kFloat32; }

 protected:
  ThreadPool pool_;

 private:
  Sampler sampler_;
};

}  // namespace fastspec::cpu
