// Page ids and their reference counts.
#include "memory/page_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "support/expect_error.h"

namespace fastspec::test {
namespace {

TEST(PagePoolTest, EveryPageOnceThenAnError) {
  PagePool pool(3);
  std::set<PageId> pages;
  for (int i = 0; i < 3; ++i) pages.insert(pool.allocate());
  EXPECT_EQ(pages, (std::set<PageId>{0, 1, 2}));
  EXPECT_EQ(pool.num_free(), 0);
  expect_error(ErrorCode::kInternal, {"no free page of 3"}, [&] { pool.allocate(); });
  pool.release(1);
  EXPECT_EQ(pool.allocate(), 1);
}

TEST(PagePoolTest, SharedPageIsFreeWithItsLastReference) {
  PagePool pool(2);
  const PageId page = pool.allocate();
  pool.retain(page);
  EXPECT_EQ(pool.references(page), 2);
  pool.release(page);
  EXPECT_EQ(pool.num_free(), 1);
  pool.release(page);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.references(page), 0);
}

TEST(PagePoolTest, RetainRefusesPagesThatNobodyHolds) {
  PagePool pool(2);
  for (const PageId page : {-1, 0, 2}) {
    expect_error(ErrorCode::kInternal, {"page " + std::to_string(page)}, [&] { pool.retain(page); });
  }
}

TEST(PagePoolTest, EmptyPool) {
  PagePool pool(0);
  EXPECT_EQ(pool.num_free(), 0);
  expect_error(ErrorCode::kInternal, {"no free page of 0"}, [&] { pool.allocate(); });
}

TEST(PagePoolTest, RandomOperationsAgreeWithCounts) {
  std::mt19937 random(1);
  PagePool pool(8);
  std::map<PageId, int> held;
  for (int i = 0; i < 5000; ++i) {
    const int action = static_cast<int>(random() % 3);
    if (action == 0 && pool.num_free() > 0) {
      const PageId page = pool.allocate();
      EXPECT_FALSE(held.contains(page));
      held[page] = 1;
    } else if (action != 0 && !held.empty()) {
      const auto chosen = std::next(held.begin(), static_cast<long>(random() % held.size()));
      if (action == 1 && chosen->second < 4) {
        pool.retain(chosen->first);
        ++chosen->second;
      } else {
        pool.release(chosen->first);
        if (--chosen->second == 0) held.erase(chosen);
      }
    }
    ASSERT_EQ(pool.num_free(), 8 - static_cast<int>(held.size()));
    for (PageId page = 0; page < 8; ++page) {
      ASSERT_EQ(pool.references(page), held.contains(page) ? held[page] : 0);
    }
  }
}

}  // namespace
}  // namespace fastspec::test
