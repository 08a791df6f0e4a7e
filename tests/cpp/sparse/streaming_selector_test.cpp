// What the streaming selector reads.
#include "sparse/streaming_selector.h"

#include <gtest/gtest.h>

namespace fastspec {
namespace {

constexpr int kPageSize = 4;

std::vector<Slot> selected(int sinks, int num_cached, int num_slots) {
  const std::vector<PageId> pages = {7, 2, 9, 0, 5};
  std::vector<Slot> slots(static_cast<std::size_t>(num_slots));
  SelectRequest request{.num_cached = num_cached, .pages = pages, .slots = slots, .num_slots = num_slots};
  StreamingSelector(sinks, kPageSize).select({&request, 1});
  return slots;
}

TEST(StreamingSelectorTest, ReadsSinksAndTheLastKeysInOrder) {
  EXPECT_EQ(selected(2, 18, 7), (std::vector<Slot>{28, 29, 1, 2, 3, 20, 21}));
  EXPECT_EQ(selected(0, 18, 3), (std::vector<Slot>{3, 20, 21}));
  EXPECT_EQ(selected(3, 18, 3), (std::vector<Slot>{28, 29, 30}));
}

TEST(StreamingSelectorTest, ReadsAllWhereAllFits) {
  EXPECT_EQ(selected(2, 6, 6), (std::vector<Slot>{28, 29, 30, 31, 8, 9}));
}

TEST(StreamingSelectorTest, RefusesMoreSlotsThanKeys) {
  EXPECT_THROW(selected(2, 6, 7), Error);
}

}  // namespace
}  // namespace fastspec
