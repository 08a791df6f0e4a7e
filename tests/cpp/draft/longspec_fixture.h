// A LongSpec drafter of the tiny model over random K/V of the target, and drafts of a fresh one to compare with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "draft/longspec/longspec_drafter.h"
#include "support/tiny_model.h"

namespace fastspec::test {

using Tokens = std::vector<TokenId>;

inline constexpr int kVocabSize = 61;
inline constexpr int kPageSize = 4;
inline constexpr int kWindow = 12;
inline constexpr std::uint64_t kTargetSeed = 11;

class LongSpecDrafterTest : public ::testing::Test {
 protected:
  explicit LongSpecDrafterTest(int max_tokens = 400)
      : pages_(static_cast<std::size_t>(max_tokens / kPageSize + 1)),
        weights_(testing::tiny_weights(config_, kTargetSeed, DType::kFloat32, *backend_.device)),
        target_kv_(*backend_.device, {config_.num_layers, config_.num_kv_heads, config_.head_dim, DType::kFloat32},
                   static_cast<int>(pages_.size()), kPageSize) {
    std::iota(pages_.begin(), pages_.end(), 0);
    std::reverse(pages_.begin(), pages_.end());
    const KvView& view = target_kv_.layers().back();
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < view.page_stride * static_cast<std::int64_t>(pages_.size()); ++i) {
      static_cast<float*>(view.base)[i] = normal(random_);
    }
  }

  std::unique_ptr<LongSpecDrafter> make_drafter(Backend& backend) {
    return std::make_unique<LongSpecDrafter>(
        testing::tiny_longspec(config_, kTargetSeed, window_, DType::kFloat32, *backend.device, vocabulary_), config_,
        weights_, target_kv_.layers().back(), backend, DType::kFloat32, limits());
  }
  LongSpecDrafter::Limits limits() const {
    return {.tree_widths = widths_,
            .coupled = coupled_,
            .max_drafted = 255,
            .pass = {.max_rows = max_rows_,
                     .max_sequences = 3,
                     .max_list_entries = 3 * static_cast<std::int64_t>(pages_.size())},
            .page_size = kPageSize};
  }

  DraftRequest request(SeqId seq, const Tokens& tokens) {
    return {.seq = seq,
            .tokens = tokens,
            .pages = pages_,
            .slots = slots_,
            .max_drafted = max_drafted_,
            .max_depth = max_depth_,
            .rule = {.temperature = temperature_, .seed = 5}};
  }

  TokenTree draft(LongSpecDrafter& drafter, SeqId seq, const Tokens& tokens) {
    TokenTree tree(tokens.back());
    const DraftRequest asked = request(seq, tokens);
    drafter.draft({&asked, 1}, {&tree, 1});
    EXPECT_NO_THROW(tree.check(max_drafted_, max_depth_, kVocabSize));
    return tree;
  }
  TokenTree draft_anew(const Tokens& tokens) { return draft(*make_drafter(backend_), 1, tokens); }

  static void expect_equal(const TokenTree& seen, const TokenTree& expected) {
    EXPECT_EQ(seen.tokens, expected.tokens);
    EXPECT_EQ(seen.parents, expected.parents);
    EXPECT_EQ(seen.confidence, expected.confidence);
  }

  Tokens random_tokens(int count) {
    Tokens tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(random_() % kVocabSize));
    return tokens;
  }

  /// Accepts the path to a random node and a random bonus token. @returns the node's depth.
  int accept(const TokenTree& tree, Tokens& tokens) {
    Tokens path;
    for (int node = static_cast<int>(random_() % static_cast<unsigned>(tree.num_nodes())); node > 0;
         node = tree.parents[static_cast<std::size_t>(node)]) {
      path.push_back(tree.tokens[static_cast<std::size_t>(node)]);
    }
    tokens.insert(tokens.end(), path.rbegin(), path.rend());
    tokens.push_back(static_cast<TokenId>(random_() % kVocabSize));
    return static_cast<int>(path.size());
  }

  std::mt19937 random_{1};
  ModelConfig config_ = testing::tiny_config(kVocabSize);
  std::vector<PageId> pages_;
  Backend backend_ = make_backend("cpu:reference", DType::kFloat32, 1);
  Weights weights_;
  KvPool target_kv_;
  std::vector<int> widths_{3, 5, 4, 4};
  int window_ = kWindow;
  int max_rows_ = 64;
  int max_drafted_ = 255;
  int max_depth_ = 255;
  float temperature_ = 0;
  bool coupled_ = true;
  std::vector<TokenId> vocabulary_;
  std::vector<Slot> slots_;
};

}  // namespace fastspec::test
