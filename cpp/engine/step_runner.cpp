// The step.
#include "engine/step_runner.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/step_count.h"
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
                       Drafter* drafter, const BudgetConfig& budget, const PassLimits& limits,
                       const GraphLimits& graphs)
    : backend_(backend),
      target_(target),
      target_kv_(target_kv),
      kv_(kv),
      scheduler_(scheduler),
      drafter_(drafter),
      keeps_hidden_(drafter != nullptr && !drafter->needs().hidden_layers.empty()),
      launches_ahead_(backend.device->is_asynchronous()),
      passes_(backend, target, target_kv, limits, kv.padding_slot(), graphs),
      budget_(drafter == nullptr ? BudgetConfig{.mode = RowBudgetMode::kOff} : budget,
              backend.device->has_graphs() ? limits.max_rows : 0) {}

StepRunner::~StepRunner() {
  if (in_flight_ == nullptr) return;
  try {
    backend_.device->synchronize();
  } catch (const Error&) {
    // The device is lost; memory is given back all the same.
  }
}

StepReport StepRunner::run() {
  Stopwatch watch(stats_.step_seconds);
  if (failed_ahead_ != nullptr) std::rethrow_exception(std::exchange(failed_ahead_, nullptr));
  if (in_flight_ == nullptr && !launch()) return {};
  Step& step = collect();
  if (launches_ahead_) launch_ahead();
  return report(step);
}

bool StepRunner::launch() {
  Step& step = steps_[next_step_];
  plan(step);
  if (step.plan.empty()) return false;
  step.reservation.emplace(kv_.reserve(step.plan));
  in_flight_ = &step;
  try {
    scheduler_.find_planned(step.plan, step.sequences);
    draft(step);
    verify(step);
  } catch (...) {
    abandon();
    throw;
  }
  next_step_ = 1 - next_step_;
  return true;
}

void StepRunner::launch_ahead() {
  try {
    if (!launch()) return;
  } catch (...) {
    failed_ahead_ = std::current_exception();  // the step behind us stands and is reported first
    return;
  }
  in_flight_->is_ahead = true;
  ++stats_.steps_ahead;
  stats_.turnaround_seconds += std::chrono::duration<double>(launched_ - tokens_known_).count();
}

Step& StepRunner::collect() {
  Step& step = *in_flight_;
  try {
    accept(step);
    commit(step);
  } catch (...) {
    abandon();
    throw;
  }
  in_flight_ = nullptr;
  budget_.observe(step, step.seconds);
  observe(step);
  retire(step);
  return step;
}

StepReport StepRunner::report(Step& step) {
  Stopwatch watch(stats_.emit_seconds);
  count(step, stats_);
  StepReport report;
  report.num_sequences = step.size();
  report.num_rows = step.num_rows;
  report.outputs.reserve(step.acceptances.size());
  for (int i = 0; i < step.size(); ++i) {
    Sequence* sequence = step.sequences[i];
    if (sequence == nullptr) continue;
    if (step.ended[i] != nullptr) {
      report.outputs.push_back(sequence->take_output(step.acceptances[i].finish));
      step.ended[i].reset();
    } else if (sequence->len() > sequence->visible_len()) {
      report.outputs.push_back(sequence->take_output(FinishReason::kNone));
    }
  }
  return report;
}

void StepRunner::abandon() {
  Step& step = *std::exchange(in_flight_, nullptr);
  try {
    backend_.device->synchronize();  // what it was given to read will be written to again
  } catch (const Error&) {
    // What made us come here says more.
  }
  forget_drafts(step.plan.sequences);
  step.reservation.reset();
}

void StepRunner::drop(SeqId seq) {
  if (in_flight_ == nullptr) return;
  for (int i = 0; i < in_flight_->size(); ++i) {
    if (in_flight_->sequences[i] == nullptr || in_flight_->plan.sequences[i].seq != seq) continue;
    in_flight_->reservation->drop(i);
    in_flight_->sequences[i] = nullptr;
  }
}

void StepRunner::plan(Step& step) {
  Stopwatch watch(stats_.plan_seconds);
  step.started = Clock::now();
  budget_.decide(scheduler_.running_sequences(), kv_);
  step.plan = scheduler_.plan();
  step.num_rows = 0;
  step.num_drafted = 0;
  step.draft_seconds = 0;
  step.is_ahead = false;
  stats_.preemptions += static_cast<std::int64_t>(step.plan.preempted.size());
  if (drafter_ == nullptr) return;
  for (const SeqId seq : step.plan.preempted) drafter_->forget(seq);
  for (const SharedPrefix& shared : step.plan.shared) drafter_->share(shared.from, shared.to, shared.length);
}

