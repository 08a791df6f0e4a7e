// The step as a whole, and its part behind the pass: accept, commit, observe. What comes before: step_launch.cpp.
#include "engine/step_runner.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/step_count.h"
#include "engine/stopwatch.h"
#include "verify/batch.h"

namespace fastspec {

StepRunner::StepRunner(Backend& backend, Transformer& target, KvPool& target_kv, PagedKvCache& kv, Scheduler& scheduler,
                       Drafter* drafter, KvSelector* selector, const Options& options)
    : backend_(backend),
      target_(target),
      target_kv_(target_kv),
      kv_(kv),
      scheduler_(scheduler),
      drafter_(drafter),
      selector_(selector),
      max_provisional_(options.max_provisional),
      keeps_hidden_(drafter != nullptr && !drafter->needs().hidden_layers.empty()),
      launches_ahead_(backend.device->is_asynchronous()),
      passes_(backend, target, target_kv, options.pass, kv.padding_slot(), options.graphs),
      budget_(drafter == nullptr ? BudgetConfig{.mode = RowBudgetMode::kOff} : options.budget,
              backend.device->has_graphs() ? options.pass.max_rows : 0),
      sparse_(options.sparse, selector, options.max_provisional) {}

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
  const std::int64_t unusual_before = num_unusual_passes();
  try {
    scheduler_.find_planned(step.plan, step.sequences);
    draft(step);
    cut(step);
    select(step);
    verify(step);
  } catch (...) {
    abandon();
    throw;
  }
  step.warms_up = num_unusual_passes() > unusual_before;
  next_step_ = 1 - next_step_;
  return true;
}

std::int64_t StepRunner::num_unusual_passes() const {
  GraphUse use = passes_.graphs();
  if (drafter_ != nullptr) use += drafter_->graphs();
  return use.captures + use.eager_passes;
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
  sparse_.observe(step);
  observe(step);
  retire(step);
  return step;
}

StepReport StepRunner::report(Step& step) {
  Stopwatch watch(stats_.emit_seconds);
  count(step, target_kv_.bytes_per_token(), stats_);
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
    } else if (sequence->shown_len() > sequence->visible_len()) {
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
    if (step.sequences[i] == nullptr) continue;
    step.sequences[i]->find_end(step.acceptances[i], planned[i].kv_mode, sparse_.min_margin());
  }
  for (std::size_t k = 0; k < selections_.size(); ++k) {
    step.masses[selections_[k].index] = selector_->recovered_mass(static_cast<int>(k));
  }
}

void StepRunner::commit(Step& step) {
  Stopwatch watch(stats_.commit_seconds);
  moves_.clear();
  kv_lens_.clear();
  kv_lens_before_.clear();
  for (int i = 0; i < step.size(); ++i) {
    kv_lens_.push_back(0);
    kv_lens_before_.push_back(0);
    if (step.sequences[i] == nullptr) continue;
    const SequencePlan& planned = step.plan.sequences[i];
    kv_lens_before_.back() = kv_.kv_len(planned.seq);
    if (step.acceptances[i].needs_dense && step.acceptances[i].tokens.empty()) {
      kv_lens_.back() = planned.first_position;  // nothing is taken: the root stays the root
      continue;
    }
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
    if (step.sequences[i] == nullptr) continue;
    step.sequences[i]->commit(step.acceptances[i], step.plan.sequences[i].kv_mode);
  }
}

void StepRunner::observe(const Step& step) {
  take_back(step);
  observe_drafter(step);
  observe_selector(step);
}

void StepRunner::take_back(const Step& step) {
  for (int i = 0; i < step.size(); ++i) {
    const SequencePlan& planned = step.plan.sequences[i];
    const bool again = step.sequences[i] != nullptr && planned.first_position < kv_lens_before_[i];
    if (!again || kv_lens_[i] > kv_lens_before_[i]) continue;
    if (drafter_ != nullptr) drafter_->truncate(planned.seq, kv_lens_[i]);
    if (selector_ != nullptr) selector_->truncate(planned.seq, kv_lens_[i]);
  }
}

template <typename Use>
void StepRunner::for_grown(const Step& step, const Use& use) const {
  int next_row = 0;
  for (int i = 0; i < step.size(); ++i) {
    const SequencePlan& planned = step.plan.sequences[i];
    const int first_row = std::exchange(next_row, next_row + num_rows_of(planned, step.trees[i]));
    if (step.sequences[i] == nullptr || step.acceptances[i].finish != FinishReason::kNone) continue;
    if (kv_lens_[i] > planned.first_position) use(i, first_row);
  }
}

void StepRunner::observe_selector(const Step& step) {
  if (selector_ == nullptr) return;
  Stopwatch watch(stats_.select_seconds);
  std::vector<SelectorObservation> observations;
  for_grown(step, [&](int i, int first_row) {
    const SequencePlan& planned = step.plan.sequences[i];
    const std::vector<int>& path = step.acceptances[i].path;
    observations.push_back({.seq = planned.seq,
                            .pages = kv_.pages(planned.seq),
                            .first_position = planned.first_position,
                            .kv_len = kv_lens_[i],
                            .last_row = row_of_node(planned, first_row, path.empty() ? 0 : path.back())});
  });
  try {
    selector_->observe(observations);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kDeviceFailure) throw;
    log(LogLevel::kWarning, "selector ", selector_->name(), " lost its state of ", observations.size(),
        " sequences, whose passes are dense until it has another: ", error.what());
    for (const SelectorObservation& seen : observations) selector_->truncate(seen.seq, 0);
  }
}

void StepRunner::observe_drafter(const Step& step) {
  if (drafter_ == nullptr) return;
  Stopwatch watch(stats_.draft_seconds);
  std::vector<Observation> observations;
  std::vector<std::vector<std::int32_t>> rows(step.plan.sequences.size());
  for_grown(step, [&](int i, int first_row) {
    const SequencePlan& planned = step.plan.sequences[i];
    if (keeps_hidden_) rows[i] = committed_rows(planned, first_row, step.acceptances[i].path);
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
  });
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
    forget(step.ended[i]->id());
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
  Sequence& sequence = scheduler_.running(seq);
  sequence.truncate(length);
  kv_.truncate(seq, sequence.len() - 1);  // the root's K/V is never cached
  if (drafter_ != nullptr) drafter_->truncate(seq, kv_.kv_len(seq));
  if (selector_ != nullptr) selector_->truncate(seq, kv_.kv_len(seq));
}

void StepRunner::forget(SeqId seq) noexcept {
  if (drafter_ != nullptr) drafter_->forget(seq);
  if (selector_ != nullptr) selector_->forget(seq);
}

std::optional<Output> StepRunner::finish(SeqId seq, FinishReason reason) {
  drop(seq);
  const std::unique_ptr<Sequence> sequence = scheduler_.remove(seq);
  if (sequence == nullptr) return std::nullopt;
  forget(seq);
  return sequence->take_output(reason);
}

void StepRunner::record_graphs(int max_sequences) {
  FS_CHECK(in_flight_ == nullptr, "graphs are recorded between steps");
  const int drafted = drafter_ == nullptr ? 0 : drafter_->shape().max_nodes;
  const int most_rows = 1 + drafted + max_provisional_;
  passes_.record(max_sequences, most_rows);
  // Sequences that choose their keys share passes with those that read all, so these have as many rows.
  if (selector_ != nullptr && selector_->writes_on_device()) passes_.record(max_sequences, most_rows, selector_);
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
