// Rows of a pass: tokens, positions, slots, masks, logit rows and page lists, against what a plan and its trees say.
#include "verify/batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "support/expect_error.h"

namespace fastspec::test {
namespace {

constexpr int kPageSize = 4;

bool sees(const RowBatch& batch, int row, int new_row) {
  return (batch.mask_bits[std::size_t(row) * kMaskWords + new_row / 64] >> (new_row % 64) & 1) != 0;
}

/// A cache, committed tokens of its sequences and the plan of one step.
struct Step {
  PagedKvCache kv;
  StepPlan plan;
  std::vector<std::vector<TokenId>> tokens;
  std::vector<TokenTree> trees;

  explicit Step(int num_pages = 160, int num_scratch_pages = 80) : kv(num_pages, num_scratch_pages, kPageSize) {}

  /// A sequence with `cached` tokens in the cache, whose next `known` tokens are computed. Token at p = 100 * seq + p.
  void add(int cached, int known, bool samples, const TokenTree* tree = nullptr) {
    const SeqId seq = static_cast<SeqId>(tokens.size()) + 1;
    kv.add(seq);
    StepPlan fill;
    fill.sequences.push_back({.seq = seq, .first_position = 0, .num_known_rows = cached});
    KvReservation reservation = kv.reserve(fill);
    const int kv_lens[] = {cached};
    kv.commit(reservation, kv_lens);

    std::vector<TokenId>& committed = tokens.emplace_back();
    for (int position = 0; position < cached + known + (samples ? 0 : 5); ++position) {
      committed.push_back(static_cast<TokenId>(100 * seq + position));
    }
    SequencePlan& planned = plan.sequences.emplace_back();
    planned.seq = seq;
    planned.first_position = cached;
    planned.num_known_rows = known;
    planned.samples = samples;
    trees.push_back(tree == nullptr ? TokenTree(committed[cached + known - 1]) : *tree);
    planned.max_drafted = 0;
    for (const int scratch : trees.back().scratch) planned.max_drafted = std::max(planned.max_drafted, scratch + 1);
    planned.max_depth = planned.max_drafted;
  }

