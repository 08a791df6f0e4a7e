// How a pass is cut into launches of flash attention and of our own kernels, and when which is chosen, without a
// device.
#include "attention/prompt_runs.h"

#include <gtest/gtest.h>

#include <random>

namespace fastspec::cuda {
namespace {

struct Pass {
  std::vector<std::int32_t> row_offsets{0};
  std::vector<KvList> lists;
  std::vector<NewMask> masks;

  void add(int rows, int cached, NewMask mask = NewMask::kCausal) {
    row_offsets.push_back(row_offsets.back() + rows);
    lists.push_back({.offset = 0, .length = cached});
    masks.push_back(mask);
  }
  std::vector<PromptRun> cut(std::int64_t capacity, int fewest_rows = 2) const {
    return cut_into_runs({row_offsets.data(), lists.data(), masks.data()}, static_cast<int>(lists.size()), capacity,
                         [&](int rows, int) { return rows >= fewest_rows; });
  }
};

TEST(PromptRuns, NeighboursOfOneKindShareALaunch) {
  Pass pass;
  pass.add(1, 500);
  pass.add(1, 20);
  pass.add(100, 30);
  pass.add(40, 0);
  pass.add(7, 9, NewMask::kAncestor);
  const std::vector<PromptRun> runs = pass.cut(1000);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_FALSE(runs[0].gathered);
  EXPECT_EQ(runs[0].end, 2);
  EXPECT_TRUE(runs[1].gathered);
  EXPECT_EQ(runs[1].begin, 2);
  EXPECT_EQ(runs[1].end, 4);
  EXPECT_EQ(runs[1].first_row, 2);
  EXPECT_EQ(runs[1].num_rows, 140);
  EXPECT_EQ(runs[1].max_rows, 100);
  EXPECT_EQ(runs[1].max_keys, 130);
  EXPECT_EQ(runs[1].num_keys, 170);
  EXPECT_FALSE(runs[2].gathered) << "a tree is not causal";
}

TEST(PromptRuns, SingleRowsAreNeverGathered) {
  Pass pass;
  pass.add(1, 100);
  EXPECT_FALSE(pass.cut(1000, 0)[0].gathered);
}

// Random passes: every sequence in exactly one run, in order; gathered runs fit and hold causal sequences only; no
// gathered run could have taken its successor too.
TEST(PromptRuns, CoverThePassAndFit) {
  std::mt19937 random(1);
  const auto pick = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
  for (int round = 0; round < 500; ++round) {
    Pass pass;
    const int count = pick(1, 12), capacity = pick(1, 400);
    for (int s = 0; s < count; ++s) {
      pass.add(pick(0, 2) == 0 ? 1 : pick(0, 200), pick(0, 300), pick(0, 3) == 0 ? NewMask::kFull : NewMask::kCausal);
    }
    int next = 0, next_row = 0;
    const std::vector<PromptRun> runs = pass.cut(capacity);
    for (std::size_t r = 0; r < runs.size(); ++r) {
      const PromptRun& run = runs[r];
      EXPECT_EQ(run.begin, next);
      EXPECT_EQ(run.first_row, next_row);
      next = run.end;
      next_row += run.num_rows;
      EXPECT_EQ(next_row, pass.row_offsets[next]);
      if (!run.gathered) continue;
      EXPECT_LE(run.num_keys, capacity);
      for (int s = run.begin; s < run.end; ++s) EXPECT_EQ(pass.masks[s], NewMask::kCausal);
      if (r + 1 < runs.size() && runs[r + 1].gathered) {
        const int first = runs[r + 1].begin;
        EXPECT_GT(run.num_keys + pass.lists[first].length + pass.row_offsets[first + 1] - pass.row_offsets[first],
                  capacity);
      }
    }
    EXPECT_EQ(next, count);
  }
}

TEST(PromptRuns, ShortChunksStayWithOurOwnKernels) {
  PromptShape shape{.num_rows = 8, .num_cached = 32768, .num_heads = 28, .num_kv_heads = 4, .head_dim = 128};
  EXPECT_FALSE(flash_is_faster(shape));
  shape.num_rows = 4096;
  EXPECT_TRUE(flash_is_faster(shape)) << "many rows over any prefix, where our kernel has no warpgroup instructions";
  shape.num_cached = 0;
  shape.hopper = true;
  shape.num_rows = 8192;
  EXPECT_TRUE(flash_is_faster(shape)) << "half of what our kernel computes is masked";
}

}  // namespace
}  // namespace fastspec::cuda
