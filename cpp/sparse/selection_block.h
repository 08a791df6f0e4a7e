// What the operations of a selection read besides keys and queries, laid out by the host in one block that a recording
// copies: which rows ask for which sequence of the pass, and where each sequence's slots go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/device.h"

namespace fastspec {

class SelectionBlock {
 public:
  struct Limits {
    int max_sequences = 0;
    std::vector<int> max_rows;  // of a sequence, for each signal
  };
  /// Rows of a signal, in device memory, as ScoreKeysParams takes them.
  struct Rows {
    const std::int32_t* offsets = nullptr;
    const std::int32_t* rows = nullptr;
    const float* weights = nullptr;
    int max_rows = 0;  // of a sequence
  };
  SelectionBlock(Device& device, const Limits& limits);
  static std::size_t device_bytes(const Limits& limits);

  void begin();
  /// Rows of a sequence that were added.
  int num_rows(int signal, int sequence) const {
    return signals_[static_cast<std::size_t>(signal)].counts[static_cast<std::size_t>(sequence)];
  }
  /// Says where the next chosen sequence's `num_slots` slots go: behind those of the ones before. Sequences ascend.
  void add_slots(int sequence, int num_slots);
  /// Sequences of a signal ascend.
  void add_row(int signal, int sequence, std::int32_t row, float weight);
  /// Lays out what was added, for copy_staged(). The device must be done with what was laid out before.
  void end();
  void copy_staged();

  const std::int64_t* slot_offsets() const;  // [max_sequences] in device memory
  Rows rows(int signal) const;

 private:
  struct Signal {
    std::vector<int> counts;  // [max_sequences] rows
    std::vector<std::int32_t> rows;
    std::vector<float> weights;
  };
  static std::size_t signal_begin(const Limits& limits, int signal);
  static std::size_t signal_bytes(const Limits& limits, int signal);

  Device& device_;
  Limits limits_;
  Buffer host_, memory_;
  std::vector<std::int64_t> slot_offsets_;
  std::int64_t num_slots_ = 0;
  std::vector<Signal> signals_;
};

}  // namespace fastspec
