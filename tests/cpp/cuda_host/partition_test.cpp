// The split of attention work over CTAs: equal shares, every key of every item once, places for parts that never clash.
#include "attention/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace fastspec::cuda {
namespace {

struct Step {
  std::vector<SequenceFacts> facts;
  std::vector<SequencePlan> sequences;  // one more than facts
  int num_kv_heads = 0;
  std::int64_t total = 0;

  int num_sequences() const { return static_cast<int>(facts.size()); }
};

/// What the plan kernel does, in one loop.
Step make_step(std::vector<SequenceFacts> facts, int group_size, int num_kv_heads, int tile_rows, int window = 0,
               int sinks = 0) {
  Step step;
  step.facts = std::move(facts);
  step.num_kv_heads = num_kv_heads;
  for (const SequenceFacts& sequence : step.facts) {
    SequencePlan plan = plan_sequence(sequence, group_size, tile_rows, window, sinks);
    plan.start = step.total;
    step.total += total_units(plan, num_kv_heads);
    step.sequences.push_back(plan);
  }
  SequencePlan last;
  last.start = step.total;
  step.sequences.push_back(last);
  return step;
}

std::vector<Piece> pieces_of(const Step& step, int cta, int num_ctas) {
  const Share share = share_of(step.total, cta, num_ctas);
  PieceWalk walk{step.sequences.data(), share.low, share.high,
                 sequence_of_unit(step.sequences.data(), step.num_sequences(), share.low)};
  std::vector<Piece> pieces;
  Piece piece;
  while (walk.next(piece)) pieces.push_back(piece);
  return pieces;
}

Step random_step(std::mt19937& random) {
  const auto uniform = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  std::vector<SequenceFacts> facts(static_cast<std::size_t>(uniform(1, 20)));
  for (SequenceFacts& sequence : facts) {
    sequence.num_rows = uniform(0, 3) == 0 ? 0 : uniform(1, 100);
    sequence.list_length = uniform(0, 3) == 0 ? 0 : uniform(0, 5000);
    sequence.pages = uniform(0, 1) == 0;
    sequence.mask = static_cast<NewMask>(uniform(0, 3));
    sequence.lowest_position = sequence.list_length;
  }
  const int tile_rows = 16 << uniform(0, 3);
  return make_step(std::move(facts), uniform(1, 8), uniform(1, 8), tile_rows, uniform(0, 1) * uniform(1, 700),
                   uniform(0, 100));
}

TEST(Partition, SharesAreEqualAndContiguous) {
  for (const std::int64_t total : {0LL, 1LL, 7LL, 131LL, 132LL, 133LL, 100000LL, 5000000000LL}) {
    for (const int num_ctas : {1, 2, 132, 264}) {
      std::int64_t at = 0;
      for (int cta = 0; cta < num_ctas; ++cta) {
        const Share share = share_of(total, cta, num_ctas);
        EXPECT_EQ(share.low, at);
        EXPECT_GE(share.high - share.low, total / num_ctas);
        EXPECT_LE(share.high - share.low, total / num_ctas + 1);
        if (share.low < share.high) {
          EXPECT_EQ(cta_of(total, num_ctas, share.low), cta);
          EXPECT_EQ(cta_of(total, num_ctas, share.high - 1), cta);
        }
        at = share.high;
      }
      EXPECT_EQ(at, total);
    }
  }
}

TEST(Partition, EveryUnitOfEveryItemOnce) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const Step step = random_step(random);
    const int num_ctas = round % 3 == 0 ? 7 : 264;
    std::map<std::pair<int, int>, std::vector<std::pair<int, int>>> covered;  // (sequence, item) -> ranges
    for (int cta = 0; cta < num_ctas; ++cta) {
      for (const Piece& piece : pieces_of(step, cta, num_ctas)) {
        ASSERT_LT(piece.begin, piece.end);
        ASSERT_EQ(piece.units, step.sequences[static_cast<std::size_t>(piece.sequence)].units);
        covered[{piece.sequence, piece.item}].push_back({piece.begin, piece.end});
      }
    }
    std::size_t num_items = 0;
    for (int s = 0; s < step.num_sequences(); ++s) {
      const SequencePlan& plan = step.sequences[static_cast<std::size_t>(s)];
      for (int item = 0; item < plan.row_tiles * step.num_kv_heads; ++item, ++num_items) {
        int at = 0;
        for (const auto& [begin, end] : covered[{s, item}]) {
          ASSERT_EQ(begin, at);
          at = end;
        }
        ASSERT_EQ(at, plan.units);
      }
    }
    EXPECT_EQ(covered.size(), num_items);
  }
}

