// Which cached keys a sparse pass reads. One interface for every method; nothing else in the project asks which one
// runs. A selector can make a sparse pass better or worse, never a dense one.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "backend/params.h"
#include "base/types.h"
#include "model/pass_runner.h"

namespace fastspec {

/// A sequence that the pass to come reads sparsely. Its list has room for `num_slots` keys, at a place that is fixed:
/// that of list `index` of the pass.
struct SelectRequest {
  SeqId seq = 0;
  int index = 0;                  // among the sequences of the pass
  int num_cached = 0;             // keys to choose from: positions 0 .. num_cached - 1
  std::span<const PageId> pages;  // of these positions
  std::span<Slot> slots;          // [num_slots] to be written; empty where operations of the device write them
  int num_slots = 0;              // at most num_cached
  int first_row = 0;              // of the pass, of its rows: the root and what was drafted
  int num_rows = 0;
  int draft = -1;  // number among the requests of the step's draft, see Lookahead; -1 = nothing was drafted for it
};

/// What a pass made permanent for one sequence, as Observation says it to a drafter.
struct SelectorObservation {
  SeqId seq = 0;
  std::span<const PageId> pages;  // of the cached positions
  int first_position = 0;         // K/V of positions first_position .. kv_len - 1 is new
  int kv_len = 0;
  int last_row = 0;  // of the pass: that of position kv_len - 1, whose tapped queries are those of the last token
};

class KvSelector : public PassPrelude {
 public:
  virtual std::string name() const = 0;
  /// Whether lists are written by operations of the device, see issue().
  virtual bool writes_on_device() const { return false; }
  /// Whether it knows enough of a sequence to choose for its next pass, which is dense otherwise.
  virtual bool is_ready(SeqId seq) const = 0;

  /// Chooses for the sparse sequences of a pass: distinct slots of cached keys, ascending by position. One that writes
  /// on the device lays out here what issue() reads.
  virtual void select(std::span<const SelectRequest> requests) = 0;
  /// Issues the operations that write the lists, between the copy of the pass's arrays and its layers; recorded with
  /// them, by numbers of rows, so nothing that is issued may depend on what was laid out. Sequence i chooses among the
  /// keys of pass.contexts[i], which is empty for those that choose nothing. `slots` has room for those of the last
  /// select(), in its order, one behind the other.
  void issue([[maybe_unused]] const Pass& pass, [[maybe_unused]] Slot* slots) override {}
  /// Share of the attention that lies inside request `index` of the last select(), by the selector's own signal, once
  /// the draws of its pass were awaited; NaN where it knows none.
  virtual float recovered_mass([[maybe_unused]] int index) const { return std::numeric_limits<float>::quiet_NaN(); }

  /// Learns from every pass, dense ones and prompts too. A throw makes the caller drop what it knows of these sequences
  /// (truncate to 0): the tokens stand.
  virtual void observe(std::span<const SelectorObservation> observations) = 0;
  /// Forgets what depends on tokens from `length` on.
  virtual void truncate(SeqId seq, int length) = 0;
  /// Ends a sequence; unknown ones are ignored.
  virtual void forget(SeqId seq) noexcept = 0;
  /// `to` starts on the first `length` tokens of `from`, whose pages it shares.
  virtual void share(SeqId from, SeqId to, int length) = 0;
};

}  // namespace fastspec
