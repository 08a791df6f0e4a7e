// See cost_model.h.
#include "budget/cost_model.h"

#include <algorithm>
#include <cmath>

namespace fastspec {

namespace {

constexpr double kLargestCorrection = 0.5;  // of a prediction, by one step
constexpr double kScaleRate = 0.02;
constexpr double kTableRate = 0.1;
constexpr double kFreely = 0.01;  // milliseconds beyond that: what was measured as nothing may be something

/// Where `count` lies between entries `first` and `first + 1`: 0 at the first. Outside the table it is beyond 0 to 1.
struct Place {
  std::size_t first = 0;
  double weight = 0;
};

Place find_place(const std::vector<int>& counts, int count) {
  if (counts.size() < 2) return {};
  const auto above = std::upper_bound(counts.begin(), counts.end(), count);
  const std::size_t first = std::clamp<std::ptrdiff_t>(above - counts.begin() - 1, 0, std::ssize(counts) - 2);
  return {first, double(count - counts[first]) / double(counts[first + 1] - counts[first])};
}

/// Adds `change` at `count`: to the two entries around it, by nearness.
void shift(CostTable& table, int count, double change) {
  if (table.counts.empty()) return;
  const auto [first, weight] = find_place(table.counts, count);
  const double nearness = std::clamp(weight, 0.0, 1.0);
  const auto add = [&](std::size_t entry, double part) {
    table.milliseconds[entry] = std::max(0.0, table.milliseconds[entry] + part * change);
  };
  add(first, 1 - nearness);
  if (table.counts.size() > 1) add(first + 1, nearness);
}

}  // namespace

double cost_at(const CostTable& table, int count) {
  if (table.counts.empty()) return 0;
  if (table.counts.size() == 1) return table.milliseconds[0];
  const auto [first, weight] = find_place(table.counts, count);
  const double from = table.milliseconds[first];
  return std::max(0.0, from + weight * (table.milliseconds[first + 1] - from));
}

void CostModel::add_sequence(int rows, int keys, StepLoad& load) const {
  ++load.num_sequences;
  load.num_rows += rows;
  load.tile_keys += double(tiles(rows)) * keys;
  load.keys += keys;
}

double CostModel::draft_milliseconds(int num_drafting, double keys) const {
  return num_drafting == 0 ? 0 : cost_at(parameters_.draft, num_drafting) + parameters_.draft_per_key * keys;
}

double CostModel::pass_milliseconds(const StepLoad& load) const {
  return scale_ * (cost_at(parameters_.linear, load.num_rows) + parameters_.per_tile_key * load.tile_keys +
                   parameters_.per_key * load.keys + parameters_.per_sequence * load.num_sequences);
}

void CostModel::observe(const StepLoad& load, double draft_milliseconds, double pass_milliseconds) {
  const auto bounded = [](double measured, double predicted) {
    return std::clamp(measured, (1 - kLargestCorrection) * predicted, (1 + kLargestCorrection) * predicted + kFreely);
  };
  if (load.num_drafting > 0) {
    const double predicted = this->draft_milliseconds(load.num_drafting, load.draft_keys);
    shift(parameters_.draft, load.num_drafting, kTableRate * (bounded(draft_milliseconds, predicted) - predicted));
  }
  // Most of what changes changes every pass alike (a clock, a neighbour); the rest is the rows' own.
  double predicted = this->pass_milliseconds(load);
  if (!(predicted > 0)) return;
  scale_ *= 1 + kScaleRate * (bounded(pass_milliseconds, predicted) / predicted - 1);
  predicted = this->pass_milliseconds(load);
  shift(parameters_.linear, load.num_rows, kTableRate * (bounded(pass_milliseconds, predicted) - predicted) / scale_);
}

}  // namespace fastspec
