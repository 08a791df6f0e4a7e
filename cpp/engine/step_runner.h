// One step, seven verbs (cpp/README.md): plan, draft, budget, select, verify, accept, commit. Owns the order
// of things and what happens when one of them fails; each verb's work is elsewhere.
#pragma once

#include <fastspec/engine.h>

#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/graph_cache.h"
#include "draft/drafter.h"
#include "engine/scheduler.h"
#include "memory/kv_pool.h"
#include "memory/paged_kv_cache.h"
#include "model/pass.h"
#include "model/transformer.h"
#include "verify/acceptance.h"

namespace fastspec {

class StepRunner {
 public:
  /// @param drafter may be null: plain decoding.
  StepRunner(Backend& backend, Transformer& target, KvPool& target_kv, PagedKvCache& kv, Scheduler& scheduler,
             Drafter* drafter, const PassLimits& limits);

  /// Runs a step; an empty report when there is nothing to do. A throw before commit leaves pages, lengths, output and
  /// statistics as they were, and the step can be run again.
  StepReport run();

  /// Drops what depends on tokens from `length` on, in every owner of the sequence's state.
  void truncate(SeqId seq, int length);
  /// Ends a sequence in every owner and returns its last output; nullopt for an unknown one.
  std::optional<Output> finish(SeqId seq, FinishReason reason);

  EngineStats& stats() { return stats_; }

 private:
  /// A step between launch and collect. Lengths and pages change only in commit.
  struct InFlight {
    StepPlan plan;
    KvReservation reservation;
    std::vector<Sequence*> sequences;  // [planned]
    std::vector<TokenTree> trees;      // [planned]
    Matrix logits;
    int num_rows = 0;  // without padding
    std::int64_t num_drafted = 0;
  };

  InFlight launch(StepPlan plan);
  StepReport collect(InFlight step);
  void draft(InFlight& step);
  /// Takes the drafter's state of these sequences back to their cached tokens, after a failure.
  void forget_drafts(std::span<const SequencePlan> planned);
  void budget(InFlight& step);
  void verify(InFlight& step);
  /// Pads the batch to a shape that recurs. nullopt for passes that are not recorded: those with prompt chunks, and
  /// those of more rows than the tiers have.
  std::optional<GraphKey> pad_to_recurring_shape();
  void forward_recorded(const Pass& pass, const GraphKey& key);
  std::vector<Acceptance> accept(const InFlight& step);
  void commit(InFlight& step, std::vector<Acceptance>& acceptances);
  void observe(const InFlight& step, const std::vector<Acceptance>& acceptances);
  void count(const InFlight& step, const std::vector<Acceptance>& acceptances);
  StepReport emit(const InFlight& step, const std::vector<Acceptance>& acceptances);

  Backend& backend_;
  Transformer& target_;
  KvPool& target_kv_;
  PagedKvCache& kv_;
  Scheduler& scheduler_;
  Drafter* drafter_;
  PassLimits limits_;
  PassBuffers buffers_;
  GraphCache graphs_;
  int graphs_generation_ = 0;  // of buffers_, when the graphs were recorded
  RowBatch batch_;
  EngineStats stats_;
};

}  // namespace fastspec
