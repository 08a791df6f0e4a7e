// See device_selector.h.
#include "sparse/device_selector.h"

#include <bit>
#include <cmath>

#include "base/check.h"

namespace fastspec {

namespace {

SelectionBlock::Limits block_limits(const DeviceSelector::Limits& limits) {
  return {.max_sequences = limits.max_sequences, .max_rows = {limits.history_rows, limits.lookahead_rows}};
}

std::size_t score_bytes(const DeviceSelector::Limits& limits) {
  return static_cast<std::size_t>(limits.max_sequences) * static_cast<std::size_t>(limits.max_keys) * sizeof(float);
}

}  // namespace

Matrix columns_of(const Matrix& kept, std::size_t index, int cols) {
  Matrix own = kept;
  own.data = static_cast<std::byte*>(kept.data) + index * static_cast<std::size_t>(cols) * size_of(kept.dtype);
  own.cols = cols;
  return own;
}

std::size_t DeviceSelector::device_bytes(const Limits& limits) {
  return (limits.lookahead_rows > 0 ? 2 : 1) * score_bytes(limits) + SelectionBlock::device_bytes(block_limits(limits));
}

DeviceSelector::DeviceSelector(Backend& backend, const SelectionShape& shape, const Limits& limits)
    : backend_(backend),
      shape_(shape),
      limits_(limits),
      block_(*backend.device, block_limits(limits)),
      history_(backend.device->allocate(score_bytes(limits), "scores of cached keys")),
      mass_(backend.device->allocate_host(static_cast<std::size_t>(limits.max_sequences) * 2 * sizeof(float),
                                          "attention inside selections")) {
  if (limits.lookahead_rows > 0) {
    lookahead_ = backend.device->allocate(score_bytes(limits), "scores of cached keys by lookahead");
  }
}

void DeviceSelector::select(std::span<const SelectRequest> requests) {
  block_.begin();
  chosen_.clear();
  for (const SelectRequest& request : requests) {
    block_.add_slots(request.index, request.num_slots);
    add_rows(request, block_);
    chosen_.push_back({request.index, block_.num_rows(kLookahead, request.index) > 0});
  }
  block_.end();
}

void DeviceSelector::issue(const Pass& pass, Slot* entries) {
  block_.copy_staged();
  issue_scores(pass);
  ops().select_slots({.num_sequences = pass.num_sequences,
                      .lists = pass.contexts,
                      .entries = pass.entries,
                      .page_shift = std::countr_zero(static_cast<unsigned>(limits_.page_size)),
                      .max_keys = limits_.max_keys,
                      .history = history_.as<const float>(),
                      .lookahead = lookahead_.as<const float>(),
                      .score_stride = limits_.max_keys,
                      .sinks = shape_.sinks,
                      .recent = shape_.recent,
                      .lookahead_slots = shape_.lookahead_slots,
                      .budget = shape_.budget,
                      .slots = entries,
                      .offsets = block_.slot_offsets(),
                      .mass = mass_.as<float>()});
}

float DeviceSelector::recovered_mass(int index) const {
  const Chosen& chosen = chosen_[static_cast<std::size_t>(index)];
  const float* mass = mass_.as<const float>() + 2 * chosen.sequence;
  return chosen.looks_ahead ? (mass[kHistory] + mass[kLookahead]) / 2 : mass[kHistory];
}

ScoreKeysParams DeviceSelector::scoring(const Pass& pass, Signal signal, std::span<const ScoredLayer> layers,
                                        std::size_t index) const {
  std::size_t num_heads = 0;
  for (const ScoredLayer& layer : layers) num_heads += layer.heads.size();
  const ScoredLayer& layer = layers[index];
  const SelectionBlock::Rows rows = block_.rows(signal);
  return {.query = layer.queries,
          .num_heads = layer.num_heads,
          .heads = layer.heads.data(),
          .num_scored_heads = static_cast<int>(layer.heads.size()),
          .scale = 1.0f / std::sqrt(static_cast<float>(layer.kv.head_dim)),
          .num_sequences = pass.num_sequences,
          .row_offsets = rows.offsets,
          .rows = rows.rows,
          .row_weights = rows.weights,
          .max_rows_per_sequence = rows.max_rows,
          .lists = pass.contexts,
          .entries = pass.entries,
          .max_keys = limits_.max_keys,
          .kv = layer.kv,
          .weight = static_cast<float>(layer.heads.size()) / static_cast<float>(num_heads),
          .accumulate = index > 0,
          .scores = (signal == kHistory ? history_ : lookahead_).as<float>(),
          .score_stride = limits_.max_keys};
}

}  // namespace fastspec
