// Reference-counted page ids.
#include "memory/page_pool.h"

#include "base/check.h"

namespace fastspec {

PagePool::PagePool(int num_pages) : references_(num_pages, 0) {
  free_.reserve(num_pages);  // so that release() never allocates
  for (PageId page = num_pages - 1; page >= 0; --page) free_.push_back(page);
}

PageId PagePool::allocate() {
  FS_CHECK(!free_.empty(), "no free page of ", num_pages());
  const PageId page = free_.back();
  free_.pop_back();
  references_[page] = 1;
  return page;
}

void PagePool::retain(PageId page) {
  FS_CHECK(page >= 0 && page < num_pages() && references_[page] > 0, "page ", page, " is not in use");
  ++references_[page];
}

void PagePool::release(PageId page) noexcept {
  if (--references_[page] == 0) free_.push_back(page);
}

}  // namespace fastspec