TEST(Partition, PartsHaveTheirOwnPlacesAndTheMergerFindsThem) {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    const Step step = random_step(random);
    const int num_ctas = round % 2 == 0 ? 33 : 264;
    std::set<int> slots;
    std::map<std::tuple<int, int>, std::vector<int>> parts;  // item -> slots in piece order
    std::map<std::tuple<int, int>, Piece> any_piece;
    std::set<int> counters;
    for (int cta = 0; cta < num_ctas; ++cta) {
      for (const Piece& piece : pieces_of(step, cta, num_ctas)) {
        if (piece.whole()) continue;
        const int slot = partial_slot(cta, piece.begin);
        EXPECT_TRUE(slots.insert(slot).second) << "slot " << slot << " used twice";
        EXPECT_LT(slot, 2 * num_ctas);
        parts[{piece.sequence, piece.item}].push_back(slot);
        any_piece[{piece.sequence, piece.item}] = piece;
      }
    }
    for (const auto& [item, item_slots] : parts) {
      const Piece& piece = any_piece[item];
      const int first = cta_of(step.total, num_ctas, piece.item_start);
      const int last = cta_of(step.total, num_ctas, piece.item_start + piece.units - 1);
      EXPECT_TRUE(counters.insert(first).second) << "counter " << first << " serves two items";
      ASSERT_EQ(static_cast<int>(item_slots.size()), last - first + 1);
      for (int part = 0; part <= last - first; ++part) {
        EXPECT_EQ(item_slots[static_cast<std::size_t>(part)], partial_slot(first + part, part));
      }
    }
  }
}

TEST(Partition, WindowLeavesOutOnlyWhatNoRowSees) {
  std::mt19937 random(5);
  const auto uniform = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 500; ++round) {
    SequenceFacts facts;
    facts.num_rows = uniform(1, 40);
    facts.list_length = uniform(0, 1000);
    facts.mask = static_cast<NewMask>(uniform(0, 3));
    facts.lowest_position = facts.list_length + uniform(0, 50);
    const int window = uniform(1, 400);
    const int sinks = uniform(0, 1) * uniform(0, 300);
    const SequencePlan plan = plan_sequence(facts, 7, 64, window, sinks);
    std::set<int> covered;
    for (int unit = 0; unit < plan.units; ++unit) {
      const int first = first_key(plan.sink_units, plan.hidden_units, unit);
      for (int key = first; key < first + kUnitKeys; ++key) {
        EXPECT_TRUE(covered.insert(key).second);
      }
    }
    int seen_units = 0;
    for (int begin = 0; begin < num_keys(facts); begin += kUnitKeys) {
      bool seen = false;
      for (int key = begin; key < std::min(begin + kUnitKeys, num_keys(facts)); ++key) {
        const bool visible = key >= facts.list_length || key > facts.lowest_position - window || key < sinks;
        EXPECT_TRUE(!visible || covered.count(key) == 1) << "key " << key;
        seen = seen || visible;
      }
      seen_units += seen ? 1 : 0;
    }
    EXPECT_LE(plan.units, seen_units + 1);
  }
}

TEST(Partition, SlotListsIgnoreTheWindow) {
  SequenceFacts facts;
  facts.num_rows = 1;
  facts.list_length = 1000;
  facts.lowest_position = 5000;
  facts.pages = false;
  EXPECT_EQ(plan_sequence(facts, 1, 16, 64, 0).units, 16);
  facts.pages = true;
  EXPECT_EQ(plan_sequence(facts, 1, 16, 64, 0).units, 1);
}

TEST(Partition, RowsWithoutKeysStillHaveAnItem) {
  SequenceFacts facts;
  facts.num_rows = 3;
  facts.mask = NewMask::kNone;
  const SequencePlan plan = plan_sequence(facts, 7, 16, 0, 0);
  EXPECT_EQ(plan.units, 1);
  EXPECT_EQ(plan.row_tiles, 2);
  facts.num_rows = 0;
  facts.list_length = 100;
  EXPECT_EQ(total_units(plan_sequence(facts, 7, 16, 0, 0), 4), 0);
}

}  // namespace
}  // namespace fastspec::cuda
