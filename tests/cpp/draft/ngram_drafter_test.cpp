// Prompt lookup against a naive search of the whole sequence.
#include "draft/ngram_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "support/expect_error.h"

namespace fastspec::test {
namespace {

using Tokens = std::vector<TokenId>;

constexpr int kMany = 1000;

/// Longest earlier occurrence of the last tokens, the most recent of equals, followed into what is drafted: O(n^2).
Tokens naive_draft(const Tokens& tokens, int min_ngram, int max_ngram, int num_drafted) {
  const int length = static_cast<int>(tokens.size());
  for (int n = std::min(max_ngram, length - 1); n >= min_ngram; --n) {
    for (int end = length - 1; end >= n; --end) {  // the occurrence is tokens[end - n, end)
      if (!std::equal(tokens.end() - n, tokens.end(), tokens.begin() + (end - n))) continue;
      Tokens all = tokens;
      for (int k = 0; k < num_drafted; ++k) all.push_back(all[end + k]);
      return {all.begin() + length, all.end()};
    }
  }
  return {};
}

Tokens draft(NgramDrafter& drafter, const Tokens& tokens, SeqId seq = 1, int max_drafted = kMany,
             int max_depth = kMany) {
  const DraftRequest request{
      .seq = seq, .tokens = tokens, .pages = {}, .max_drafted = max_drafted, .max_depth = max_depth, .rule = {}};
  TokenTree tree(tokens.back());
  drafter.draft({&request, 1}, {&tree, 1});
  EXPECT_TRUE(tree.is_chain());
  EXPECT_NO_THROW(tree.check(max_drafted, max_depth, 1 << 30));
  return {tree.tokens.begin() + 1, tree.tokens.end()};
}

TEST(NgramDrafterTest, ProposesWhatFollowedTheLongestMatch) {
  NgramDrafter drafter(1, 3, 4);
  EXPECT_EQ(draft(drafter, {1, 2, 3, 4, 5, 9, 3, 6, 7, 8, 2, 3}), (Tokens{4, 5, 9, 3}))
      << "\"2 3\", not the later \"3\"";
}

TEST(NgramDrafterTest, ALongerMatchIsTrustedMore) {
  float last = 0;
  for (int match = 1; match <= 4; ++match) {
    Tokens tokens = {1, 2, 3, 4, 9, 8, 7, 6};
    tokens.insert(tokens.end(), {1, 2, 3, 4});
    if (match < 4) tokens[static_cast<std::size_t>(3 - match)] = 50;  // the match ends here
    const DraftRequest request{.seq = match, .tokens = tokens, .max_drafted = 2, .max_depth = 2};
    NgramDrafter drafter(1, 4, 2);
    TokenTree tree(tokens.back());
    drafter.draft({&request, 1}, {&tree, 1});
    ASSERT_EQ(tree.num_drafted(), 2);
    EXPECT_EQ(tree.confidence[1], tree.confidence[2]);
    EXPECT_GT(tree.confidence[1], last);
    EXPECT_LT(tree.confidence[1], 1.0f);
    last = tree.confidence[1];
  }
}

TEST(NgramDrafterTest, MostRecentOfEqualMatchesWins) {
  NgramDrafter drafter(2, 2, 2);
  EXPECT_EQ(draft(drafter, {1, 2, 5, 6, 1, 2, 7, 8, 1, 2}), (Tokens{7, 8}));
}

TEST(NgramDrafterTest, MatchesBeyondMaxAreEqual) {
  NgramDrafter drafter(1, 2, 1);
  EXPECT_EQ(draft(drafter, {1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3}), Tokens{5});
}

TEST(NgramDrafterTest, NothingWithoutAMatch) {
  NgramDrafter drafter(2, 4, 3);
  EXPECT_EQ(draft(drafter, {1, 2, 3, 4, 5}), Tokens{});
  EXPECT_EQ(draft(drafter, {7, 1, 7}, 2), Tokens{}) << "one token is less than min_ngram";
  EXPECT_EQ(draft(drafter, {1}, 3), Tokens{});
  EXPECT_EQ(draft(drafter, {1, 2}, 4), Tokens{}) << "a run is no earlier occurrence of itself";
}

TEST(NgramDrafterTest, LoopIsFollowedIntoTheDraft) {
  NgramDrafter drafter(1, 4, 7);
  EXPECT_EQ(draft(drafter, {9, 1, 2, 3, 1, 2, 3}), (Tokens{1, 2, 3, 1, 2, 3, 1}));
  EXPECT_EQ(draft(drafter, {5, 5}, 2), (Tokens{5, 5, 5, 5, 5, 5, 5}));
}

TEST(NgramDrafterTest, LimitsOfTheRequestAndTheDrafter) {
  const Tokens loop{1, 2, 1, 2};
  NgramDrafter drafter(1, 2, 5);
  EXPECT_EQ(draft(drafter, loop).size(), 5u);
  EXPECT_EQ(draft(drafter, loop, 1, 3).size(), 3u);
  EXPECT_EQ(draft(drafter, loop, 1, kMany, 2).size(), 2u);
  EXPECT_EQ(draft(drafter, loop, 1, 0, 0).size(), 0u);
  EXPECT_EQ(drafter.shape().max_nodes, 5);
  EXPECT_EQ(drafter.shape().max_depth, 5);
}

TEST(NgramDrafterTest, ImpossibleLimitsAreRefused) {
  expect_error(ErrorCode::kInternal, {}, [] { NgramDrafter(0, 2, 1); });
  expect_error(ErrorCode::kInternal, {}, [] { NgramDrafter(3, 2, 1); });
  expect_error(ErrorCode::kInternal, {}, [] { NgramDrafter(1, 2, 0); });
}

TEST(NgramDrafterTest, GrowingSequencesAgreeWithTheNaiveSearch) {
  std::mt19937 random(1);
  int num_found = 0;
  for (int round = 0; round < 150; ++round) {
    const int min_ngram = 1 + static_cast<int>(random() % 3);
    const int max_ngram = min_ngram + static_cast<int>(random() % 4);
    const auto alphabet = static_cast<unsigned>(1 + random() % 5);
    NgramDrafter drafter(min_ngram, max_ngram, 6);
    Tokens tokens;
    for (int step = 0; step < 25; ++step) {
      for (int i = 1 + static_cast<int>(random() % 4); i > 0; --i)
        tokens.push_back(static_cast<TokenId>(random() % alphabet));
      if (random() % 3 == 0) continue;  // not every step drafts
      const Tokens expected = naive_draft(tokens, min_ngram, max_ngram, 6);
      ASSERT_EQ(draft(drafter, tokens), expected) << "min " << min_ngram << " max " << max_ngram;
      num_found += expected.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(num_found, 1000);
}

TEST(NgramDrafterTest, AfterTruncationItIsAsIfTheTokensHadNeverBeen) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    const int min_ngram = 1 + static_cast<int>(random() % 3);
    NgramDrafter drafter(min_ngram, min_ngram + 2, 5);
    Tokens tokens{0};
    for (int step = 0; step < 20; ++step) {
      if (random() % 3 == 0) {
        const auto length = 1 + static_cast<int>(random() % tokens.size());
        drafter.truncate(1, length - static_cast<int>(random() % 2));  // the root may be dropped too
        tokens.resize(length);
        if (random() % 2 == 0) drafter.truncate(1, kMany);
      }
      // Now and then nothing is added: the root of the shorter sequence is drafted from.
      for (int i = static_cast<int>(random() % 4); i > 0; --i) tokens.push_back(static_cast<TokenId>(random() % 3));
      ASSERT_EQ(draft(drafter, tokens), naive_draft(tokens, min_ngram, min_ngram + 2, 5));
    }
  }
}

TEST(NgramDrafterTest, TruncateToNothing) {
  NgramDrafter drafter(1, 2, 2);
  EXPECT_EQ(draft(drafter, {1, 2, 1}), (Tokens{2, 1}));
  drafter.truncate(1, 0);
  EXPECT_EQ(draft(drafter, {3, 4, 1}), Tokens{});
  drafter.truncate(77, 3);  // unknown
}

TEST(NgramDrafterTest, SequencesAreKeptApartAndForgotten) {
  NgramDrafter drafter(1, 2, 1);
  const Tokens first{1, 2, 1};
  const Tokens second{1, 3, 1};
  const std::vector<DraftRequest> requests{
      {.seq = 1, .tokens = first, .pages = {}, .max_drafted = 1, .max_depth = 1, .rule = {}},
      {.seq = 2, .tokens = second, .pages = {}, .max_drafted = 1, .max_depth = 1, .rule = {}}};
  std::vector<TokenTree> trees(2, TokenTree(1));
  drafter.draft(requests, trees);
  EXPECT_EQ(trees[0].tokens, (Tokens{1, 2}));
  EXPECT_EQ(trees[1].tokens, (Tokens{1, 3}));
  drafter.forget(1);
  drafter.forget(99);
  EXPECT_EQ(draft(drafter, {5, 6, 5}, 1), Tokens{6}) << "a new life of the number";
  EXPECT_EQ(draft(drafter, {1, 3, 1, 4, 1}, 2), Tokens{4});
}

}  // namespace
}  // namespace fastspec::test
