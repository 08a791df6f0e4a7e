// The row budget of the engine: who drafts (in plan), how many drafted rows are verified (budget), and what both learn
// from a step (observe). Owns the cost model and the calibration of the drafter's confidence; the arithmetic is in
// budget/.
#pragma once

#include <fastspec/engine.h>

#include <memory>
#include <span>
#include <vector>

#include "budget/calibration.h"
#include "budget/cost_model.h"
#include "budget/draft_switch.h"
#include "budget/row_budget.h"
#include "engine/step.h"
#include "memory/paged_kv_cache.h"

namespace fastspec {

class StepBudget {
 public:
  /// @param max_padded rows of the largest pass that is filled up to a row tier; 0 where the device has no graphs.
  StepBudget(const BudgetConfig& config, int max_padded);

  /// Another mode between requests; chances, costs and what drafts bring stay as they were learned.
  void configure(const BudgetConfig& config) { config_ = config; }
  /// Prices of kAuto. Without them every drafted row is kept.
  void set_costs(const CostParameters& costs) { cost_ = CostModel(costs); }
  const CostModel& cost() const { return cost_; }

  /// Says in each running sequence's record whether it may draft in the step that is planned next.
  void decide(std::span<const std::unique_ptr<Sequence>> running, const PagedKvCache& kv);
  /// Cuts the step's trees to the rows that are verified.
  void cut(Step& step);
  /// Learns from a committed step. @param seconds of the whole step; 0 = not known.
  void observe(const Step& step, double seconds);

  BudgetStats stats() const;
  void reset_stats();

 private:
  void choose(Step& step);
  RowOffer offer_of(const Step& step) const;
  bool is_warming_up(const Step& step) const;
  void note_ratio(double ratio);
  void observe_time(const Step& step, double seconds);

  BudgetConfig config_;
  int max_padded_;
  CostModel cost_;
  Calibration calibration_;
  DraftSwitch switch_;
  int steps_since_full_ = 0;
  BudgetStats stats_;
  // Memory of the verbs, kept from step to step.
  std::vector<DraftCandidate> candidates_;
  std::vector<std::vector<float>> survivals_;
  std::vector<float> chances_;
  RowRanking ranking_;
};

}  // namespace fastspec
