// What a step costs, as a sum of parts that are measured apart: drafting, linear layers by rows, attention by work and
// by bytes, sequences. Dense, ragged and mixed steps are one formula, and a context needs no table of its own.
// Arithmetic only: who measures is engine/cost_profile.h.
#pragma once

#include <fastspec/cost_profile.h>

#include <utility>

namespace fastspec {

/// What the cost of a step depends on.
struct StepLoad {
  int num_drafting = 0;   // sequences that a draft is made for
  double draft_keys = 0;  // cached tokens of these
  int num_sequences = 0;  // in the pass
  int num_rows = 0;       // of the pass, padding included
  double tile_keys = 0;   // sum of tiles x keys over sequences: attention's arithmetic
  double keys = 0;        // sum of keys over sequences, each read once: attention's bytes
};

/// Value of a table; 0 for an empty one, never negative.
double cost_at(const CostTable& table, int count);

class CostModel {
 public:
  CostModel() = default;
  explicit CostModel(CostParameters parameters) : parameters_(std::move(parameters)) {}

  const CostParameters& parameters() const { return parameters_; }
  /// Tiles of a sequence with this many rows.
  int tiles(int rows) const { return (rows + parameters_.rows_per_tile - 1) / parameters_.rows_per_tile; }
  /// Adds a sequence of a pass to a load: `rows` over `keys` cached tokens.
  void add_sequence(int rows, int keys, StepLoad& load) const;

  double draft_milliseconds(int num_drafting, double keys) const;
  double pass_milliseconds(const StepLoad& load) const;
  double step_milliseconds(const StepLoad& load) const {
    return draft_milliseconds(load.num_drafting, load.draft_keys) + pass_milliseconds(load);
  }

  /// Corrects the tables by a step that was measured. A step far off the prediction moves them no more than one that is
  /// off by half: the machine may have been busy with something else.
  void observe(const StepLoad& load, double draft_milliseconds, double pass_milliseconds);

 private:
  CostParameters parameters_;
  double scale_ = 1;  // of passes: what the machine does now over what it did when they were measured
};

}  // namespace fastspec
