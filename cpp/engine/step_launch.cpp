// The part of a step before the pass and the pass itself: plan, draft, budget, select, verify, and the walks' launch.
#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/step_runner.h"
#include "engine/stopwatch.h"
#include "verify/batch.h"

namespace fastspec {

void StepRunner::plan(Step& step) {
  Stopwatch watch(stats_.plan_seconds);
  step.started = Clock::now();
  budget_.decide(scheduler_.running_sequences(), kv_);
  sparse_.decide(scheduler_.running_sequences(), kv_, budget_.cost());
  step.plan = scheduler_.plan();
  step.num_rows = 0;
  step.num_drafted = 0;
  step.draft_seconds = 0;
  step.is_ahead = false;
  stats_.preemptions += static_cast<std::int64_t>(step.plan.preempted.size());
  for (const SeqId seq : step.plan.preempted) forget(seq);
  for (const SharedPrefix& shared : step.plan.shared) {
    if (drafter_ != nullptr) drafter_->share(shared.from, shared.to, shared.length);
    if (selector_ != nullptr) selector_->share(shared.from, shared.to, shared.length);
  }
}

void StepRunner::draft(Step& step) {
  Stopwatch watch(stats_.draft_seconds);
  Stopwatch own(step.draft_seconds);
  step.trees.resize(step.plan.sequences.size(), TokenTree(0));
  step.drafts.assign(step.plan.sequences.size(), -1);
  std::vector<DraftRequest> requests;
  std::vector<int> planned_index;
  for (int i = 0; i < step.size(); ++i) {
    const SequencePlan& planned = step.plan.sequences[i];
    const std::vector<TokenId>& tokens = step.sequences[i]->tokens();
    // Below provisional tokens, until these are put in between: see verify().
    step.trees[i].reset(tokens[planned.first_position + planned.num_known_rows + planned.num_provisional - 1]);
    if (planned.max_drafted == 0) continue;
    requests.push_back({.seq = planned.seq,
                        .tokens = tokens,
                        .pages = step.reservation->pages(i),
                        .version = step.reservation->version(i),
                        .max_drafted = planned.max_drafted,
                        .max_depth = planned.max_depth,
                        .rule = step.sequences[i]->rule()});
    planned_index.push_back(i);
  }
  if (requests.empty()) return;
  std::vector<TokenTree> trees;
  for (const DraftRequest& request : requests) trees.emplace_back(request.tokens.back());
  try {
    drafter_->draft(requests, trees);
    for (std::size_t k = 0; k < requests.size(); ++k) {
      trees[k].check(requests[k].max_drafted, requests[k].max_depth, target_.config().vocab_size);
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kDeviceFailure) throw;
    log(LogLevel::kWarning, "drafter ", drafter_->name(), " failed, ", requests.size(),
        " sequences decode plainly in this step: ", error.what());
    backend_.device->synchronize();
    forget_drafts(step.plan.sequences);
    stats_.draft_failures += static_cast<std::int64_t>(requests.size());
    return;
  }
  for (std::size_t k = 0; k < requests.size(); ++k) {
    step.num_drafted += trees[k].num_drafted();
    step.drafts[planned_index[k]] = static_cast<int>(k);
    step.trees[planned_index[k]] = std::move(trees[k]);
  }
}

void StepRunner::forget_drafts(std::span<const SequencePlan> planned) {
  if (drafter_ == nullptr) return;
  // What the drafter noted beyond the cached tokens lies in pages that went back.
  for (const SequencePlan& sequence : planned) drafter_->truncate(sequence.seq, sequence.first_position);
}

void StepRunner::cut(Step& step) {
  Stopwatch watch(stats_.budget_seconds);
  budget_.cut(step);
}

void StepRunner::select(Step& step) {
  step.masses.assign(step.plan.sequences.size(), std::numeric_limits<float>::quiet_NaN());
  selections_.clear();
  slots_.clear();
  if (selector_ == nullptr) return;
  Stopwatch watch(stats_.select_seconds);
  int next_row = 0;
  for (int i = 0; i < step.size(); ++i) {
    const SequencePlan& planned = step.plan.sequences[i];
    const int num_rows = num_rows_of(planned, step.trees[i]) + planned.num_provisional;  // which verify() puts in
    const int first_row = std::exchange(next_row, next_row + num_rows);
    if (planned.kv_mode == KvMode::kDense) continue;
    const int num_pages = kv_.pages_for(planned.first_position);
    selections_.push_back({.seq = planned.seq,
                           .index = i,
                           .num_cached = planned.first_position,
                           .pages = step.reservation->pages(i).first(num_pages),
                           .num_slots = planned.num_slots,
                           .first_row = first_row,
                           .num_rows = num_rows,
                           .draft = step.drafts[i]});
    if (!selector_->writes_on_device()) slots_.resize(slots_.size() + planned.num_slots);
  }
  if (selections_.empty()) return;
  std::size_t first = 0;
  for (SelectRequest& request : selections_) {
    if (slots_.empty()) break;
    request.slots = std::span(slots_).subspan(first, request.num_slots);
    first += request.num_slots;
  }
  try {
    selector_->select(selections_);
  } catch (...) {
    for (const SelectRequest& request : selections_) step.sequences[request.index]->sparse.dense_is_due = true;
    throw;
  }
}

void StepRunner::verify(Step& step) {
  Matrix logits;
  {
    Stopwatch watch(stats_.verify_seconds);
    tokens_.clear();
    for (const Sequence* sequence : step.sequences) tokens_.emplace_back(sequence->tokens());
    for (int i = 0; i < step.size(); ++i) {
      const SequencePlan& planned = step.plan.sequences[i];
      if (planned.num_provisional == 0) continue;
      const int root = planned.first_position + planned.num_known_rows - 1;
      step.trees[i].hang_below(tokens_[i][root], tokens_[i].subspan(root + 1, planned.num_provisional),
                               planned.max_drafted);
    }
    const bool selects = !selections_.empty() && selector_->writes_on_device();
    build_batch(step.plan, tokens_, step.trees, *step.reservation, batch_, {.slots = slots_, .by_device = selects});
    step.num_rows = batch_.num_rows();
    const bool decodes = std::ssize(batch_.logit_rows) == step.num_rows;
    logits = passes_.forward(batch_, decodes, selects ? selector_ : nullptr);
  }
  launched_ = Clock::now();
  launch_walks(step, logits);
}

void StepRunner::launch_walks(const Step& step, const Matrix& logits) {
  Stopwatch watch(stats_.accept_seconds);
  requests_.clear();
  for (int i = 0; i < step.size(); ++i) {
    if (!step.plan.sequences[i].samples) continue;
    const SamplingParams& sampling = step.sequences[i]->request().sampling;
    const SequencePlan& planned = step.plan.sequences[i];
    requests_.push_back(
        {.tree = &step.trees[i],
         .root_position = planned.first_position + planned.num_known_rows - 1,
         .rule = planned.num_provisional > 0 ? step.sequences[i]->rule_before_provisional() : step.sequences[i]->rule(),
         .wants_logprob = sampling.logprobs.has_value(),
         .num_top_logprobs = sampling.logprobs.value_or(0)});
  }
  if (!requests_.empty()) walks_.launch(*backend_.ops, logits, requests_);
}

}  // namespace fastspec