void StepRunner::draft(Step& step) {
  Stopwatch watch(stats_.draft_seconds);
  Stopwatch own(step.draft_seconds);
  step.trees.resize(step.plan.sequences.size(), TokenTree(0));
  std::vector<DraftRequest> requests;
  std::vector<int> planned_index;
  for (int i = 0; i < step.size(); ++i) {
    const SequencePlan& planned = step.plan.sequences[i];
    const std::vector<TokenId>& tokens = step.sequences[i]->tokens();
    step.trees[i].reset(tokens[planned.first_position + planned.num_known_rows - 1]);
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
    step.trees[planned_index[k]] = std::move(trees[k]);
  }
}

void StepRunner::forget_drafts(std::span<const SequencePlan> planned) {
  if (drafter_ == nullptr) return;
  // What the drafter noted beyond the cached tokens lies in pages that went back.
  for (const SequencePlan& sequence : planned) drafter_->truncate(sequence.seq, sequence.first_position);
}

void StepRunner::verify(Step& step) {
  {
    Stopwatch watch(stats_.budget_seconds);
    budget_.cut(step);
  }
  Matrix logits;
  {
    Stopwatch watch(stats_.verify_seconds);
    tokens_.clear();
    for (const Sequence* sequence : step.sequences) tokens_.emplace_back(sequence->tokens());
    build_batch(step.plan, tokens_, step.trees, *step.reservation, batch_);
    step.num_rows = batch_.num_rows();
    const bool decodes = std::ssize(batch_.logit_rows) == step.num_rows;
    logits = passes_.forward(batch_, decodes);
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
    requests_.push_back({.tree = &step.trees[i],
                         .root_position = step.sequences[i]->len() - 1,
                         .rule = step.sequences[i]->rule(),
                         .wants_logprob = sampling.logprobs.has_value(),
                         .num_top_logprobs = sampling.logprobs.value_or(0)});
  }
  if (!requests_.empty()) walks_.launch(*backend_.ops, logits, requests_);
}

void StepRunner::accept(Step& step) {
  Stopwatch watch(stats_.accept_seconds);
  step.acceptances.resize(step.plan.sequences.size());
  const auto& planned = step.plan.sequences;
  if (std::any_of(planned.begin(), planned.end(), [](const SequencePlan& sequence) { return sequence.samples; })) {
    walks_.wait(*backend_.ops);
  }
  step.seconds = note_times(step);
  int walk = 0;
  for (int i = 0; i < step.size(); ++i) {
    step.acceptances[i].clear();
    if (!planned[i].samples) continue;
    walks_.read(walk++, step.acceptances[i]);
    if (step.sequences[i] != nullptr) step.sequences[i]->find_end(step.acceptances[i]);
  }
}

void StepRunner::commit(Step& step) {
  Stopwatch watch(stats_.commit_seconds);
  moves_.clear();
  kv_lens_.clear();
  for (int i = 0; i < step.size(); ++i) {
    kv_lens_.push_back(0);
    if (step.sequences[i] == nullptr) continue;
    const SequencePlan& planned = step.plan.sequences[i];
    scratch_.clear();
    for (const int node : step.acceptances[i].path) scratch_.push_back(step.trees[i].scratch[node]);
    const int known_end = planned.first_position + planned.num_known_rows;
    PagedKvCache::append_moves(*step.reservation, i, known_end, scratch_, moves_);
    kv_lens_.back() = known_end + static_cast<int>(scratch_.size());
  }
  if (!moves_.empty()) {
    const std::vector<KvView>& layers = target_kv_.layers();
    backend_.ops->copy_slots({.layers = layers.data(),
                              .num_layers = static_cast<int>(layers.size()),
                              .moves = moves_.data(),
                              .num_moves = static_cast<int>(moves_.size())});
  }
  // From here on nothing fails: the copies are in place, lengths are swapped.
  kv_.commit(*step.reservation, kv_lens_);
  step.reservation.reset();
  for (int i = 0; i < step.size(); ++i) {
    if (step.sequences[i] != nullptr) step.sequences[i]->commit(step.acceptances[i]);
  }
}

