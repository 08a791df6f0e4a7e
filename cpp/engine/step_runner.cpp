// The step.
#include "engine/step_runner.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "budget/row_budget.h"
#include "step/row_tiers.h"
#include "verify/batch.h"

namespace fastspec {

namespace {

/// Adds the time until its end to a counter. Times of failed steps count too: they were spent.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds), start_(Clock::now()) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  Clock::time_point start_;
};

}  // namespace

StepRunner::StepRunner(Backend& backend, Transformer& target, KvPool& target_kv, PagedKvCache& kv, Scheduler& scheduler,
                       Drafter* drafter, const PassLimits& limits)
    : backend_(backend),
      target_(target),
      target_kv_(target_kv),
      kv_(kv),
      scheduler_(scheduler),
      drafter_(drafter),
      limits_(limits),
      buffers_(*backend.device, limits),
      graphs_(*backend.device) {}

StepReport StepRunner::run() {
  Stopwatch watch(stats_.step_seconds);
  StepPlan plan;
  {
    Stopwatch plan_watch(stats_.plan_seconds);
    plan = scheduler_.plan();
    stats_.preemptions += static_cast<std::int64_t>(plan.preempted.size());
    if (drafter_ != nullptr) {
      for (const SeqId seq : plan.preempted) drafter_->forget(seq);
      for (const SharedPrefix& shared : plan.shared) drafter_->share(shared.from, shared.to, shared.length);
    }
  }
  if (plan.empty()) return {};
  const std::vector<SequencePlan> planned = plan.sequences;
  try {
    return collect(launch(std::move(plan)));
  } catch (...) {
    forget_drafts(planned);
    throw;
  }
}

StepRunner::InFlight StepRunner::launch(StepPlan plan) {
  KvReservation reservation = kv_.reserve(plan);
  InFlight step{
      .plan = std::move(plan), .reservation = std::move(reservation), .sequences = {}, .trees = {}, .logits = {}};
  step.sequences.reserve(step.plan.sequences.size());
  step.trees.reserve(step.plan.sequences.size());
  for (const SequencePlan& planned : step.plan.sequences) {
    Sequence& sequence = scheduler_.running(planned.seq);
    step.sequences.push_back(&sequence);
    step.trees.emplace_back(sequence.tokens()[planned.first_position + planned.num_known_rows - 1]);
  }
  draft(step);
  budget(step);
  verify(step);
  return step;
}

StepReport StepRunner::collect(InFlight step) {
  std::vector<Acceptance> acceptances = accept(step);
  commit(step, acceptances);
  observe(step, acceptances);
  count(step, acceptances);
  return emit(step, acceptances);
}

