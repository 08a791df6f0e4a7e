// Policy: who runs in the next step. Returns a StepPlan and touches no device, so it is tested without one. Owns the
// sequences and decides admission and preemption; page counts come from the PagedKvCache.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "engine/sequence.h"
#include "memory/paged_kv_cache.h"
#include "step/step_plan.h"

namespace fastspec {

struct SchedulerLimits {
  int max_num_seqs = 0;
  int max_batch_rows = 0;
  int max_tree_nodes = 0;  // of the drafter's proposals; 0 = no drafter
  int max_tree_depth = 0;
  int kv_budget = 0;        // cached keys that a sparse pass reads
  int max_provisional = 0;  // tokens that sparse passes may accept before a dense one, where they are provisional
};

class Scheduler {
 public:
  Scheduler(const SchedulerLimits& limits, PagedKvCache& kv) : limits_(limits), kv_(kv) {}

  void add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

  /// Decides a step. Order of claims on rows: roots of decoding sequences, then prompt chunks and drafted rows, each
  /// with at least half of what is left when both want it. When pages run out, the sequence admitted last gives its
  /// pages back and waits at the head of the queue; the oldest never does, so there is progress. Admission and
  /// preemption take effect here and stand even if the step fails later: no token depends on them.
  /// Held prompts give way to everybody: they stand behind all others, so pages that run out are taken from them first,
  /// and where only they run, one that is computed gives its pages and its place to a request that lacks either. It
  /// then waits until no other request does and there is room for it beside all that runs, held prompts included. So no
  /// request waits for a held prompt for ever, and held prompts never take turns.
  StepPlan plan();

  /// Admits every waiting sequence with pages for all its tokens but the last, as if they had been computed; what the
  /// pages hold is the caller's affair. For measuring decoding at a context.
  /// @throws Error(kOutOfMemory) where pages or places run out; sequences before stay admitted.
  void admit_as_computed();

  /// Takes a sequence out, running or waiting; its pages are released. nullptr when there is none of this id.
  std::unique_ptr<Sequence> remove(SeqId seq);

  Sequence& running(SeqId seq);
  /// The sequences of a plan that was just made, in its order.
  void find_planned(const StepPlan& plan, std::vector<Sequence*>& sequences) const;
  /// Ids of every sequence of a request, running or waiting.
  std::vector<SeqId> sequences_of(RequestId request) const;
  bool has_work() const { return !running_.empty() || !waiting_.empty(); }
  int num_running() const { return static_cast<int>(running_.size()); }
  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  /// Held prompts, running and waiting.
  int num_held() const;
  const std::vector<std::unique_ptr<Sequence>>& running_sequences() const { return running_; }

 private:
  struct Rows {
    int prompt = 0;
    int drafted = 0;
  };
  Rows divide_rows() const;
  int free_pages() const { return kv_.num_free_pages() - planned_pages_; }
  int wanted_drafts(const Sequence& sequence) const;
  /// Where the next rows of a sequence begin: behind its cached tokens, or before those that are computed anew.
  int first_position(const Sequence& sequence) const;
  /// Provisional tokens that a dense pass reads as a tree.
  int num_reread(const Sequence& sequence) const;
  /// Committed tokens that the next pass could compute.
  int num_known(const Sequence& sequence) const {
    return sequence.wanted_len() - num_reread(sequence) - first_position(sequence);
  }
  /// Preempts younger sequences until running_[index] can hold `num_tokens`; false when it is the youngest itself.
  bool make_room(std::size_t index, int num_tokens, StepPlan& plan);
  void preempt_last(StepPlan& plan);
  void plan_rows(const Sequence& sequence, int num_rows, StepPlan& plan);
  void plan_running(int& prompt_rows, StepPlan& plan);
  void admit(int& prompt_rows, StepPlan& plan);
  /// Where only held prompts run, preempts the one admitted last, unless it is being computed. @returns whether it did.
  bool preempt_held(StepPlan& plan);
  void plan_drafts(StepPlan& plan);
  /// A running sample of the same request or a held one of an equal prompt that has most of it cached; `blocked` when
  /// one is still computing it.
  const Sequence* prompt_holder(const Sequence& sequence, bool& blocked) const;

  SchedulerLimits limits_;
  PagedKvCache& kv_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in order of admission; in a new plan held ones behind all others
  std::deque<std::unique_ptr<Sequence>> waiting_;
  int planned_pages_ = 0;  // pages that the plan being made will borrow
};

}  // namespace fastspec