void StepRunner::observe(const Step& step) {
  if (drafter_ == nullptr) return;
  Stopwatch watch(stats_.draft_seconds);
  std::vector<Observation> observations;
  std::vector<std::vector<std::int32_t>> rows(step.plan.sequences.size());
  int first_row = 0;
  for (int i = 0; i < step.size(); ++i) {
    const int first = first_row;
    first_row += num_rows_of(step.plan.sequences[i], step.trees[i]);
    if (step.sequences[i] == nullptr || step.acceptances[i].finish != FinishReason::kNone) continue;
    const SequencePlan& planned = step.plan.sequences[i];
    if (keeps_hidden_) rows[i] = committed_rows(planned, first, step.acceptances[i].path);
    observations.push_back({.seq = planned.seq,
                            .tokens = step.sequences[i]->tokens(),
                            .pages = kv_.pages(planned.seq),
                            .version = kv_.version(planned.seq),
                            .first_position = planned.first_position,
                            .num_known_rows = planned.num_known_rows,
                            .num_accepted = static_cast<int>(step.acceptances[i].path.size()),
                            .rows = rows[i],
                            .kv_len = kv_.kv_len(planned.seq),
                            .will_draft = step.sequences[i]->request().max_drafted > 0});
  }
  try {
    drafter_->observe(observations);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kDeviceFailure) throw;
    // The tokens stand; what the drafter knows of these sequences is rebuilt when it drafts next.
    log(LogLevel::kWarning, "drafter ", drafter_->name(), " lost its state of ", observations.size(),
        " sequences, which it rebuilds where it can: ", error.what());
    for (const Observation& seen : observations) drafter_->truncate(seen.seq, 0);
    stats_.draft_failures += static_cast<std::int64_t>(observations.size());
  }
}

void StepRunner::retire(Step& step) {
  step.ended.resize(step.plan.sequences.size());
  for (int i = 0; i < step.size(); ++i) {
    if (step.sequences[i] == nullptr || step.acceptances[i].finish == FinishReason::kNone) continue;
    step.sequences[i]->error = step.acceptances[i].error;
    step.ended[i] = scheduler_.remove(step.sequences[i]->id());
    if (drafter_ != nullptr) drafter_->forget(step.ended[i]->id());
  }
}

double StepRunner::note_times(const Step& step) {
  const Clock::time_point before = std::exchange(tokens_known_, Clock::now());
  const std::int64_t end_before = last_end_;
  const DeviceTimes times = backend_.device->times();
  last_end_ = times.end;
  // Before a step that waited for its caller the device may well idle, and only its own clock knows of a caller's
  // pause.
  if (!step.is_ahead) return std::chrono::duration<double>(tokens_known_ - step.started).count();
  if (end_before == 0 || times.end <= end_before) return std::chrono::duration<double>(tokens_known_ - before).count();
  // A pass that was not replayed notes no begin.
  if (times.begin > end_before) {
    ++stats_.timed_steps;
    stats_.device_idle_seconds += 1e-9 * static_cast<double>(times.begin - end_before);
    stats_.device_busy_seconds += 1e-9 * static_cast<double>(times.end - times.begin);
  }
  return 1e-9 * static_cast<double>(times.end - end_before);
}

void StepRunner::truncate(SeqId seq, int length) {
  drop(seq);
  scheduler_.running(seq).truncate(length);
  kv_.truncate(seq, length - 1);  // the root's K/V is never cached
  if (drafter_ != nullptr) drafter_->truncate(seq, kv_.kv_len(seq));
}

std::optional<Output> StepRunner::finish(SeqId seq, FinishReason reason) {
  drop(seq);
  const std::unique_ptr<Sequence> sequence = scheduler_.remove(seq);
  if (sequence == nullptr) return std::nullopt;
  if (drafter_ != nullptr) drafter_->forget(seq);
  return sequence->take_output(reason);
}

void StepRunner::record_graphs(int max_sequences) {
  FS_CHECK(in_flight_ == nullptr, "graphs are recorded between steps");
  const int drafted = drafter_ == nullptr ? 0 : drafter_->shape().max_nodes;
  passes_.record(max_sequences, 1 + drafted);
  if (drafter_ != nullptr) drafter_->record_graphs(max_sequences);
}

EngineStats StepRunner::stats() const {
  EngineStats stats = stats_;
  const GraphUse target = passes_.graphs();
  const GraphUse draft = drafter_ == nullptr ? GraphUse{} : drafter_->graphs();
  stats.budget = budget_.stats();
  stats.graph_replays = target.replays - graphs_before_.replays;
  stats.graph_captures = target.captures - graphs_before_.captures;
  stats.graph_eager_passes = target.eager_passes - graphs_before_.eager_passes;
  stats.graphs = target.graphs + draft.graphs;
  stats.graph_bytes = target.bytes + draft.bytes;
  stats.graph_capture_seconds = target.capture_seconds + draft.capture_seconds;
  return stats;
}

void StepRunner::reset_stats() {
  stats_ = {};
  budget_.reset_stats();
  graphs_before_ = passes_.graphs();
}

}  // namespace fastspec
