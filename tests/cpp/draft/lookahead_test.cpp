// What drafters keep for selectors: the queries of the drafted rows, whose rows they are, and how likely each is
// reached. Against the same model over the whole text at once, and against what cross-attention was given.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "backend/intercepted_ops.h"
#include "cpp/draft/longspec_fixture.h"
#include "draft/standalone_drafter.h"
#include "support/replaying_device.h"

namespace fastspec::test {
namespace {

constexpr int kNumPages = 40;
constexpr int kMaxDrafted = 4;

std::vector<float> row_of(const Matrix& matrix, int row) {
  const float* begin = matrix.row<const float>(row);
  return {begin, begin + matrix.cols};
}

/// Chance of each node of a tree that has children to be: down to level `depth` - 1.
std::vector<float> survivals(const TokenTree& tree, int depth) {
  const std::vector<int> depths = tree.depths();
  std::vector<float> all{1.0f}, kept{1.0f};
  for (std::size_t node = 1; node < depths.size(); ++node) {
    all.push_back(all[static_cast<std::size_t>(tree.parents[node])] * tree.confidence[node]);
    if (depths[node] < depth) kept.push_back(all[node]);
  }
  return kept;
}

void expect_weights(std::span<const float> seen, std::vector<float> expected) {
  std::vector<float> sorted(seen.begin(), seen.end());
  std::sort(sorted.begin(), sorted.end());
  std::sort(expected.begin(), expected.end());
  ASSERT_EQ(sorted.size(), expected.size());
  for (std::size_t i = 0; i < sorted.size(); ++i) EXPECT_FLOAT_EQ(sorted[i], expected[i]) << i;
}

TEST(StandaloneLookahead, IsWhatTheModelAsksAtTheRootAndAtEveryDraftedToken) {
  const ModelConfig config = testing::tiny_config(kVocabSize);
  Backend backend = make_backend("cpu:reference", DType::kFloat32, 1);
  const auto weights = [&] { return testing::tiny_weights(config, 3, DType::kFloat32, *backend.device); };
  const PassLimits pass{.max_rows = 12, .max_sequences = 3, .max_list_entries = 3 * kNumPages};
  StandaloneDrafter drafter(config, weights(), backend, DType::kFloat32,
                            {.max_drafted = kMaxDrafted,
                             .pass = pass,
                             .vocab_size = kVocabSize,
                             .num_pages = kNumPages,
                             .page_size = kPageSize,
                             .lookahead_layers = {0, 1}});
  Transformer model(config, weights(), backend, 128, 1, {.query_layers = {0, 1}});
  const KvPool kv(*backend.device, model.kv_shape(DType::kFloat32), 128 / kPageSize, kPageSize);
  PassBuffers buffers(*backend.device, {.max_rows = 128, .max_sequences = 1, .max_list_entries = kNumPages});

  const Tokens texts[] = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, {40, 41}, {20, 30, 40, 50, 60}};
  const int limits[] = {kMaxDrafted, 0, 2};  // the second does not draft
  std::vector<PageId> pages[3];
  std::vector<DraftRequest> requests;
  std::vector<TokenTree> trees;
  for (int i = 0; i < 3; ++i) {
    for (int page = 0; page < 10; ++page) pages[i].push_back(10 * i + page);
    requests.push_back({.seq = i,
                        .tokens = texts[i],
                        .pages = pages[i],
                        .max_drafted = limits[i],
                        .max_depth = limits[i],
                        .rule = {.temperature = 0}});
    trees.emplace_back(texts[i].back());
  }
  drafter.draft(requests, trees);
  const Lookahead& seen = *drafter.lookahead();
  ASSERT_EQ(seen.row_offsets, (std::vector<std::int32_t>{0, kMaxDrafted, kMaxDrafted, kMaxDrafted + 2}));
  ASSERT_EQ(seen.layers.size(), 2u);
  EXPECT_EQ(seen.num_heads, config.num_heads);
  for (const int i : {0, 2}) {
    Tokens text = texts[i];
    text.insert(text.end(), trees[i].tokens.begin() + 1, trees[i].tokens.end());
    RowBatch batch;
    for (std::size_t position = 0; position < text.size(); ++position) {
      batch.tokens.push_back(text[position]);
      batch.positions.push_back(static_cast<int>(position));
      batch.slots.push_back(static_cast<Slot>(position));
    }
    batch.kv.lists.push_back({});
    batch.end_sequence(NewMask::kCausal);
    model.forward(buffers.upload(batch), kv);
    const int root = static_cast<int>(texts[i].size()) - 1;
    for (int k = 0; k < limits[i]; ++k) {
      const std::int32_t row = seen.rows[static_cast<std::size_t>(seen.row_offsets[i] + k)];
      std::vector<float> queries = row_of(seen.layers[0].queries, row);
      const std::vector<float> second = row_of(seen.layers[1].queries, row);
      queries.insert(queries.end(), second.begin(), second.end());
      EXPECT_EQ(queries, row_of(model.kept_queries(), root + k)) << "sequence " << i << ", drafted row " << k;
    }
    expect_weights(std::span(seen.weights)
                       .subspan(static_cast<std::size_t>(seen.row_offsets[i]), static_cast<std::size_t>(limits[i])),
                   survivals(trees[i], limits[i]));
  }
}

TEST(StandaloneLookahead, IsNoneWhereNoLayerIsNamed) {
  const ModelConfig config = testing::tiny_config(kVocabSize);
  Backend backend = make_backend("cpu:reference", DType::kFloat32, 1);
  StandaloneDrafter drafter(config, testing::tiny_weights(config, 3, DType::kFloat32, *backend.device), backend,
                            DType::kFloat32,
                            {.max_drafted = 1,
                             .pass = {.max_rows = 4, .max_sequences = 1, .max_list_entries = 4},
                             .vocab_size = kVocabSize,
                             .num_pages = 4,
                             .page_size = kPageSize});
  EXPECT_EQ(drafter.lookahead(), nullptr);
}

/// What cross-attention over the target's keys was given: of each level the queries of each tree.
class CrossWatch final : public InterceptedOps {
 public:
  CrossWatch(std::unique_ptr<Ops> inner, const KvView& target) : InterceptedOps(std::move(inner)), target_(target) {}
  void attention(const AttentionParams& params) override {
    if (params.kv == target_) {
      auto& trees = levels.emplace_back();
      for (int tree = 0; tree < params.num_sequences; ++tree) {
        auto& rows = trees.emplace_back();
        for (int row = params.row_offsets[tree]; row < params.row_offsets[tree + 1]; ++row) {
          rows.push_back(row_of(params.query, row));
        }
      }
    }
    InterceptedOps::attention(params);
  }
  std::vector<std::vector<std::vector<std::vector<float>>>> levels;  // [level][tree][row]

