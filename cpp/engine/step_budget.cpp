// See step_budget.h.
#include "engine/step_budget.h"

#include <algorithm>
#include <cmath>

namespace fastspec {

namespace {

// Now and then a step is verified in full, so that calibration sees what is cut: seldom, and seldom enough that it
// costs no more than this share of the time.
constexpr int kFullEvery = 100;  // steps
constexpr double kFullShare = 0.005;
constexpr int kTeachers = 8;  // sequences of a step that chances are learned from: the host waits for the fits

bool is_sampled(const Sequence& sequence) {
  return sequence.request().sampling.temperature > 0;
}

}  // namespace

StepBudget::StepBudget(const BudgetConfig& config, int max_padded)
    : config_(config), max_padded_(max_padded), switch_(config.min_saving) {}

void StepBudget::decide(std::span<const std::unique_ptr<Sequence>> running, const PagedKvCache& kv) {
  if (config_.mode != RowBudgetMode::kAuto) return;
  candidates_.clear();
  for (const auto& sequence : running) {
    const int keys = kv.kv_len(sequence->id());
    const bool decodes = sequence->len() - keys == 1 && sequence->num_generated() > 0;
    if (decodes && sequence->request().max_drafted > 0) candidates_.push_back({&sequence->drafting, keys});
  }
  switch_.decide(candidates_, max_padded_, cost_);
}

bool StepBudget::is_warming_up(const Step& step) const {
  for (int i = 0; i < step.size(); ++i) {
    if (step.sequences[i] == nullptr || step.trees[i].num_drafted() == 0) continue;
    if (!calibration_.is_fitted(is_sampled(*step.sequences[i]))) return true;
  }
  return false;
}

RowOffer StepBudget::offer_of(const Step& step) const {
  RowOffer offer{.max_drafted = step.plan.max_drafted_rows};
  bool decodes = true;
  for (const SequencePlan& planned : step.plan.sequences) {
    const int keys = planned.kv_mode == KvMode::kSparse ? planned.num_slots : planned.first_position;
    offer.sequences.push_back({planned.num_known_rows + planned.num_provisional, keys});
    offer.num_decoding += planned.is_decoding ? 1 : 0;
    decodes = decodes && planned.samples && planned.num_known_rows == 1;
    if (planned.max_drafted == 0) continue;
    ++offer.num_drafting;
    offer.draft_keys += planned.first_position;
  }
  if (decodes) offer.max_padded = max_padded_;  // passes with prompt chunks are not filled up
  return offer;
}

void StepBudget::cut(Step& step) {
  step.load = {};
  if (config_.mode == RowBudgetMode::kOff) {
    if (step.num_drafted > 0) keep_best_rows(step.trees, step.plan.max_drafted_rows);
    return;
  }
  choose(step);
}

void StepBudget::choose(Step& step) {
  survivals_.resize(step.trees.size());
  for (int i = 0; i < step.size(); ++i) {
    if (step.trees[i].num_drafted() == 0) continue;
    calibration_.chances(step.trees[i], is_sampled(*step.sequences[i]), chances_);
    survival(step.trees[i], chances_, survivals_[i]);
  }
  const RowOffer offer = offer_of(step);
  const std::span<const RankedNode> ranking = ranking_.rank(step.trees, survivals_);
  const bool is_auto = config_.mode == RowBudgetMode::kAuto;
  const std::vector<double> ratios = is_auto ? config_.ratios : std::vector<double>{config_.ratio};
  const std::vector<RowChoice> shares = price_shares(offer, ranking, ratios, cost_);
  RowChoice chosen = best_share(shares, offer.num_decoding, config_.objective, config_.min_saving);
  if (is_auto && step.num_drafted > 0) {
    const bool is_warming = is_warming_up(step);
    if (++steps_since_full_ >= kFullEvery || is_warming) {
      constexpr double kEverything[] = {1.0};
      const RowChoice full = price_shares(offer, ranking, kEverything, cost_).front();
      const double saved = kFullShare * steps_since_full_ * chosen.milliseconds;
      const bool is_due = steps_since_full_ >= kFullEvery && full.milliseconds - chosen.milliseconds <= saved;
      if (is_due) {
        steps_since_full_ = 0;
        ++stats_.full_steps;
      }
      if (is_due || is_warming) chosen = full;
    }
  }
  keep_ranked(step.trees, ranking, chosen.kept);
  step.load = chosen.load;
  step.predicted_milliseconds = chosen.milliseconds;
  if (step.num_drafted > 0) note_ratio(chosen.ratio);
}

void StepBudget::note_ratio(double ratio) {
  auto found = std::find_if(stats_.ratios.begin(), stats_.ratios.end(),
                            [&](const RatioCount& count) { return count.ratio >= ratio; });
  if (found == stats_.ratios.end() || found->ratio != ratio) found = stats_.ratios.insert(found, {ratio, 0});
  ++found->steps;
}

void StepBudget::observe(const Step& step, double seconds) {
  if (config_.mode == RowBudgetMode::kOff) return;
  bool drafts = false;
  // What is verified in full by rule says nothing of what drafting costs and brings where it is cut to what pays.
  const bool is_chosen = config_.mode != RowBudgetMode::kAuto || (steps_since_full_ > 0 && !is_warming_up(step));
  const int stride = (step.size() + kTeachers - 1) / kTeachers;
  const std::int64_t undrafted_before = stats_.passes_undrafted;
  for (int i = 0; i < step.size(); ++i) {
    const SequencePlan& planned = step.plan.sequences[i];
    Sequence* sequence = step.sequences[i];
    drafts = drafts || planned.max_drafted > 0;
    if (sequence == nullptr || !planned.is_decoding) continue;
    if (!sequence->drafting.drafts) ++stats_.passes_undrafted;
    // Where an output ends, what was drafted behind has no fate.
    if (planned.max_drafted == 0 || step.acceptances[i].finish != FinishReason::kNone) continue;
    if (planned.num_provisional > 0 || step.acceptances[i].needs_dense) continue;  // nor behind provisional ones
    const std::vector<int>& path = step.acceptances[i].path;
    // Sequences take turns: lengths move with every step.
    const int turn = static_cast<int>(sequence->id()) + sequence->len();
    if (turn % stride == 0) calibration_.observe(step.trees[i], path, is_sampled(*sequence));
    if (is_chosen) switch_.observe(step.trees[i].num_drafted(), static_cast<int>(path.size()), sequence->drafting);
  }
  if (drafts && switch_.is_probe()) ++stats_.probe_steps;
  if (!drafts && stats_.passes_undrafted > undrafted_before) ++stats_.steps_undrafted;
  observe_time(step, seconds);
}

void StepBudget::observe_time(const Step& step, double seconds) {
  const auto& planned = step.plan.sequences;
  const bool decodes = std::all_of(planned.begin(), planned.end(), [](const SequencePlan& p) { return p.is_decoding; });
  if (config_.mode != RowBudgetMode::kAuto || !decodes || !(seconds > 0) || step.warms_up) return;
  const double predicted = 1e-3 * step.predicted_milliseconds;
  ++stats_.predicted_steps;
  stats_.predicted_seconds += predicted;
  stats_.measured_seconds += seconds;
  stats_.error_seconds += std::abs(predicted - seconds);
  cost_.observe(step.load, 1e3 * step.draft_seconds, 1e3 * std::max(0.0, seconds - step.draft_seconds));
}

BudgetStats StepBudget::stats() const {
  BudgetStats stats = stats_;
  stats.reliability = calibration_.fitted_reliability();
  stats.raw_reliability = calibration_.raw_reliability();
  stats.calibration_error = calibration_error(stats.reliability);
  stats.raw_calibration_error = calibration_error(stats.raw_reliability);
  return stats;
}

void StepBudget::reset_stats() {
  stats_ = {};
}

}  // namespace fastspec
