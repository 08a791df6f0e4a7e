// See draft_switch.h.
#include "budget/draft_switch.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "step/row_tiers.h"

namespace fastspec {

namespace {

constexpr int kWarmUpSteps = 8;  // of sequences, before anything is decided
constexpr int kMemory = 16;      // drafting steps that a sequence's mean reaches back
constexpr int kMemoryOfEveryone = 256;
constexpr double kShareToStop = 0.3;   // of what a change must gain, where fewer draft: plain decoding is the yardstick
constexpr double kDoubt = 4;           // steps of everyone's that a sequence's own are mixed with
constexpr double kProbeShare = 0.005;  // of the time
constexpr int kLeastBetweenProbes = 16;  // steps

void add(DraftRecord& record, int num_verified, int num_accepted, int memory) {
  record.num_steps = std::min(record.num_steps + 1, memory);
  record.accepted += (num_accepted - record.accepted) / record.num_steps;
  record.verified += (num_verified - record.verified) / record.num_steps;
}

}  // namespace

/// Adds up what a step costs and brings while candidates join those that draft.
class DraftSwitch::Pricing {
 public:
  Pricing(std::span<const DraftCandidate> decoding, int max_padded, const CostModel& cost)
      : max_padded_(max_padded), cost_(cost), tokens_(static_cast<double>(decoding.size())) {
    for (const DraftCandidate& candidate : decoding) cost.add_sequence(1, candidate.keys, load_);
    num_roots_ = load_.num_rows;
  }

  void join(const DraftCandidate& candidate, const Expectation& expected) {
    ++load_.num_drafting;
    load_.draft_keys += candidate.keys;
    const int rows = 1 + static_cast<int>(std::lround(expected.verified));
    load_.tile_keys += double(cost_.tiles(rows) - cost_.tiles(1)) * candidate.keys;
    verified_ += expected.verified;
    tokens_ += expected.accepted;
  }

  Price price() {
    load_.num_rows = num_roots_ + static_cast<int>(std::lround(verified_));
    const int tier = max_padded_ == 0 ? 0 : row_tier(load_.num_rows, max_padded_);
    load_.num_rows = std::max(load_.num_rows, tier);
    return {tokens_, std::max(cost_.step_milliseconds(load_), 1e-9)};
  }

 private:
  int max_padded_;
  const CostModel& cost_;
  StepLoad load_;
  int num_roots_ = 0;
  double verified_ = 0;
  double tokens_;
};

DraftSwitch::Expectation DraftSwitch::expect(const DraftRecord& record) const {
  const double own = record.num_steps / (record.num_steps + kDoubt);
  return {own * record.accepted + (1 - own) * everyone_.accepted,
          own * record.verified + (1 - own) * everyone_.verified};
}

void DraftSwitch::observe(int num_verified, int num_accepted, DraftRecord& record) {
  add(record, num_verified, num_accepted, kMemory);
  add(everyone_, num_verified, num_accepted, kMemoryOfEveryone);
}

void DraftSwitch::decide(std::span<const DraftCandidate> decoding, int max_padded, const CostModel& cost) {
  is_probe_ = false;
  if (decoding.empty() || everyone_.num_steps < kWarmUpSteps) return;
  std::vector<Expectation> expected;
  for (const DraftCandidate& candidate : decoding) expected.push_back(expect(*candidate.record));
  std::vector<std::size_t> order(decoding.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return expected[a].accepted > expected[b].accepted; });

  Pricing as_it_is(decoding, max_padded, cost);
  std::size_t num_on = 0;
  for (std::size_t i = 0; i < decoding.size(); ++i) {
    if (!decoding[i].record->is_on) continue;
    as_it_is.join(decoding[i], expected[i]);
    ++num_on;
  }
  Price chosen = as_it_is.price();
  Pricing pricing(decoding, max_padded, cost);
  Price best = pricing.price();
  std::size_t num_best = 0;
  Price all = best;
  for (std::size_t count = 1; count <= order.size(); ++count) {
    pricing.join(decoding[order[count - 1]], expected[order[count - 1]]);
    all = pricing.price();
    if (all.rate() <= best.rate()) continue;
    best = all;
    num_best = count;
  }
  const double saving = num_best < num_on ? kShareToStop * min_saving_ : min_saving_;
  if (best.rate() > chosen.rate() * (1 + saving)) {
    chosen = best;
    for (std::size_t i = 0; i < order.size(); ++i) decoding[order[i]].record->is_on = i < num_best;
  }
  for (const DraftCandidate& candidate : decoding) candidate.record->drafts = candidate.record->is_on;
  probe_when_due(decoding, all, chosen);
}

void DraftSwitch::probe_when_due(std::span<const DraftCandidate> decoding, const Price& all, const Price& chosen) {
  ++steps_since_probe_;
  const bool all_draft = std::all_of(decoding.begin(), decoding.end(),
                                     [](const DraftCandidate& candidate) { return candidate.record->drafts; });
  if (all_draft) return;
  const double extra = std::max(0.0, all.milliseconds - chosen.milliseconds);
  if (steps_since_probe_ < std::max<double>(kLeastBetweenProbes, extra / (kProbeShare * chosen.milliseconds))) return;
  is_probe_ = true;
  steps_since_probe_ = 0;
  for (const DraftCandidate& candidate : decoding) candidate.record->drafts = true;
}

}  // namespace fastspec