 private:
  void before() override {}
  void after() override {}
  KvView target_;
};

class LongSpecLookahead : public LongSpecDrafterTest {
 protected:
  void draws(bool replays, int max_rows, int num_batches) {
    max_rows_ = max_rows;
    CrossWatch& watch = wrap();
    if (replays) {
      backend_.device = std::make_unique<testing::ReplayingDevice>(std::move(backend_.device));
    }
    LongSpecDrafter::Limits limits = this->limits();
    limits.keeps_lookahead = true;
    LongSpecDrafter drafter(testing::tiny_longspec(config_, kTargetSeed, window_, DType::kFloat32, *backend_.device),
                            config_, weights_, target_kv_.layers().back(), backend_, DType::kFloat32, limits);
    const Tokens texts[] = {random_tokens(50), random_tokens(9), random_tokens(30)};
    for (int round = 0; round < 3; ++round) {  // the third is replayed
      watch.levels.clear();
      std::vector<DraftRequest> requests;
      std::vector<TokenTree> trees;
      for (int i = 0; i < 3; ++i) {
        requests.push_back(request(i, texts[i]));
        trees.emplace_back(texts[i].back());
      }
      requests[1].max_depth = 2;
      drafter.draft(requests, trees);
      ASSERT_NO_FATAL_FAILURE(compare(*drafter.lookahead(), watch, trees, num_batches)) << "round " << round;
    }
  }

  CrossWatch& wrap() {
    auto watch = std::make_unique<CrossWatch>(std::move(backend_.ops), target_kv_.layers().back());
    CrossWatch& result = *watch;
    backend_.ops = std::move(watch);
    return result;
  }

  void compare(const Lookahead& seen, const CrossWatch& watch, const std::vector<TokenTree>& trees, int num_batches) {
    ASSERT_EQ(seen.row_offsets.size(), 4u);
    EXPECT_EQ(seen.layers[0].kv, target_kv_.layers().back());
    EXPECT_EQ(seen.num_heads, config_.num_heads);
    const int depth = static_cast<int>(widths_.size());
    for (int i = 0; i < 3; ++i) {
      // Alone the second tree, which is cut at 2, has two levels; together with others it is fed one more.
      const int first_level = num_batches == 1 ? 0 : std::vector{0, depth, depth + 2}[static_cast<std::size_t>(i)];
      const int num_levels = i != 1 ? depth : num_batches == 1 ? 3 : 2;
      std::vector<std::vector<float>> expected;
      for (int level = 0; level < num_levels; ++level) {
        const auto& level_trees = watch.levels[static_cast<std::size_t>(first_level + level)];
        const auto& rows = level_trees[num_batches == 1 ? static_cast<std::size_t>(i) : 0];
        expected.insert(expected.end(), rows.begin(), rows.end());
      }
      const int begin = seen.row_offsets[static_cast<std::size_t>(i)];
      const int end = seen.row_offsets[static_cast<std::size_t>(i) + 1];
      ASSERT_EQ(end - begin, static_cast<int>(expected.size())) << "tree " << i;
      for (int k = begin; k < end; ++k) {
        EXPECT_EQ(row_of(seen.layers[0].queries, seen.rows[static_cast<std::size_t>(k)]),
                  expected[static_cast<std::size_t>(k - begin)])
            << "tree " << i << ", row " << k - begin;
      }
      if (i == 1) continue;  // what is below the cut is not in the tree
      expect_weights(
          std::span(seen.weights).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
          survivals(trees[static_cast<std::size_t>(i)], depth));
    }
  }
};

TEST_F(LongSpecLookahead, IsWhatCrossAttentionAskedAtEveryNodeThatHasChildren) {
  draws(false, 64, 1);
}
TEST_F(LongSpecLookahead, IsTheSameInARecording) {
  draws(true, 64, 1);
}
TEST_F(LongSpecLookahead, OutlivesTheTreesThatAreDraftedAfterwards) {
  draws(false, 5, 3);
}
TEST_F(LongSpecLookahead, IsNoneUnlessAskedFor) {
  EXPECT_EQ(make_drafter(backend_)->lookahead(), nullptr);
}

}  // namespace
}  // namespace fastspec::test
