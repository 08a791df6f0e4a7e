// A step between its launch and its report. Data only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "budget/cost_model.h"
#include "engine/sequence.h"
#include "memory/paged_kv_cache.h"
#include "step/acceptance.h"
#include "step/step_plan.h"
#include "step/token_tree.h"

namespace fastspec {

/// Arrays are [planned sequence]; their memory is used again by later steps.
struct Step {
  StepPlan plan;
  std::optional<KvReservation> reservation;
  std::vector<Sequence*> sequences;  // null where one was cancelled or cut while the pass ran: its part is dropped
  std::vector<TokenTree> trees;
  std::vector<int> drafts;    // number of its draft request; -1 = nothing was drafted
  std::vector<float> masses;  // share of the attention inside what was selected; NaN: nothing was, or it is not known
  int num_rows = 0;           // of the pass, padding not counted
  std::int64_t num_drafted = 0;
  Clock::time_point started;  // its plan
  double draft_seconds = 0;   // of the host
  StepLoad load;              // what its cost depends on, and what the cost model says; of a row budget only
  double predicted_milliseconds = 0;
  double seconds = 0;     // that it took, see StepRunner::note_times; from accept on
  bool is_ahead = false;  // launched before the step before it was reported
  /// A pass was recorded, or launched operation by operation on a device that records: its time is no usual one.
  bool warms_up = false;
  // From collect on.
  std::vector<Acceptance> acceptances;
  std::vector<std::unique_ptr<Sequence>> ended;  // null for those that go on

  int size() const { return static_cast<int>(plan.sequences.size()); }
};

}  // namespace fastspec
