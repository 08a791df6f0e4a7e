// See selection_block.h. The block: slot offsets; then of each signal row offsets, rows and weights.
#include "sparse/selection_block.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace fastspec {

std::size_t SelectionBlock::signal_bytes(const Limits& limits, int signal) {
  const auto sequences = static_cast<std::size_t>(limits.max_sequences);
  const std::size_t rows = sequences * static_cast<std::size_t>(limits.max_rows[static_cast<std::size_t>(signal)]);
  return (sequences + 1 + rows) * sizeof(std::int32_t) + rows * sizeof(float);
}

std::size_t SelectionBlock::signal_begin(const Limits& limits, int signal) {
  std::size_t begin = static_cast<std::size_t>(limits.max_sequences) * sizeof(std::int64_t);
  for (int before = 0; before < signal; ++before) begin += signal_bytes(limits, before);
  return begin;
}

std::size_t SelectionBlock::device_bytes(const Limits& limits) {
  return signal_begin(limits, static_cast<int>(limits.max_rows.size()));
}

SelectionBlock::SelectionBlock(Device& device, const Limits& limits)
    : device_(device),
      limits_(limits),
      host_(device.allocate_host(device_bytes(limits), "staging of a selection")),
      memory_(device.allocate(device_bytes(limits), "arrays of a selection")),
      slot_offsets_(static_cast<std::size_t>(limits.max_sequences)),
      signals_(limits.max_rows.size()) {
  begin();
  end();
}

void SelectionBlock::begin() {
  std::fill(slot_offsets_.begin(), slot_offsets_.end(), 0);
  num_slots_ = 0;
  for (Signal& signal : signals_) {
    signal.counts.assign(static_cast<std::size_t>(limits_.max_sequences), 0);
    signal.rows.clear();
    signal.weights.clear();
  }
}

void SelectionBlock::add_slots(int sequence, int num_slots) {
  slot_offsets_[static_cast<std::size_t>(sequence)] = num_slots_;
  num_slots_ += num_slots;
}

void SelectionBlock::add_row(int index, int sequence, std::int32_t row, float weight) {
  Signal& signal = signals_[static_cast<std::size_t>(index)];
  int& count = signal.counts[static_cast<std::size_t>(sequence)];
  const int limit = limits_.max_rows[static_cast<std::size_t>(index)];
  FS_CHECK(++count <= limit, count, " rows of sequence ", sequence, " of the pass for signal ", index, ", limit ",
           limit);
  signal.rows.push_back(row);
  signal.weights.push_back(weight);
}

void SelectionBlock::end() {
  std::memcpy(host_.data(), slot_offsets_.data(), slot_offsets_.size() * sizeof(std::int64_t));
  for (std::size_t i = 0; i < signals_.size(); ++i) {
    const Signal& signal = signals_[i];
    const std::size_t capacity = slot_offsets_.size() * static_cast<std::size_t>(limits_.max_rows[i]);
    auto* offsets = reinterpret_cast<std::int32_t*>(host_.as<std::byte>() + signal_begin(limits_, static_cast<int>(i)));
    std::int32_t* rows = offsets + signal.counts.size() + 1;
    offsets[0] = 0;
    for (std::size_t s = 0; s < signal.counts.size(); ++s) offsets[s + 1] = offsets[s] + signal.counts[s];
    std::copy(signal.rows.begin(), signal.rows.end(), rows);
    std::copy(signal.weights.begin(), signal.weights.end(), reinterpret_cast<float*>(rows + capacity));
  }
}

void SelectionBlock::copy_staged() {
  device_.copy_staged({.destination = memory_.data(), .source = host_.data(), .bytes = device_bytes(limits_)});
}

const std::int64_t* SelectionBlock::slot_offsets() const {
  return memory_.as<const std::int64_t>();
}

SelectionBlock::Rows SelectionBlock::rows(int signal) const {
  const int max_rows = limits_.max_rows[static_cast<std::size_t>(signal)];
  const auto* offsets =
      reinterpret_cast<const std::int32_t*>(memory_.as<const std::byte>() + signal_begin(limits_, signal));
  const std::int32_t* rows = offsets + limits_.max_sequences + 1;
  return {offsets, rows, reinterpret_cast<const float*>(rows + std::int64_t{limits_.max_sequences} * max_rows),
          max_rows};
}

}  // namespace fastspec
