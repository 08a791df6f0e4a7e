// Operations whose draws can be read only when they were waited for, as on a device that runs behind the host: until
// then their results hold nonsense.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "backend/intercepted_ops.h"

namespace fastspec::testing {

class DeferringOps final : public InterceptedOps {
 public:
  using InterceptedOps::InterceptedOps;

  void accept(const AcceptParams& params) override {
    InterceptedOps::accept(params);
    pending_.clear();
    for (int i = 0; i < params.num_trees; ++i) hide(params.trees[i], params.results[i]);
  }
  void await_accept() override {
    InterceptedOps::await_accept();
    for (const Pending& pending : pending_) {
      *pending.result = pending.hidden;
      std::copy(pending.path.begin(), pending.path.end(), pending.hidden.path);
      std::copy(pending.sampled.begin(), pending.sampled.end(), pending.hidden.sampled);
    }
    pending_.clear();
  }

 private:
  struct Pending {
    AcceptResult* result;
    AcceptResult hidden;
    std::vector<std::int32_t> path;
    std::vector<SampledToken> sampled;
  };
  void hide(const AcceptTree& tree, AcceptResult& result) {
    Pending& pending = pending_.emplace_back(Pending{&result, result, {}, {}});
    pending.path.assign(result.path, result.path + tree.num_nodes);
    pending.sampled.assign(result.sampled, result.sampled + tree.num_nodes);
    std::fill_n(result.path, tree.num_nodes, 1 << 30);
    std::fill_n(result.sampled, tree.num_nodes, SampledToken{-5, -1.0f, -1.0f});
    result.num_accepted = tree.num_nodes - 1;
    result.failed = false;
  }
  void before() override {}
  void after() override {}

  std::vector<Pending> pending_;
};

}  // namespace fastspec::testing
