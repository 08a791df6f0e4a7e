// The queries of each sequence's last confirmed token, kept on the device from pass to pass: the next pass overwrites
// what the target keeps of this one. Knows rows and sequences; scores nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "sparse/kv_selector.h"

namespace fastspec {

class QueryStore {
 public:
  /// @param pass_queries what the target keeps of its passes (Transformer::kept_queries).
  QueryStore(Backend& backend, const Matrix& pass_queries, int max_sequences);
  static std::size_t device_bytes(int cols, std::size_t element_size, int max_sequences);

  bool holds(SeqId seq) const;
  /// Of queries(); of a sequence that is held.
  int row(SeqId seq) const { return states_.at(seq).row; }
  /// [max_sequences, cols] always at the same place.
  Matrix queries() const;

  void observe(std::span<const SelectorObservation> observations);
  void truncate(SeqId seq, int length);
  void forget(SeqId seq) noexcept;

 private:
  struct State {
    int row = 0;
    int length = 0;  // cached tokens up to and including the one whose queries it has; 0 = none
  };
  int row_of(SeqId seq);

  Backend& backend_;
  Matrix pass_queries_;
  Buffer queries_;
  Buffer row_index_;  // [max_sequences] rows of the pass, -1 = none; on the device
  std::vector<std::int32_t> rows_;
  std::vector<int> free_rows_;
  std::unordered_map<SeqId, State> states_;
};

}  // namespace fastspec
