// One step, seven verbs (cpp/README.md): plan, draft, budget, select, verify, accept, commit. Owns the order
// of things and what happens when one of them fails; each verb's work is elsewhere.
#pragma once

#include <fastspec/engine.h>

#include <array>
#include <exception>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/graph_cache.h"
#include "draft/drafter.h"
#include "engine/scheduler.h"
#include "engine/sparse_steps.h"
#include "engine/step.h"
#include "engine/step_budget.h"
#include "memory/kv_pool.h"
#include "memory/paged_kv_cache.h"
#include "model/pass_runner.h"
#include "model/transformer.h"
#include "sparse/kv_selector.h"
#include "verify/acceptance.h"

namespace fastspec {

class StepRunner {
 public:
  struct Options {
    BudgetConfig budget;
    SparseConfig sparse;
    int max_provisional = 0;  // see SparseSteps
    PassLimits pass;
    GraphLimits graphs;  // of the target's passes
  };
  /// @param drafter may be null: plain decoding. @param selector may be null: dense passes only.
  StepRunner(Backend& backend, Transformer& target, KvPool& target_kv, PagedKvCache& kv, Scheduler& scheduler,
             Drafter* drafter, KvSelector* selector, const Options& options);
  /// Waits for a step in flight, whose results nobody will read.
  ~StepRunner();
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;

  /// Runs a step; an empty report when there is nothing to do. A throw before commit leaves pages, lengths, output and
  /// statistics as they were, and the step can be run again. On an asynchronous device the step that follows is
  /// launched before this one's report is made; when that fails, the next call says so.
  StepReport run();

  /// Drops what depends on tokens from `length` on, in every owner of the sequence's state.
  void truncate(SeqId seq, int length);
  /// Ends a sequence in every owner and returns its last output; nullopt for an unknown one.
  std::optional<Output> finish(SeqId seq, FinishReason reason);

  /// Records the passes of decoding for up to `max_sequences` sequences, the drafter's too. Between steps, none in
  /// flight.
  void record_graphs(int max_sequences);

  EngineStats stats() const;
  void reset_stats();

  /// For measuring passes between steps, none in flight.
  PassRunner& passes() { return passes_; }
  StepBudget& budget() { return budget_; }
  SparseSteps& sparse() { return sparse_; }

 private:
  /// Plans a step and issues it as far as the draws; false when there is nothing to do.
  bool launch();
  void launch_ahead();
  /// Of target and drafter so far, recorded or issued operation by operation.
  std::int64_t num_unusual_passes() const;
  /// Waits for the step in flight and commits it; it is no longer in flight then.
  Step& collect();
  StepReport report(Step& step);
  /// Undoes the step in flight.
  void abandon();
  /// Takes a sequence out of the step in flight.
  void drop(SeqId seq);

  void plan(Step& step);
  void draft(Step& step);
  /// Takes the drafter's state of these sequences back to their cached tokens, after a failure.
  void forget_drafts(std::span<const SequencePlan> planned);
  void cut(Step& step);
  void select(Step& step);
  void verify(Step& step);
  void launch_walks(const Step& step, const Matrix& logits);
  void accept(Step& step);
  void commit(Step& step);
  /// Tells the drafter and the selector what the step made of their sequences.
  void observe(const Step& step);
  /// Cuts what they know of sequences of which the step took tokens back.
  void take_back(const Step& step);
  /// Calls use(index, first row of the pass) for the sequences that go on and have K/V of this step.
  template <typename Use>
  void for_grown(const Step& step, const Use& use) const;
  void observe_drafter(const Step& step);
  void observe_selector(const Step& step);
  void forget(SeqId seq) noexcept;
  /// Takes sequences that ended out of every owner of their state, so that the next plan has their place.
  void retire(Step& step);
  /// Adds the device's and the host's time between two steps. @returns seconds of this one, from the tokens of the one
  /// before or from its own plan on.
  double note_times(const Step& step);

  Backend& backend_;
  Transformer& target_;
  KvPool& target_kv_;
  PagedKvCache& kv_;
  Scheduler& scheduler_;
  Drafter* drafter_;
  KvSelector* selector_;
  const int max_provisional_;
  const bool keeps_hidden_;  // the drafter reads hidden states of every pass
  const bool launches_ahead_;
  PassRunner passes_;
  StepBudget budget_;
  SparseSteps sparse_;
  TreeWalks walks_;  // of the step in flight
  RowBatch batch_;
  std::array<Step, 2> steps_;  // the one in flight and the one being reported, in turn
  Step* in_flight_ = nullptr;
  int next_step_ = 0;
  std::exception_ptr failed_ahead_;  // what became of a launch ahead, until the next run() says it
  std::int64_t last_end_ = 0;        // of draws, by the device's clock
  Clock::time_point tokens_known_;   // those of the step collected last
  Clock::time_point launched_;       // the pass launched last
  EngineStats stats_;
  GraphUse graphs_before_;  // when the statistics were reset

  // Memory of the verbs, kept from step to step.
  std::vector<std::span<const TokenId>> tokens_;
  std::vector<AcceptRequest> requests_;
  std::vector<SlotMove> moves_;
  std::vector<int> kv_lens_, kv_lens_before_, scratch_;
  std::vector<SelectRequest> selections_;  // of the step in flight
  std::vector<Slot> slots_;                // that they read
};

}  // namespace fastspec
