// Sparse passes in the engine: which of the running sequences take one next (in plan), and what is learnt from a step
// (observe). What a selector chooses is its own affair (sparse/), how long a run of provisional tokens pays is
// arithmetic (budget/run_length.h).
#pragma once

#include <fastspec/config.h>

#include <memory>
#include <span>

#include "budget/cost_model.h"
#include "budget/run_length.h"
#include "engine/step.h"
#include "memory/paged_kv_cache.h"
#include "sparse/kv_selector.h"

namespace fastspec {

class SparseSteps {
 public:
  /// Provisional tokens of a sequence that a dense pass reads as a tree, at most; 0 where none are.
  static int longest_run(const EngineConfig& config, int max_nodes);

  /// @param selector may be null: dense passes only. @param max_provisional see longest_run().
  SparseSteps(const SparseConfig& config, const KvSelector* selector, int max_provisional)
      : config_(config), selector_(selector), max_provisional_(max_provisional) {}

  /// Says in each running sequence's record how its next decoding pass reads its cached keys.
  /// @param cost of passes where it is known; otherwise what steps took is measured.
  void decide(std::span<const std::unique_ptr<Sequence>> running, const PagedKvCache& kv, const CostModel& cost) const;
  /// Learns from a committed step.
  void observe(const Step& step);

  /// See SparseConfig.
  double min_margin() const { return config_.min_margin; }

  /// For tests: false lets contexts that fit the budget be read by lists of all their slots, too.
  void set_bypass(bool bypass) { bypass_ = bypass; }

 private:
  bool is_dense_due(const Sequence& sequence, int keys, int num_running, const CostModel& cost) const;
  PassPrices prices_of(int keys, int num_running, const CostModel& cost) const;
  void observe_sequence(const SequencePlan& planned, const Acceptance& acceptance, SparseRecord& record);

  SparseConfig config_;
  const KvSelector* selector_;
  int max_provisional_;
  RunLength run_;
  bool bypass_ = true;
};

}  // namespace fastspec