  RowBatch build(const KvReservation& reservation) const {
    RowBatch batch;
    batch.tokens = {1, 2, 3};  // of a step before
    batch.end_sequence(NewMask::kAncestor);
    batch.mask_bits.assign(batch.mask_bits.size(), ~std::uint64_t{0});
    const std::vector<std::span<const TokenId>> spans(tokens.begin(), tokens.end());
    build_batch(plan, spans, trees, reservation, batch);
    return batch;
  }
};

TEST(BuildBatchTest, PromptChunkPlainRowAndChainInOnePass) {
  Step step;
  step.add(5, 6, false);  // a chunk in the middle of a prompt
  step.add(8, 1, true);   // plain decoding
  TokenTree chain(0);
  chain.add(41, 0);
  chain.add(42, 1);
  step.add(3, 1, true, &chain);
  step.add(0, 2, true);  // a whole prompt
  const KvReservation reservation = step.kv.reserve(step.plan);
  const RowBatch batch = step.build(reservation);

  EXPECT_EQ(batch.tokens, (std::vector<TokenId>{105, 106, 107, 108, 109, 110, 208, 303, 41, 42, 400, 401}));
  EXPECT_EQ(batch.positions, (std::vector<std::int32_t>{5, 6, 7, 8, 9, 10, 8, 3, 4, 5, 0, 1}));
  EXPECT_EQ(batch.row_offsets, (std::vector<std::int32_t>{0, 6, 7, 10, 12}));
  EXPECT_EQ(batch.logit_rows, (std::vector<std::int32_t>{6, 7, 8, 9, 11}));
  EXPECT_EQ(batch.masks, std::vector<NewMask>(4, NewMask::kCausal));
  for (int row = 0; row < 6; ++row) EXPECT_EQ(batch.slots[row], reservation.slot(0, 5 + row));
  EXPECT_EQ(batch.slots[6], reservation.slot(1, 8));
  EXPECT_EQ(batch.slots[7], reservation.slot(2, 3)) << "the root is always kept: its final slot";
  EXPECT_EQ(batch.slots[8], reservation.scratch_slot(2, 0));
  EXPECT_EQ(batch.slots[9], reservation.scratch_slot(2, 1));

  ASSERT_EQ(batch.kv.lists.size(), 4u);
  const int lengths[] = {5, 8, 3, 0};
  const int num_pages[] = {2, 2, 1, 0};
  ASSERT_EQ(batch.kv.tables.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(batch.kv.lists[i].length, lengths[i]);
    EXPECT_TRUE(batch.kv.lists[i].pages);
    EXPECT_EQ(batch.kv.tables[i].pages, reservation.pages(i).data());
    EXPECT_EQ(batch.kv.tables[i].num_pages, num_pages[i]);
    EXPECT_EQ(batch.kv.tables[i].num_lasting, num_pages[i]);
    EXPECT_EQ(batch.kv.tables[i].version, reservation.version(i));
  }
}

TEST(BuildBatchTest, CommittedRowsAreThoseOfTheirTokens) {
  TokenTree tree(0);
  tree.add(11, 0);  // 1
  tree.add(12, 0);  // 2
  tree.add(13, 2);  // 3
  Step step;
  step.add(5, 6, false);
  step.add(6, 1, true, &tree);
  step.add(3, 2, true);
  const KvReservation reservation = step.kv.reserve(step.plan);
  const RowBatch batch = step.build(reservation);
  const std::vector<std::vector<int>> paths = {{}, {2, 3}, {}};
  const std::vector<std::vector<TokenId>> committed = {{105, 106, 107, 108, 109, 110}, {206, 12, 13}, {303, 304}};
  int first_row = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    std::vector<TokenId> seen;
    for (const std::int32_t row : committed_rows(step.plan.sequences[i], first_row, paths[i])) {
      seen.push_back(batch.tokens[static_cast<std::size_t>(row)]);
    }
    EXPECT_EQ(seen, committed[i]);
    first_row += num_rows_of(step.plan.sequences[i], step.trees[i]);
  }
  EXPECT_EQ(first_row, batch.num_rows());
}

TEST(BuildBatchTest, TreeMaskHoldsAncestorsAndItself) {
  TokenTree tree(0);
  tree.add(11, 0);  // 1
  tree.add(12, 0);  // 2
  tree.add(13, 1);  // 3
  tree.add(14, 3);  // 4
  Step step;
  step.add(2, 1, true);
  step.add(6, 1, true, &tree);
  const KvReservation reservation = step.kv.reserve(step.plan);
  const RowBatch batch = step.build(reservation);
  EXPECT_EQ(batch.masks, (std::vector<NewMask>{NewMask::kCausal, NewMask::kAncestor}));
  EXPECT_EQ(batch.positions, (std::vector<std::int32_t>{2, 6, 7, 7, 8, 9}));
  const std::uint64_t expected[] = {0b00001, 0b00011, 0b00101, 0b01011, 0b11011};
  for (int node = 0; node < 5; ++node) {
    EXPECT_EQ(batch.mask_bits[std::size_t(1 + node) * kMaskWords], expected[node]) << node;
    for (int word = 1; word < kMaskWords; ++word) {
      EXPECT_EQ(batch.mask_bits[std::size_t(1 + node) * kMaskWords + word], 0u);
    }
  }
}

TEST(BuildBatchTest, PrunedNodesKeepTheirScratchSlots) {
  TokenTree tree(0);
  tree.add(11, 0);
  tree.add(12, 0);
  tree.add(13, 2);
  tree.prune({true, false, true, true});
  Step step;
  step.add(4, 1, true, &tree);
  const KvReservation reservation = step.kv.reserve(step.plan);
  const RowBatch batch = step.build(reservation);
  EXPECT_EQ(batch.masks[0], NewMask::kCausal) << "what is left is a chain";
  EXPECT_EQ(batch.tokens, (std::vector<TokenId>{104, 12, 13}));
  EXPECT_EQ(batch.slots[1], reservation.scratch_slot(0, 1));
  EXPECT_EQ(batch.slots[2], reservation.scratch_slot(0, 2));
}

TEST(BuildBatchTest, RandomTreesUpTo256Rows) {
  std::mt19937 random(4);
  std::set<int> words_used;
  for (const int size : {1, 2, 7, 62, 63, 64, 65, 127, 128, 200, 255, 255, 255}) {
    TokenTree tree(0);
    for (int node = 1; node <= size; ++node) {
      // Mostly a recent parent, so that paths are long and cross words.
      const int reach = std::min(node, 1 + static_cast<int>(random() % 5));
      tree.add(static_cast<TokenId>(random() % 50), node - reach);
    }
    if (tree.is_chain()) tree.parents[size] = 0;
    Step step;
    step.add(3, 4, false);  // so that rows do not begin at 0
    step.add(9, 1, true, &tree);
    const KvReservation reservation = step.kv.reserve(step.plan);
    const RowBatch batch = step.build(reservation);
    ASSERT_EQ(batch.num_rows(), 4 + 1 + size);
    const std::vector<int> depths = tree.depths();
    for (int node = 0; node <= size; ++node) {
      const int row = 4 + node;
      EXPECT_EQ(batch.positions[row], 9 + depths[node]);
      EXPECT_EQ(batch.logit_rows[node], row);
      EXPECT_EQ(batch.slots[row], node == 0 ? reservation.slot(1, 9) : reservation.scratch_slot(1, node - 1));
      if (size == 1) continue;  // a chain
      std::set<int> ancestors{node};
      for (int up = tree.parents[node]; up >= 0; up = tree.parents[up]) ancestors.insert(up);
      for (int other = 0; other < 64 * kMaskWords; ++other) {
        ASSERT_EQ(sees(batch, row, other), ancestors.contains(other)) << "node " << node << " other " << other;
        if (sees(batch, row, other)) words_used.insert(other / 64);
      }
    }
    const std::set<Slot> slots(batch.slots.begin(), batch.slots.end());
    EXPECT_EQ(slots.size(), batch.slots.size()) << "two rows write one slot";
  }
  EXPECT_EQ(words_used.size(), std::size_t{kMaskWords});
}

TEST(BuildBatchTest, RefusesTreesThatMasksCannotHold) {
  TokenTree wide(0);
  for (int node = 1; node <= 256; ++node) wide.add(1, 0);
  Step step;
  step.add(1, 1, true, &wide);
  const KvReservation reservation = step.kv.reserve(step.plan);
  expect_error(ErrorCode::kInternal, {"257 rows", "256"}, [&] { step.build(reservation); });
}

TEST(BuildBatchTest, RefusesATreeBelowAChunkAndUnselectedSparseLists) {
  TokenTree fork(0);
  fork.add(1, 0);
  fork.add(2, 0);
  Step chunk;
  chunk.add(1, 3, true, &fork);
  const KvReservation reservation = chunk.kv.reserve(chunk.plan);
  expect_error(ErrorCode::kInternal, {"root alone"}, [&] { chunk.build(reservation); });

  Step sparse;
  sparse.add(1, 1, true);
  sparse.plan.sequences[0].kv_mode = KvMode::kSparse;
  sparse.plan.sequences[0].num_slots = 1;
  const KvReservation other = sparse.kv.reserve(sparse.plan);
  expect_error(ErrorCode::kInternal, {"1 keys of sparse sequences", "0 were selected"}, [&] { sparse.build(other); });
}

/// Two dense sequences around two sparse ones that read 3 and 2 keys.
Step mixed_step() {
  Step step;
  for (const int cached : {5, 9, 6, 3}) step.add(cached, 1, true);
  for (const int sparse : {1, 2}) {
    step.plan.sequences[static_cast<std::size_t>(sparse)].kv_mode = KvMode::kSparse;
    step.plan.sequences[static_cast<std::size_t>(sparse)].num_slots = 4 - sparse;
  }
  return step;
}

void expect_lists(const RowBatch& batch) {
  ASSERT_EQ(batch.kv.lists.size(), 4u);
  EXPECT_TRUE(batch.kv.lists[0].pages && batch.kv.lists[3].pages);
  EXPECT_EQ(batch.kv.lists[3].length, 3);
  EXPECT_FALSE(batch.kv.lists[1].pages || batch.kv.lists[2].pages);
  EXPECT_EQ(batch.kv.lists[1].offset, 0);
  EXPECT_EQ(batch.kv.lists[1].length, 3);
  EXPECT_EQ(batch.kv.lists[2].offset, 3);
  EXPECT_EQ(batch.kv.lists[2].length, 2);
}

TEST(BuildBatchTest, SelectedSlotsBecomeTheListsOfSparseSequences) {
  Step step = mixed_step();
  const KvReservation reservation = step.kv.reserve(step.plan);
  const std::vector<std::span<const TokenId>> spans(step.tokens.begin(), step.tokens.end());
  const std::vector<Slot> slots = {3, 17, 5, 22, 8};
  RowBatch batch;
  build_batch(step.plan, spans, step.trees, reservation, batch, {.slots = slots});
  expect_lists(batch);
  EXPECT_EQ(batch.kv.entries, slots);
  EXPECT_EQ(batch.kv.num_unwritten, 0);
  EXPECT_TRUE(batch.kv.contexts.empty());
}

TEST(BuildBatchTest, OperationsOfTheDeviceFindRoomAndAllCachedKeys) {
  Step step = mixed_step();
  const KvReservation reservation = step.kv.reserve(step.plan);
  const std::vector<std::span<const TokenId>> spans(step.tokens.begin(), step.tokens.end());
  RowBatch batch;
  build_batch(step.plan, spans, step.trees, reservation, batch, {.by_device = true});
  expect_lists(batch);
  EXPECT_TRUE(batch.kv.entries.empty());
  EXPECT_EQ(batch.kv.num_unwritten, 5);
  ASSERT_EQ(batch.kv.contexts.size(), 4u);
  const int cached[] = {0, 9, 6, 0};  // those of dense sequences are not asked for
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(batch.kv.contexts[i].length, cached[i]);
}

}  // namespace
}  // namespace fastspec::test
