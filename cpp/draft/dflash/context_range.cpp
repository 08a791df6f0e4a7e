// See context_range.h.
#include "draft/dflash/context_range.h"

#include <algorithm>

namespace fastspec {

void ContextRange::note(int first, int end) {
  if (first > end_) begin_ = first;  // a hole: what lies before it is of no use
  lost_ = std::min(lost_, first);
  end_ = end;
  if (shape_.is_ring()) lost_ = std::max(lost_, end - shape_.window);
}

void ContextRange::truncate(int length) {
  end_ = std::min(end_, length);
  begin_ = std::min(begin_, end_);
}

int ContextRange::window_begin(int root) const {
  return shape_.is_ring() ? std::max(shape_.sinks, root - shape_.window) : 0;
}

bool ContextRange::is_whole(int root) const {
  const int needed = shape_.sinks > 0 ? 0 : window_begin(root);
  return end_ == root && begin_ <= needed && lost_ <= window_begin(root);
}

std::vector<int> ContextRange::visible(int root) const {
  std::vector<int> positions;
  for (int position = begin_; position < std::min(shape_.sinks, root); ++position) positions.push_back(position);
  for (int position = std::max({begin_, lost_, window_begin(root)}); position < root; ++position) {
    positions.push_back(position);
  }
  return positions;
}

}  // namespace fastspec
