// When passes are recorded, replayed and dropped; and the tiers they are padded to.
#include "backend/graph_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "backend/backend.h"
#include "step/row_tiers.h"
#include "support/replaying_device.h"

namespace fastspec::testing {
namespace {

using Outcome = GraphCache::Outcome;

/// Refuses to record, as a device without memory for one more graph does.
class FullDevice final : public Device {
 public:
  std::string name() const override { return "full"; }
  Buffer allocate(std::size_t, const char*) override { return {}; }
  Buffer allocate_host(std::size_t, const char*) override { return {}; }
  void copy_to_device(void*, const void*, std::size_t) override {}
  void copy_to_host(void*, const void*, std::size_t) override {}
  std::size_t available_bytes() const override { return 0; }
  bool has_graphs() const override { return true; }
  std::unique_ptr<Graph> capture(const std::function<void()>&) override {
    ++num_captures;
    return nullptr;
  }
  int num_captures = 0;
};

class GraphCacheTest : public ::testing::Test {
 protected:
  Outcome run(GraphCache& cache, GraphKey key, int value = 0) {
    return cache.run(key, [this, value] { done_.push_back(value); });
  }

  ReplayingDevice device_{make_backend("cpu:reference", DType::kFloat32, 1).device};
  std::vector<int> done_;  // by the work that ran
};

TEST_F(GraphCacheTest, RecordsTheSecondPassOfAShapeAndReplaysItAfterwards) {
  GraphCache cache(device_);
  EXPECT_EQ(run(cache, {4, 4, 2}, 1), Outcome::kEager);
  EXPECT_EQ(run(cache, {4, 4, 2}, 2), Outcome::kCaptured);
  EXPECT_EQ(run(cache, {4, 4, 2}, 3), Outcome::kReplayed);
  EXPECT_EQ(run(cache, {4, 4, 2}, 4), Outcome::kReplayed);
  EXPECT_EQ(done_, (std::vector<int>{1, 2, 2, 2}));  // each pass once, the recorded work from the second on
  const GraphUse use = cache.use();
  EXPECT_EQ(use.eager_passes, 1);
  EXPECT_EQ(use.captures, 1);
  EXPECT_EQ(use.replays, 2);
  EXPECT_EQ(use.graphs, 1);
}

TEST_F(GraphCacheTest, ShapesDoNotShareARecording) {
  GraphCache cache(device_);
  for (const GraphKey key : {GraphKey{4, 4, 2}, GraphKey{8, 8, 2}, GraphKey{4, 4, 4}}) {
    EXPECT_EQ(run(cache, key), Outcome::kEager);
    EXPECT_EQ(run(cache, key), Outcome::kCaptured);
  }
  EXPECT_EQ(cache.size(), 3u);
}

TEST_F(GraphCacheTest, TheShapeUsedLeastRecentlyGoes) {
  GraphCache cache(device_, {.count = 2});
  run(cache, {1, 1, 1});
  run(cache, {2, 2, 1});
  EXPECT_EQ(run(cache, {1, 1, 1}), Outcome::kCaptured);
  EXPECT_EQ(run(cache, {4, 4, 1}), Outcome::kEager);  // in place of {2, 2, 1}
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(run(cache, {1, 1, 1}), Outcome::kReplayed);
  EXPECT_EQ(run(cache, {2, 2, 1}), Outcome::kEager);
}

TEST_F(GraphCacheTest, GraphsBeyondTheirMemoryGo) {
  GraphCache cache(device_, {.bytes = 2 * kGraphBytes + 1});
  for (int rows = 1; rows <= 4; ++rows) {
    run(cache, {rows, rows, 1});
    EXPECT_EQ(run(cache, {rows, rows, 1}), Outcome::kCaptured);
    EXPECT_EQ(cache.use().bytes, kGraphBytes * static_cast<std::size_t>(std::min(rows, 2)));
  }
  EXPECT_EQ(run(cache, {4, 4, 1}), Outcome::kReplayed);
  EXPECT_EQ(run(cache, {1, 1, 1}), Outcome::kEager);
  cache.clear();
  EXPECT_EQ(cache.use().bytes, 0u);
}

TEST_F(GraphCacheTest, AGraphLargerThanItsMemoryIsKeptAlone) {
  GraphCache cache(device_, {.bytes = 1});
  for (int rows = 1; rows <= 3; ++rows) {
    run(cache, {rows, rows, 1});
    EXPECT_EQ(run(cache, {rows, rows, 1}), Outcome::kCaptured);
    EXPECT_EQ(run(cache, {rows, rows, 1}), Outcome::kReplayed);
    EXPECT_EQ(cache.size(), 1u);
  }
}

TEST_F(GraphCacheTest, RecordingAheadRunsTheWorkOnceAndReplaysItFromTheFirstPassOn) {
  GraphCache cache(device_);
  const auto work = [this] { done_.push_back(1); };
  cache.record({1, 1, 1}, work);
  cache.record({1, 1, 1}, work);
  EXPECT_EQ(done_.size(), 1u);
  EXPECT_EQ(cache.use().bytes, kGraphBytes);
  EXPECT_EQ(cache.run({1, 1, 1}, work), Outcome::kReplayed);
  EXPECT_EQ(done_.size(), 2u);
}

TEST_F(GraphCacheTest, ClearingDropsEveryRecording) {
  GraphCache cache(device_);
  run(cache, {1, 1, 1}, 1);
  run(cache, {1, 1, 1}, 2);
  cache.clear();
  EXPECT_EQ(run(cache, {1, 1, 1}, 3), Outcome::kEager);
  EXPECT_EQ(run(cache, {1, 1, 1}, 4), Outcome::kCaptured);
  EXPECT_EQ(done_, (std::vector<int>{1, 2, 3, 4}));
}

TEST_F(GraphCacheTest, AFailedFirstPassHasWarmedUpNothing) {
  GraphCache cache(device_);
  EXPECT_THROW(cache.run({1, 1, 1}, [] { throw std::runtime_error("planted"); }), std::runtime_error);
  EXPECT_EQ(run(cache, {1, 1, 1}), Outcome::kEager);
}

TEST(GraphCache, WithoutMemoryForAGraphPassesStayEagerAndAreNotTriedAgain) {
  FullDevice device;
  GraphCache cache(device);
  int runs = 0;
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(cache.run({1, 1, 1}, [&] { ++runs; }), Outcome::kEager);
  }
  EXPECT_EQ(runs, 4);
  EXPECT_EQ(device.num_captures, 1);
}

TEST(RowTier, IsTheSmallestThatHoldsTheRows) {
  for (int rows = 1; rows <= kMaxRowTier; ++rows) {
    const int tier = row_tier(rows, 4096);
    ASSERT_GE(tier, rows);
    ASSERT_TRUE(tier <= 128 ? (tier & (tier - 1)) == 0 : tier % 32 == 0) << tier;
    ASSERT_EQ(row_tier(tier, 4096), tier);
    const int smaller = tier == 1 ? 0 : tier <= 128 ? tier / 2 : tier - 32;
    ASSERT_GT(rows, smaller) << "a smaller tier would do";
  }
  EXPECT_EQ(row_tier(kMaxRowTier + 1, 4096), 0);
}

TEST(RowTier, StaysWithinTheLimit) {
  EXPECT_EQ(row_tier(5, 6), 6);
  EXPECT_EQ(row_tier(6, 6), 6);
  EXPECT_EQ(row_tier(7, 6), 0);
  EXPECT_EQ(row_tier(3, 6), 4);
}

}  // namespace
}  // namespace fastspec::testing