void StepRunner::draft(InFlight& step) {
  Stopwatch watch(stats_.draft_seconds);
  std::vector<DraftRequest> requests;
  std::vector<int> planned_index;
  for (int i = 0; i < static_cast<int>(step.plan.sequences.size()); ++i) {
    const SequencePlan& planned = step.plan.sequences[i];
    if (planned.max_drafted == 0) continue;
    requests.push_back({.seq = planned.seq,
                        .tokens = step.sequences[i]->tokens(),
                        .pages = step.reservation.pages(i),
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
    forget_drafts(step.plan.sequences);
    stats_.draft_failures += static_cast<std::int64_t>(requests.size());
    return;
  }
  for (std::size_t k = 0; k < requests.size(); ++k) {
    step.num_drafted += trees[k].num_drafted();
    step.trees[planned_index[k]] = std::move(trees[k]);
  }
}

void StepRunner::forget_drafts(std::span<const SequencePlan> planned) {
  if (drafter_ == nullptr) return;
  // What the drafter noted beyond the cached tokens lies in pages that went back.
  for (const SequencePlan& sequence : planned) drafter_->truncate(sequence.seq, sequence.first_position);
}

void StepRunner::budget(InFlight& step) {
  Stopwatch watch(stats_.budget_seconds);
  keep_best_rows(step.trees, step.plan.max_drafted_rows);
}

void StepRunner::verify(InFlight& step) {
  Stopwatch watch(stats_.verify_seconds);
  std::vector<std::span<const TokenId>> tokens;
  tokens.reserve(step.sequences.size());
  for (const Sequence* sequence : step.sequences) tokens.emplace_back(sequence->tokens());
  build_batch(step.plan, tokens, step.trees, step.reservation, batch_);
  step.num_rows = batch_.num_rows();
  if (!backend_.device->has_graphs()) {
    step.logits = target_.forward(buffers_.upload(batch_), target_kv_);
    return;
  }
  const int num_logit_rows = static_cast<int>(batch_.logit_rows.size());
  const std::optional<GraphKey> key = pad_to_recurring_shape();
  Pass pass = buffers_.upload(batch_);
  if (key) {
    pass.max_rows_per_sequence = key->max_rows_per_sequence;
    pass.host = {};
    forward_recorded(pass, *key);
  } else {
    target_.forward(pass, target_kv_);
    ++stats_.graph_eager_passes;
  }
  step.logits = target_.logits(num_logit_rows);
}

std::optional<GraphKey> StepRunner::pad_to_recurring_shape() {
  const int num_rows = batch_.num_rows();
  const int tier = row_tier(num_rows, std::min(limits_.max_rows, target_.max_logit_rows()));
  if (tier == 0 || std::ssize(batch_.logit_rows) != num_rows) return std::nullopt;
  int most = 1;
  for (int i = 0; i < batch_.num_sequences(); ++i) {
    most = std::max(most, batch_.row_offsets[i + 1] - batch_.row_offsets[i]);
  }
  // Attention packs the query heads of a K/V head; its kernels differ in how many packed rows they take at once.
  const int group_size = target_.config().group_size();
  int packed = 16;
  while (packed < most * group_size) packed *= 2;
  pad_batch(tier, limits_.max_sequences, kv_.padding_slot(), batch_);
  return GraphKey{.num_rows = tier, .max_rows_per_sequence = packed / group_size};
}

void StepRunner::forward_recorded(const Pass& pass, const GraphKey& key) {
  if (buffers_.generation() != graphs_generation_) graphs_.clear();
  graphs_generation_ = buffers_.generation();
  switch (graphs_.run(key, [this, pass] { target_.forward(pass, target_kv_); })) {
    case GraphCache::Outcome::kEager:
      ++stats_.graph_eager_passes;
      break;
    case GraphCache::Outcome::kCaptured:
      ++stats_.graph_captures;
      break;
    case GraphCache::Outcome::kReplayed:
      ++stats_.graph_replays;
      break;
  }
}

std::vector<Acceptance> StepRunner::accept(const InFlight& step) {
  Stopwatch watch(stats_.accept_seconds);
  std::vector<AcceptRequest> requests;
  std::vector<std::size_t> planned_index;
  requests.reserve(step.sequences.size());
  planned_index.reserve(step.sequences.size());
  for (std::size_t i = 0; i < step.sequences.size(); ++i) {
    if (!step.plan.sequences[i].samples) continue;
    const SamplingParams& sampling = step.sequences[i]->request().sampling;
    requests.push_back({.tree = &step.trees[i],
                        .root_position = step.sequences[i]->len() - 1,
                        .rule = step.sequences[i]->rule(),
                        .wants_logprob = sampling.logprobs.has_value(),
                        .num_top_logprobs = sampling.logprobs.value_or(0)});
    planned_index.push_back(i);
  }
  std::vector<Acceptance> result(step.sequences.size());
  if (requests.empty()) return result;
  std::vector<Acceptance> drawn = accept_trees(*backend_.ops, step.logits, requests);
  for (std::size_t k = 0; k < drawn.size(); ++k) {
    step.sequences[planned_index[k]]->find_end(drawn[k]);
    result[planned_index[k]] = std::move(drawn[k]);
  }
  return result;
}

void StepRunner::commit(InFlight& step, std::vector<Acceptance>& acceptances) {
  Stopwatch watch(stats_.commit_seconds);
  std::vector<SlotMove> moves;
  std::vector<int> kv_lens;
  std::vector<int> scratch;
  for (int i = 0; i < static_cast<int>(acceptances.size()); ++i) {
    const SequencePlan& planned = step.plan.sequences[i];
    scratch.clear();
    for (const int node : acceptances[i].path) scratch.push_back(step.trees[i].scratch[node]);
    const int known_end = planned.first_position + planned.num_known_rows;
    PagedKvCache::append_moves(step.reservation, i, known_end, scratch, moves);
    kv_lens.push_back(known_end + static_cast<int>(scratch.size()));
  }
  if (!moves.empty()) {
    const std::vector<KvView>& layers = target_kv_.layers();
    backend_.ops->copy_slots({.layers = layers.data(),
                              .num_layers = static_cast<int>(layers.size()),
                              .moves = moves.data(),
                              .num_moves = static_cast<int>(moves.size())});
  }
  // From here on nothing fails: the copies are in place, lengths are swapped.
  kv_.commit(step.reservation, kv_lens);
  for (std::size_t i = 0; i < acceptances.size(); ++i) step.sequences[i]->commit(acceptances[i]);
}

void StepRunner::observe(const InFlight& step, const std::vector<Acceptance>& acceptances) {
  if (drafter_ == nullptr) return;
  Stopwatch watch(stats_.draft_seconds);
  std::vector<Observation> observations;
  for (std::size_t i = 0; i < acceptances.size(); ++i) {
    const SequencePlan& planned = step.plan.sequences[i];
    observations.push_back({.seq = planned.seq,
                            .tokens = step.sequences[i]->tokens(),
                            .pages = kv_.pages(planned.seq),
                            .first_position = planned.first_position,
                            .num_known_rows = planned.num_known_rows,
                            .num_accepted = static_cast<int>(acceptances[i].path.size()),
                            .kv_len = kv_.kv_len(planned.seq),
                            .will_draft = step.sequences[i]->request().max_drafted > 0});
  }
  try {
    drafter_->observe(observations);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kDeviceFailure) throw;
    // The tokens stand; what the drafter knows of these sequences is rebuilt when it drafts next.
    log(LogLevel::kWarning, "drafter ", drafter_->name(), " lost its state of ", observations.size(),
        " sequences and rebuilds it: ", error.what());
    for (const Observation& seen : observations) drafter_->truncate(seen.seq, 0);
    stats_.draft_failures += static_cast<std::int64_t>(observations.size());
  }
}

void StepRunner::count(const InFlight& step, const std::vector<Acceptance>& acceptances) {
  ++stats_.steps;
  stats_.rows += step.num_rows;
  stats_.drafted_tokens += step.num_drafted;
  for (std::size_t i = 0; i < acceptances.size(); ++i) {
    const SequencePlan& planned = step.plan.sequences[i];
    OutputStats& stats = step.sequences[i]->stats;
    const auto committed = static_cast<std::int64_t>(acceptances[i].tokens.size());
    stats_.generated_tokens += committed;
    if (!planned.is_decoding) {
      stats_.prompt_rows += planned.num_known_rows;
      continue;
    }
    const TokenTree& tree = step.trees[i];
    const std::int64_t num_accepted = acceptances[i].num_drafts_accepted;
    ++stats.decoding_passes;
    ++stats_.decoding_passes;
    stats.decoding_tokens += committed;
    stats_.decoding_tokens += committed;
    stats.drafted_tokens += tree.num_drafted();
    stats_.verified_tokens += tree.num_drafted();
    stats.accepted_tokens += num_accepted;
    stats_.accepted_tokens += num_accepted;
    if (tree.num_drafted() == 0) continue;
    const std::vector<int> depths = tree.depths();
    const std::size_t depth = *std::max_element(depths.begin(), depths.end());
    if (stats_.offered_by_position.size() < depth) {
      stats_.offered_by_position.resize(depth, 0);
      stats_.accepted_by_position.resize(depth, 0);
    }
    for (std::size_t d = 0; d < depth; ++d) ++stats_.offered_by_position[d];
    for (std::int64_t d = 0; d < num_accepted; ++d) ++stats_.accepted_by_position[d];
  }
}

StepReport StepRunner::emit(const InFlight& step, const std::vector<Acceptance>& acceptances) {
  Stopwatch watch(stats_.emit_seconds);
  StepReport report;
  report.num_sequences = static_cast<int>(step.sequences.size());
  report.num_rows = step.num_rows;
  report.outputs.reserve(acceptances.size());
  for (std::size_t i = 0; i < acceptances.size(); ++i) {
    Sequence& sequence = *step.sequences[i];
    const FinishReason reason = acceptances[i].finish;
    if (reason != FinishReason::kNone) {
      sequence.error = acceptances[i].error;
      report.outputs.push_back(*finish(sequence.id(), reason));
    } else if (sequence.len() > sequence.visible_len()) {
      report.outputs.push_back(sequence.take_output(FinishReason::kNone));
    }
  }
  return report;
}

void StepRunner::truncate(SeqId seq, int length) {
  scheduler_.running(seq).truncate(length);
  kv_.truncate(seq, length - 1);  // the root's K/V is never cached
  if (drafter_ != nullptr) drafter_->truncate(seq, kv_.kv_len(seq));
}

std::optional<Output> StepRunner::finish(SeqId seq, FinishReason reason) {
  const std::unique_ptr<Sequence> sequence = scheduler_.remove(seq);
  if (sequence == nullptr) return std::nullopt;
  if (drafter_ != nullptr) drafter_->forget(seq);
  return sequence->take_output(reason);
}

}  // namespace fastspec
