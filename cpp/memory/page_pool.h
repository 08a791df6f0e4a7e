// Ids of KV pages and how many sequences hold each. Knows no tensors and no sequences.
#pragma once

#include <vector>

#include "base/types.h"

namespace fastspec {

class PagePool {
 public:
  explicit PagePool(int num_pages);

  /// A free page with one reference. @throws Error(kInternal) when there is none: callers plan with num_free().
  PageId allocate();
  void retain(PageId page);
  /// Gives one reference back; the page is free when none is left.
  void release(PageId page) noexcept;

  int references(PageId page) const { return references_[page]; }
  int num_pages() const { return static_cast<int>(references_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }

 private:
  std::vector<int> references_;
  std::vector<PageId> free_;  // a stack: the page used last is warm in the cache
};

}  // namespace fastspec
