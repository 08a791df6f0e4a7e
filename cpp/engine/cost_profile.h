// Measures what steps cost on the engine's own passes, recorded ones where the device records them: sequences of noise
// are given real pages, their rows are computed and walked as in a step. Fits the parts that CostModel adds up.
#pragma once

#include <fastspec/cost_profile.h>

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "budget/cost_model.h"
#include "draft/drafter.h"
#include "engine/sequence.h"
#include "memory/kv_pool.h"
#include "memory/paged_kv_cache.h"
#include "model/model_config.h"
#include "model/pass_runner.h"
#include "step/row_batch.h"
#include "verify/acceptance.h"

namespace fastspec {

class CostProfiler {
 public:
  struct Limits {
    int max_num_seqs = 0;
    int max_batch_rows = 0;
    int max_model_len = 0;
  };
  /// What it measures, between steps; none is in flight and no sequence has pages.
  CostProfiler(Backend& backend, const ModelConfig& model, PassRunner& passes, const KvPool& pool, PagedKvCache& kv,
               Drafter& drafter, const Limits& limits);
  ~CostProfiler();
  CostProfiler(const CostProfiler&) = delete;
  CostProfiler& operator=(const CostProfiler&) = delete;

  /// Takes `seconds` at most, and a pass more. What there was no time for goes on from what was measured.
  CostParameters measure(double seconds);
  /// Passes of other shapes than those that were fitted, beside what the model says.
  std::vector<CostCheck> check(const CostModel& cost, double seconds);

 private:
  struct Shape {
    int num_sequences = 1;
    int num_rows = 1;  // of all together
    int keys_each = 1;
    int rows_of(int sequence) const { return num_rows / num_sequences + (sequence < num_rows % num_sequences ? 1 : 0); }
  };
  /// Milliseconds of a pass and its draws, the least of some repetitions: whatever else runs only adds.
  double time_pass(const Shape& shape);
  /// The same of a draft for sequences of this length.
  double time_draft(int num_sequences, int keys_each);
  template <typename Work>
  double least_time(const Work& work);
  /// Gives the first `count` sequences `keys` cached tokens of noise each.
  void prepare(int count, int keys);
  void forget_all() noexcept;
  /// Chains of as many drafted rows as the shape has are reserved below the roots of prepared sequences.
  StepPlan plan_of(const Shape& shape, int max_drafted, int max_depth) const;
  bool fits(const Shape& shape) const;
  /// As many rows as few sequences as can have them.
  Shape dense(int num_rows, int keys_each) const;
  int next_rows(int num_rows) const;
  double seconds_left() const { return std::chrono::duration<double>(deadline_ - Clock::now()).count(); }

  void fit_attention(CostParameters& costs);
  void fit_sequences(CostParameters& costs);
  /// Times of whole passes by rows, over a few keys, into the table of linear layers.
  void measure_rows(double seconds, CostParameters& costs);
  /// Takes what is not the rows' own out of it.
  void subtract_others(CostParameters& costs) const;
  void fit_draft(CostParameters& costs);

  Backend& backend_;
  const ModelConfig& model_;
  PassRunner& passes_;
  const KvPool& pool_;
  PagedKvCache& kv_;
  Drafter& drafter_;
  Limits limits_;
  TreeWalks walks_;
  RowBatch batch_;
  Clock::time_point deadline_;
  double point_seconds_ = 0;  // that the repetitions of one point take at most
  int num_rows_ = 0;          // of the largest pass
  int short_keys_;            // of sequences whose attention costs next to nothing
  Shape long_;                // of a pass whose attention is measured
  int num_prepared_ = 0;
  int keys_prepared_ = 0;
  std::vector<bool> filled_;  // pages that hold noise
  std::vector<TokenId> tokens_;
};

}  // namespace fastspec
