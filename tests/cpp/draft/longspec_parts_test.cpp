// Beam, K/V window and draft vocabulary of LongSpec, without a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "draft/longspec/beam.h"
#include "draft/longspec/draft_vocabulary.h"
#include "draft/longspec/kv_window.h"
#include "support/expect_error.h"

namespace fastspec::test {
namespace {

TEST(BeamTest, LevelsBecomeATree) {
  Beam beam;
  EXPECT_EQ(beam.add_level(std::vector<BeamNode>{{5, 0, 0.5f}, {6, 0, 0.3f}}), 2);
  EXPECT_EQ(beam.add_level(std::vector<BeamNode>{{3, 1, 0.9f}, {1, 0, 0.4f}, {2, 0, 0.35f}, {}, {}}), 3);
  EXPECT_EQ(beam.add_level(std::vector<BeamNode>{{4, 2, 0.1f}}), 1);
  TokenTree tree(9);
  beam.write(255, tree);
  EXPECT_EQ(tree.tokens, (std::vector<TokenId>{9, 5, 6, 3, 1, 2, 4}));
  EXPECT_EQ(tree.parents, (std::vector<int>{-1, 0, 0, 2, 1, 1, 5}));
  EXPECT_EQ(tree.confidence, (std::vector<float>{1, 0.5f, 0.3f, 0.9f, 0.4f, 0.35f, 0.1f}));
}

TEST(BeamTest, ANodeWithoutParentIsRefused) {
  Beam beam;
  beam.add_level(std::vector<BeamNode>{{5, 0, 0.5f}});
  expect_error(ErrorCode::kInternal, {"parent 1 of 1"}, [&] { beam.add_level(std::vector<BeamNode>{{5, 1, 0.5f}}); });
}

TEST(BeamTest, ATreeCutToAnySizeIsClosedUnderParents) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    Beam beam;
    int num_nodes = 0;
    int above = 1;
    for (int depth = 0; depth < 4 && above > 0; ++depth) {
      std::vector<BeamNode> level;
      for (unsigned i = random() % 6; i > 0; --i) {
        // Many ties, many ones.
        level.push_back({static_cast<TokenId>(i), static_cast<int>(random() % static_cast<unsigned>(above)),
                         static_cast<float>(1 + random() % 2) / 2});
      }
      above = beam.add_level(level);
      num_nodes += above;
    }
    for (int size = 0; size <= num_nodes; ++size) {
      TokenTree tree(0);
      beam.write(size, tree);
      EXPECT_EQ(tree.num_drafted(), size);
      EXPECT_NO_THROW(tree.check(std::max(size, 1), 4, 7));
    }
  }
}

TEST(KvWindowTest, KnowsWhatItHasByTokenAndPosition) {
  KvWindow window(100, 4, 3);
  std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6, 7};  // the root at 6
  std::vector<SlotMove> moves;
  std::vector<KvWindow::Missing> missing;
  window.find_missing(tokens, moves, missing);
  ASSERT_EQ(missing.size(), 4u);
  EXPECT_EQ(missing[0].position, 2);
  EXPECT_EQ(missing[0].slot, 102);
  EXPECT_EQ(missing[3].slot, 100);
  window.note_window(tokens);
  EXPECT_EQ(window.place_root(6), 101);
  window.note_root(7, 6);
  EXPECT_EQ(window.place_node(1), 106);
  window.note_node(1, 8, 7);

  tokens.insert(tokens.end(), {8, 9, 10});  // the node was accepted, 9 was not computed
  moves.clear();
  missing.clear();
  window.find_missing(tokens, moves, missing);
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_EQ(moves[0].source, 106);
  EXPECT_EQ(moves[0].destination, 102);
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_EQ(missing[0].token, 9);
  // It was not done: it is found again.
  moves.clear();
  missing.clear();
  window.find_missing(tokens, moves, missing);
  EXPECT_EQ(moves.size(), 1u);
  EXPECT_EQ(missing.size(), 1u);
}

TEST(DraftVocabularyTest, RulesSpeakOfColumns) {
  const DraftVocabulary vocabulary({2, 5, 9});
  const TokenCount counts[] = {{.token = 9, .in_output = 2}, {.token = 3, .in_output = 1}};
  const LogitBias bias[] = {{.token = 4, .bias = 1}, {.token = 5, .bias = 2}};
  const TokenId forbidden[] = {1, 2};
  SamplingRule rule;
  rule.temperature = 0.5f;
  rule.counts = counts;
  rule.num_counts = 2;
  rule.bias = bias;
  rule.num_bias = 2;
  rule.forbidden = forbidden;
  rule.num_forbidden = 2;
  DraftVocabulary::Rule mapped;
  vocabulary.to_columns(rule, mapped);
  EXPECT_EQ(mapped.rule.temperature, 0.5f);
  ASSERT_EQ(mapped.rule.num_counts, 1);
  EXPECT_EQ(mapped.rule.counts[0].token, 2);
  EXPECT_EQ(mapped.rule.counts[0].in_output, 2);
  ASSERT_EQ(mapped.rule.num_bias, 1);
  EXPECT_EQ(mapped.rule.bias[0].token, 1);
  ASSERT_EQ(mapped.rule.num_forbidden, 1);
  EXPECT_EQ(mapped.rule.forbidden[0], 0);
  EXPECT_EQ(vocabulary.token(2), 9);
  EXPECT_EQ(vocabulary.column(5), 1);
  const DraftVocabulary whole({});
  EXPECT_EQ(whole.token(7), 7);
  EXPECT_EQ(whole.column(7), 7);
}

}  // namespace
}  // namespace fastspec::test
