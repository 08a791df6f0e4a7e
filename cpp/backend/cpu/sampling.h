// Draws tokens from logits: coupled acceptance of trees and coupled proposals (cpp/README.md, "Promises"). One
// implementation for both CPU paths. Each tree and each row is a pure function of its own arguments.
#pragma once

#include <vector>

#include "backend/cpu/sampling_row.h"
#include "backend/cpu/thread_pool.h"
#include "backend/params.h"

namespace fastspec::cpu {

class Sampler {
 public:
  /// @param pool shares out trees and rows; must outlive this.
  explicit Sampler(ThreadPool& pool);

  /// @throws Error(kInternal) for NaN logits and malformed trees, Error(kInvalidArgument) where no token is left to
  /// draw;
  ///         both name the row. Results are then unspecified.
  void accept(const AcceptParams& params);
  /// Keeps the rules, not what they point to. @returns 0: there is one class.
  int set_rules(const ProposalRules& rules);
  void propose(const ProposeParams& params);

 private:
  /// Scratch of one thread.
  struct Worker {
    RowSampler sampler;
    std::vector<TokenId> path;  // tokens accepted so far
  };

  static void accept_tree(const AcceptParams& params, int tree, Worker& worker);
  void propose_row(const ProposeParams& params, int row, RowSampler& sampler) const;

  ThreadPool& pool_;
  std::vector<SamplingRule> rules_;  // of proposals
  std::vector<Worker> workers_;      // one a thread
};

}  // namespace fastspec::cpu
