// Which of a sequence's tokens have context, and where in a ring it lies. Host bookkeeping only; a hole or a cut makes
// drafts worse, never wrong.
#pragma once

#include <span>
#include <vector>

#include "base/types.h"
#include "step/slot_lists.h"

namespace fastspec {

/// What a block sees of the context: `window` tokens before its root, and the first `sinks` of the sequence.
struct ContextShape {
  int window = 0;  // 0 = all of them, in the target's slots
  int sinks = 0;   // with a window

  bool is_ring() const { return window > 0; }
  int num_slots() const { return sinks + window; }
  /// Where a position's K/V lies among num_slots(), in a ring.
  int place(int position) const { return position < sinks ? position : sinks + (position - sinks) % window; }
};

class ContextRange {
 public:
  explicit ContextRange(const ContextShape& shape) : shape_(shape) {}

  /// Positions first .. end - 1 have context now. What came before stays known if it is joined to them.
  void note(int first, int end);
  void truncate(int length);
  /// Of positions first .. end - 1, those that will still be there when all of them are.
  bool keeps(int position, int end) const {
    return !shape_.is_ring() || position < shape_.sinks || position >= end - shape_.window;
  }
  int end() const { return end_; }
  bool has_beginning() const { return begin_ == 0; }

  /// Whether a block at `root` finds all that it may see: in a ring, the first min(root, num_slots()) places.
  bool is_whole(int root) const;
  /// The positions before `root` that it may see and that are there.
  std::vector<int> visible(int root) const;

 private:
  int window_begin(int root) const;

  ContextShape shape_;
  int begin_ = 0, end_ = 0;  // positions that were computed
  int lost_ = 0;             // of these, sinks .. lost_ - 1 have given their places to others
};

}  // namespace fastspec
