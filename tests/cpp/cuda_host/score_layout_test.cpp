// How scoring is cut into units, and where logits lie, without a device.
#include "sparse/score_layout.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace fastspec::cuda {
namespace {

ScoreKeysParams shape(int num_heads, int num_kv_heads, const std::vector<std::int32_t>& heads, int rows, int keys) {
  ScoreKeysParams params;
  params.num_heads = num_heads;
  params.kv.num_kv_heads = num_kv_heads;
  params.heads = heads.data();
  params.num_scored_heads = static_cast<int>(heads.size());
  params.max_rows_per_sequence = rows;
  params.max_keys = keys;
  return params;
}

TEST(ScoreLayout, EveryRowOfEveryHeadIsScoredOnceAtAPlaceOfItsOwn) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    const int num_kv_heads = 1 + static_cast<int>(random() % 8), group = 1 + static_cast<int>(random() % 16);
    std::vector<std::int32_t> heads;
    for (int head = 0; head < num_kv_heads * group; ++head) {
      if (random() % 3 == 0) heads.push_back(head);
    }
    if (heads.empty()) heads.push_back(0);
    const int most_rows = static_cast<int>(random() % 80);
    ScoreWork work;
    ASSERT_TRUE(cut_into_units(shape(num_kv_heads * group, num_kv_heads, heads, most_rows, 700), work));
    ASSERT_EQ(work.num_packed, most_rows * static_cast<int>(heads.size()));
    ASSERT_EQ(work.key_stride, 1024);
    for (const int rows : {0, most_rows / 2, most_rows}) {  // replays may have fewer
      std::set<std::tuple<int, int>> seen;
      std::set<int> places;
      for (int u = 0; u < work.num_units; ++u) {
        const ScoreUnit& unit = work.units[u];
        const int num_packed = unit.rows_of(rows) * unit.num_heads;
        ASSERT_LE(num_packed, kScorePacked);
        for (int p = 0; p < num_packed; ++p) {
          const int head = work.heads[unit.first_head + p % unit.num_heads];
          ASSERT_EQ(head / group, unit.kv_head);
          ASSERT_TRUE(seen.insert({unit.first_row + p / unit.num_heads, head}).second);
          ASSERT_TRUE(places.insert(unit.packed + p).second);
        }
      }
      ASSERT_EQ(seen.size(), static_cast<std::size_t>(rows) * heads.size());
      ASSERT_TRUE(places.empty() || *places.rbegin() < work.num_packed);
    }
  }
}

TEST(ScoreLayout, FewRowsOfOneGroupReadKeysTogether) {
  ScoreWork work;
  ASSERT_TRUE(cut_into_units(shape(28, 4, {7, 8, 9, 13}, 16, 32768), work));
  EXPECT_EQ(work.num_units, 1);
  ASSERT_TRUE(cut_into_units(shape(28, 4, {7, 8, 9, 13}, 17, 32768), work));
  EXPECT_EQ(work.num_units, 2);
}

TEST(ScoreLayout, TooManyUnitsAreRefused) {
  std::vector<std::int32_t> heads;
  for (int head = 0; head < 64; ++head) heads.push_back(head);
  ScoreWork work;
  EXPECT_TRUE(cut_into_units(shape(64, 64, heads, 128, 10), work));
  EXPECT_FALSE(cut_into_units(shape(64, 64, heads, 129, 10), work));
}

TEST(ScoreLayout, ArraysFillWhatTheyAreSaidToTake) {
  ScoreWork work;
  ASSERT_TRUE(cut_into_units(shape(28, 4, {0, 9}, 5, 5000), work));
  std::vector<std::byte> place(3 * score_bytes(work.key_stride, work.num_packed, 2));
  const ScoreMemory memory = score_memory_at(place.data(), work, 3, 2);
  const std::size_t num_rows = 3 * static_cast<std::size_t>(work.num_packed);
  const float* end = memory.lse + num_rows * static_cast<std::size_t>(work.num_chunks());
  EXPECT_EQ(static_cast<const void*>(end), place.data() + place.size());
}

}  // namespace
}  // namespace fastspec::cuda
