// Token trees: building, pruning, and that check() refuses every broken invariant.
#include "step/token_tree.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "step/row_batch.h"
#include "support/expect_error.h"

namespace fastspec::test {
namespace {

/// 0 -> 1 -> 3, 0 -> 2 -> 4
TokenTree forked_tree() {
  TokenTree tree(10);
  tree.add(11, 0, 0.5f);
  tree.add(12, 0, 0.25f);
  tree.add(13, 1, 0.125f);
  tree.add(14, 2);
  return tree;
}

TEST(TokenTreeTest, RootAloneIsAChainWithoutDrafts) {
  const TokenTree tree(7);
  EXPECT_EQ(tree.num_nodes(), 1);
  EXPECT_EQ(tree.num_drafted(), 0);
  EXPECT_TRUE(tree.is_chain());
  EXPECT_EQ(tree.depths(), std::vector<int>{0});
  EXPECT_NO_THROW(tree.check(0, 0, 1));
}

TEST(TokenTreeTest, AddNumbersNodesAndScratchInDraftingOrder) {
  TokenTree tree(7);
  EXPECT_EQ(tree.add(8, 0), 1);
  EXPECT_EQ(tree.add(9, 1, 0.5f), 2);
  EXPECT_TRUE(tree.is_chain());
  EXPECT_EQ(tree.add(9, 1), 3);
  EXPECT_FALSE(tree.is_chain());
  EXPECT_EQ(tree.scratch, (std::vector<int>{-1, 0, 1, 2}));
  EXPECT_EQ(tree.depths(), (std::vector<int>{0, 1, 2, 2}));
  EXPECT_TRUE(std::isnan(tree.confidence[1]));
  EXPECT_EQ(tree.confidence[2], 0.5f);
  expect_error(ErrorCode::kInternal, {"parent 4"}, [&] { tree.add(1, 4); });
  expect_error(ErrorCode::kInternal, {"parent -1"}, [&] { tree.add(1, -1); });
  EXPECT_EQ(tree.num_nodes(), 4);
}

TEST(TokenTreeTest, PruneRenumbersParentsAndKeepsScratchNumbers) {
  TokenTree tree = forked_tree();
  tree.prune({true, false, true, false, true});
  EXPECT_EQ(tree.tokens, (std::vector<TokenId>{10, 12, 14}));
  EXPECT_EQ(tree.parents, (std::vector<int>{-1, 0, 1}));
  EXPECT_EQ(tree.scratch, (std::vector<int>{-1, 1, 3}));
  EXPECT_EQ(tree.confidence[1], 0.25f);
  EXPECT_TRUE(tree.is_chain());
  EXPECT_NO_THROW(tree.check(4, 2, 15));
}

TEST(TokenTreeTest, PruneRefusesSetsThatAreNoTree) {
  TokenTree tree = forked_tree();
  expect_error(ErrorCode::kInternal, {"node 3", "parent"}, [&] { tree.prune({true, false, true, true, true}); });
  TokenTree other = forked_tree();
  expect_error(ErrorCode::kInternal, {"prune"}, [&] { other.prune({false, true, true, true, true}); });
  expect_error(ErrorCode::kInternal, {"prune"}, [&] { other.prune({true, true}); });
}

TEST(TokenTreeTest, CheckNamesEveryBrokenInvariant) {
  const TokenTree good = forked_tree();
  EXPECT_NO_THROW(good.check(4, 2, 15));
  const auto refuses = [&](std::initializer_list<std::string> parts, auto&& spoil) {
    TokenTree tree = forked_tree();
    spoil(tree);
    expect_error(ErrorCode::kInternal, parts, [&] { tree.check(4, 2, 15); });
  };
  expect_error(ErrorCode::kInternal, {"4 drafted", "3"}, [&] { good.check(3, 2, 15); });
  expect_error(ErrorCode::kInternal, {"node 3", "depth 2"}, [&] { good.check(4, 1, 15); });
  expect_error(ErrorCode::kInternal, {"token 14", "vocabulary of 14"}, [&] { good.check(4, 2, 14); });
  refuses({"token -1"}, [](TokenTree& tree) { tree.tokens[2] = -1; });
  refuses({"length"}, [](TokenTree& tree) { tree.tokens.pop_back(); });
  refuses({"length"}, [](TokenTree& tree) { tree.parents.push_back(0); });
  refuses({"length"}, [](TokenTree& tree) { tree.confidence.pop_back(); });
  refuses({"length"}, [](TokenTree& tree) { tree.scratch.pop_back(); });
  refuses({"tree of"}, [](TokenTree& tree) { tree.parents[0] = 0; });
  refuses({"parent 3 of node 3"}, [](TokenTree& tree) { tree.parents[3] = 3; });
  refuses({"parent -1 of node 3"}, [](TokenTree& tree) { tree.parents[3] = -1; });
  refuses({"scratch slot 4 of node 1"}, [](TokenTree& tree) { tree.scratch[1] = 4; });
  refuses({"scratch slot -1 of node 1"}, [](TokenTree& tree) { tree.scratch[1] = -1; });
}

TEST(TokenTreeTest, CheckRefusesTwoNodesInOneScratchSlot) {
  TokenTree tree = forked_tree();
  tree.prune({true, false, true, false, true});
  tree.add(13, 0);  // numbered as if nothing had been pruned: slot 2 is free, as it happens
  EXPECT_NO_THROW(tree.check(4, 2, 15));
  tree.add(13, 0);  // slot 3 is that of node 2
  expect_error(ErrorCode::kInternal, {"scratch slot 3", "node 4"}, [&] { tree.check(4, 2, 15); });
}

TEST(TokenTreeTest, RandomPruningsKeepTheSurvivorsPaths) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    TokenTree tree(0);
    const int size = 1 + static_cast<int>(random() % 20);
    for (int node = 1; node <= size; ++node) tree.add(node, static_cast<int>(random() % node));  // token = node
    const TokenTree before = tree;
    std::vector<bool> keep(size + 1, true);
    for (int node = 1; node <= size; ++node) keep[node] = keep[tree.parents[node]] && random() % 3 != 0;
    tree.prune(keep);
    EXPECT_NO_THROW(tree.check(size, size, size + 1));
    int expected = 0;
    for (int node = 0; node <= size; ++node) expected += keep[node] ? 1 : 0;
    ASSERT_EQ(tree.num_nodes(), expected);
    for (int node = 1; node < tree.num_nodes(); ++node) {
      const TokenId old = tree.tokens[node];
      EXPECT_TRUE(keep[old]);
      EXPECT_EQ(tree.tokens[tree.parents[node]], before.parents[old]);
      EXPECT_EQ(tree.scratch[node], before.scratch[old]);
      EXPECT_TRUE(node == 1 || tree.tokens[node - 1] < old);
    }
  }
}

