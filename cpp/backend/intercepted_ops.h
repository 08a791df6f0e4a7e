// An Ops that runs something around every operation of another: to time it, or to make it fail in tests. Computes
// nothing.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "backend/ops.h"

namespace fastspec {

class InterceptedOps : public Ops {
 public:
  explicit InterceptedOps(std::unique_ptr<Ops> inner) : inner_(std::move(inner)) {}

  void embed(const EmbeddingParams& params) override { run(&Ops::embed, params); }
  void copy_rows(const CopyRowsParams& params) override { run(&Ops::copy_rows, params); }
  void rms_norm(const RmsNormParams& params) override { run(&Ops::rms_norm, params); }
  void linear(const LinearParams& params) override { run(&Ops::linear, params); }
  void rope_store(const RopeStoreParams& params) override { run(&Ops::rope_store, params); }
  void attention(const AttentionParams& params) override { run(&Ops::attention, params); }
  void merge(const MergeParams& params) override { run(&Ops::merge, params); }
  void score_keys(const ScoreKeysParams& params) override { run(&Ops::score_keys, params); }
  void score_pages(const ScorePagesParams& params) override { run(&Ops::score_pages, params); }
  void update_page_bounds(const PageBoundsParams& params) override { run(&Ops::update_page_bounds, params); }
  void select_slots(const SelectSlotsParams& params) override { run(&Ops::select_slots, params); }
  void silu_mul(const SiluMulParams& params) override { run(&Ops::silu_mul, params); }
  void copy_slots(const CopySlotsParams& params) override { run(&Ops::copy_slots, params); }
  void accept(const AcceptParams& params) override { run(&Ops::accept, params); }
  void await_accept() override {
    before();
    inner_->await_accept();
    after();
  }
  int set_rules(const ProposalRules& rules) override {
    before();
    const int rule_class = inner_->set_rules(rules);
    after();
    return rule_class;
  }
  void propose(const ProposeParams& params) override { run(&Ops::propose, params); }
  void grow_beam(const GrowBeamParams& params) override { run(&Ops::grow_beam, params); }
  void await_proposals() override {
    before();
    inner_->await_proposals();
    after();
  }
  DType activation_dtype() const override { return inner_->activation_dtype(); }
  std::size_t workspace_bytes(const WorkspaceLimits& limits) const override { return inner_->workspace_bytes(limits); }
  void reserve(const WorkspaceLimits& limits) override { inner_->reserve(limits); }
  std::string prompt_attention() const override { return inner_->prompt_attention(); }

 protected:
  virtual void before() = 0;
  virtual void after() = 0;

 private:
  template <typename Params>
  void run(void (Ops::*operation)(const Params&), const Params& params) {
    before();
    (inner_.get()->*operation)(params);
    after();
  }

  std::unique_ptr<Ops> inner_;
};

}  // namespace fastspec