TEST(TokenTreeTest, ATreeHangsBelowAChain) {
  TokenTree tree(4);  // the chain's last token
  tree.add(20, 0, 0.5f);
  tree.add(21, 0, 0.25f);
  tree.add(22, 2, 0.75f);
  const std::vector<TokenId> chain = {2, 3, 4};
  tree.hang_below(1, chain, 7);
  EXPECT_EQ(tree.tokens, (std::vector<TokenId>{1, 2, 3, 4, 20, 21, 22}));
  EXPECT_EQ(tree.parents, (std::vector<int>{-1, 0, 1, 2, 3, 3, 5}));
  EXPECT_EQ(tree.scratch, (std::vector<int>{-1, 7, 8, 9, 0, 1, 2}));
  EXPECT_EQ(tree.confidence, (std::vector<float>{1, 1, 1, 1, 0.5f, 0.25f, 0.75f}));
  EXPECT_NO_THROW(tree.check(10, 5, 30));

  TokenTree alone(3);
  alone.hang_below(1, std::vector<TokenId>{2, 3}, 0);
  EXPECT_TRUE(alone.is_chain());
  EXPECT_EQ(alone.tokens, (std::vector<TokenId>{1, 2, 3}));
}

TEST(RowBatchTest, EndSequenceClosesRowsAndClearLeavesNothing) {
  RowBatch batch;
  batch.tokens = {1, 2};
  batch.end_sequence(NewMask::kCausal);
  batch.mask_bits[1] = 5;
  batch.end_sequence(NewMask::kNone);  // no rows
  batch.tokens.push_back(3);
  batch.end_sequence(NewMask::kAncestor);
  EXPECT_EQ(batch.num_sequences(), 3);
  EXPECT_EQ(batch.row_offsets, (std::vector<std::int32_t>{0, 2, 2, 3}));
  EXPECT_EQ(batch.mask_bits.size(), std::size_t{3} * kMaskWords);
  batch.clear();
  EXPECT_EQ(batch.num_rows(), 0);
  EXPECT_EQ(batch.num_sequences(), 0);
  EXPECT_EQ(batch.row_offsets, std::vector<std::int32_t>{0});
  batch.tokens.push_back(1);
  batch.end_sequence(NewMask::kCausal);
  for (const std::uint64_t word : batch.mask_bits) EXPECT_EQ(word, 0u) << "bits of the batch before";
}

}  // namespace
}  // namespace fastspec::test
