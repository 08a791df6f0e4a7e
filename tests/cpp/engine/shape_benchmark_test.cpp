// Benchmarks of a shape: what is decoded, what is counted, what is refused.
#include <fastspec/shape_benchmark.h>
#include <gtest/gtest.h>

#include <fstream>

#include "engine/synthetic_drafter.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace fastspec::test {
namespace {

constexpr const char* kShape = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 100,
  "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 256, "hidden_act": "silu",
  "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "float32"})";

class ShapeBenchmarkTest : public ::testing::Test {
 protected:
  ShapeBenchmarkTest() {
    std::ofstream(directory_.path() / "config.json") << kShape;
    config_.shape = (directory_.path() / "config.json").string();
    config_.dtype = DType::kFloat32;
    config_.max_batch = 3;
    config_.max_length = 100;
    config_.max_num_slots = 300;
  }

  TemporaryDirectory directory_;
  ShapeBenchmarkConfig config_;
};

TEST_F(ShapeBenchmarkTest, DecodesAtTheContextThatWasAsked) {
  ShapeBenchmark benchmark(config_);
  for (const int batch : {3, 1}) {  // the first point leaves nothing behind
    const ShapePoint point = benchmark.measure(batch, 60, 4, 3);
    EXPECT_EQ(point.batch, batch);
    EXPECT_EQ(point.context, 60 + ShapeBenchmark::kWarmUpSteps);
    ASSERT_EQ(point.milliseconds.size(), 3u);
    EXPECT_GT(point.median_milliseconds(), 0);
    EXPECT_EQ(point.stats.steps, 12);
    EXPECT_EQ(point.stats.rows, 12 * batch);  // no prompt is computed
    EXPECT_EQ(point.stats.prompt_rows, 0);
    EXPECT_EQ(point.stats.generated_tokens, 12 * batch);
    const double token_bytes = 2 * 2 * 2 * 8 * 4;
    EXPECT_DOUBLE_EQ(point.kv_bytes, batch * (65 + 5.5) * token_bytes);
    EXPECT_DOUBLE_EQ(point.weight_bytes, static_cast<double>(benchmark.info().weight_bytes) - 100 * 32 * 4);
    EXPECT_DOUBLE_EQ(point.roofline_milliseconds(1e9), (point.kv_bytes + point.weight_bytes) / 1e6);
  }
}

TEST_F(ShapeBenchmarkTest, SyntheticDraftsAreVerifiedAndAcceptedAsAsked) {
  config_.synthetic_rows = 4;
  for (const double acceptance : {0.0, 2.25, 4.0}) {
    config_.synthetic_acceptance = acceptance;
    config_.max_length = 60 + config_.growth(4, 2);
    config_.max_num_slots = 3 * config_.max_length;
    for (const char* device : {"cpu", "cpu:reference"}) {
      config_.device = device;
      ShapeBenchmark benchmark(config_);
      const ShapePoint plain = benchmark.measure(3, 60, 4, 2);
      EXPECT_EQ(plain.synthetic_rows, 0);
      EXPECT_EQ(plain.stats.rows, 8 * 3);
      EXPECT_EQ(plain.stats.drafted_tokens, 0);
      EXPECT_EQ(plain.stats.generated_tokens, 8 * 3);
      const ShapePoint point = benchmark.measure(3, 60, 4, 2, true);
      EXPECT_EQ(point.synthetic_rows, 4);
      EXPECT_EQ(point.stats.rows, 8 * 3 * 5);
      EXPECT_EQ(point.stats.verified_tokens, 8 * 3 * 4);
      EXPECT_EQ(point.stats.accepted_tokens, 8 * 3 * acceptance);
      EXPECT_EQ(point.stats.generated_tokens, 8 * 3 * (1 + acceptance));
      EXPECT_DOUBLE_EQ(point.stats.acceptance_length(), 1 + acceptance);
      EXPECT_NEAR(point.tokens_per_second(), 1e3 * 3 * (1 + acceptance) / point.median_milliseconds(), 1e-6);
    }
  }
}

TEST_F(ShapeBenchmarkTest, ARandomBlockDrafterWorksAndChangesNoAcceptance) {
  config_.synthetic_rows = 4;
  config_.synthetic_acceptance = 2;
  config_.dflash_layers = 2;
  config_.max_length = 60 + config_.growth(8, 1);
  config_.max_num_slots = 3 * config_.max_length;
  double idle = 0;
  {
    ShapeBenchmarkConfig without = config_;
    without.dflash_layers = 0;
    ShapeBenchmark benchmark(without);
    idle = benchmark.measure(3, 60, 8, 1, true).stats.draft_seconds;
  }
  ShapeBenchmark benchmark(config_);
  EXPECT_EQ(benchmark.info().drafter, "synthetic behind dflash");
  const ShapePoint point = benchmark.measure(3, 60, 8, 1, true);
  EXPECT_EQ(point.stats.rows, 8 * 3 * 5);
  EXPECT_EQ(point.stats.accepted_tokens, 8 * 3 * 2);
  EXPECT_GT(point.stats.draft_seconds, 4 * idle) << "its layers run from the first draft on";
  EXPECT_EQ(point.stats.draft_failures, 0);
}

TEST_F(ShapeBenchmarkTest, SparsePassesReadTheBudgetAndChangeNoAcceptance) {
  config_.synthetic_rows = 4;
  config_.synthetic_acceptance = 2;
  config_.longspec = true;
  config_.draft_vocabulary = 50;
  config_.sparse = {.kv_budget = 32, .sinks = 2, .recent = 4, .guarantee = Guarantee::kSparse};
  config_.max_length = 60 + config_.growth(8, 1);
  config_.max_num_slots = 3 * config_.max_length;
  for (const char* selector : {"streaming", "history", "dustin"}) {
    config_.sparse.selector = selector;
    ShapeBenchmark benchmark(config_);
    EXPECT_EQ(benchmark.info().drafter, "synthetic behind longspec");
    EXPECT_EQ(benchmark.info().kv_budget, 32);
    const ShapePoint point = benchmark.measure(3, 60, 8, 1, true);
    EXPECT_EQ(point.stats.sparse.sparse_passes, 8 * 3) << selector;
    EXPECT_EQ(point.stats.accepted_tokens, 8 * 3 * 2) << selector;
    EXPECT_EQ(point.stats.draft_failures, 0) << selector;
    EXPECT_DOUBLE_EQ(point.kv_bytes, 3 * 32 * 2 * 2 * 2 * 8 * 4) << "K and V of two layers and K/V heads, " << selector;
    EXPECT_EQ(benchmark.measure(3, 60, 8, 1).stats.sparse.sparse_passes, 0) << "plain decoding is dense";
  }
}

TEST_F(ShapeBenchmarkTest, RefreshesAreStepsToo) {
  config_.synthetic_rows = 4;
  config_.synthetic_acceptance = 2;
  config_.sparse = {.selector = "streaming",
                    .kv_budget = 32,
                    .sinks = 2,
                    .recent = 4,
                    .guarantee = Guarantee::kSparse,
                    .refresh_interval = 4};
  config_.max_length = 60 + config_.growth(16, 1);
  config_.max_num_slots = 3 * config_.max_length;
  ShapeBenchmark benchmark(config_);
  const ShapePoint point = benchmark.measure(3, 60, 16, 1, true);
  EXPECT_GT(point.stats.sparse.refreshes, 3);
  EXPECT_GT(point.stats.sparse.sparse_passes, 16);
}

TEST_F(ShapeBenchmarkTest, DensePassesConfirmWhatSparseOnesAccepted) {
  config_.synthetic_rows = 4;
  config_.synthetic_acceptance = 2;
  config_.longspec = true;
  config_.sparse = {.selector = "dustin", .kv_budget = 32, .sinks = 2, .recent = 4, .refresh_interval = 9};
  config_.max_length = 60 + config_.growth(16, 1);
  config_.max_num_slots = 3 * config_.max_length;
  ShapeBenchmark benchmark(config_);
  const ShapePoint point = benchmark.measure(3, 60, 16, 1, true);
  const SparseStats& sparse = point.stats.sparse;
  EXPECT_GT(sparse.sparse_passes, 2 * sparse.dense_passes);
  EXPECT_GT(sparse.confirmed_tokens, 60);
  EXPECT_EQ(sparse.taken_back_tokens, 0) << "every pass draws the same";
  EXPECT_EQ(point.stats.draft_failures, 0) << "drafts end where runs do";
}

TEST(SyntheticDrafterTest, ConfidencesRankAsWellAsAskedAndAreChances) {
  for (const double ranking : {0.5, 0.75, 0.95}) {
    SyntheticDrafter drafter({.rows = 8, .acceptance = 3.5, .ranking_power = ranking});
    std::vector<float> accepted, refused;
    const TokenId root[] = {5};
    DraftRequest request{.seq = 3, .tokens = root, .max_drafted = 8, .max_depth = 8};
    for (int step = 0; step < 600; ++step) {
      TokenTree tree(5);
      drafter.draft({&request, 1}, {&tree, 1});
      int node = 1;
      while (tree.tokens[node] == SyntheticDrafter::kDrawn) accepted.push_back(tree.confidence[node++]);
      refused.push_back(tree.confidence[node]);
    }
    double won = 0, mean = 0;
    for (const float good : accepted) {
      mean += static_cast<double>(good);
      for (const float bad : refused) won += good > bad ? 1 : good == bad ? 0.5 : 0;
    }
    for (const float bad : refused) mean += static_cast<double>(bad);
    const auto count = static_cast<double>(accepted.size() + refused.size());
    EXPECT_NEAR(won / static_cast<double>(accepted.size() * refused.size()), ranking, 0.03);
    EXPECT_NEAR(mean / count, static_cast<double>(accepted.size()) / count, 0.02);
  }
}

TEST_F(ShapeBenchmarkTest, ARowBudgetCutsSyntheticDrafts) {
  config_.synthetic_rows = 8;
  config_.synthetic_acceptance = 4;
  config_.synthetic_ranking = 0.8;
  config_.max_length = 60 + config_.growth(20, 1);
  config_.max_num_slots = 3 * config_.max_length;
  ShapeBenchmark benchmark(config_);
  benchmark.set_row_budget("fixed:0.5");
  const EngineStats cut = benchmark.measure(3, 60, 20, 1, true).stats;
  EXPECT_EQ(cut.verified_tokens, 20 * 11) << "of 24 drafted rows and three roots: half is fourteen";
  EXPECT_LT(cut.accepted_tokens, 20 * 3 * 4);
  benchmark.set_row_budget("off");
  EXPECT_EQ(benchmark.measure(3, 60, 20, 1, true).stats.accepted_tokens, 20 * 3 * 4);
}

TEST_F(ShapeBenchmarkTest, RefusesImpossibleAcceptance) {
  config_.synthetic_rows = 4;
  config_.synthetic_acceptance = 4.5;
  expect_error(ErrorCode::kInvalidArgument, {"synthetic_acceptance", "4.5", "0 to 4"},
               [&] { ShapeBenchmark benchmark(config_); });
  config_.synthetic_acceptance = 2;
  config_.synthetic_ranking = 0.3;
  expect_error(ErrorCode::kInvalidArgument, {"synthetic_ranking", "0.3"}, [&] { ShapeBenchmark benchmark(config_); });
  config_.synthetic_ranking = 0;
  config_.dflash_layers = -1;
  expect_error(ErrorCode::kInvalidArgument, {"dflash_layers", "-1"}, [&] { ShapeBenchmark benchmark(config_); });
  config_.dflash_layers = 2;
  config_.longspec = true;
  expect_error(ErrorCode::kInvalidArgument, {"longspec", "dflash_layers"}, [&] { ShapeBenchmark benchmark(config_); });
  config_.dflash_layers = 0;
  config_.draft_vocabulary = 101;
  expect_error(ErrorCode::kInvalidArgument, {"101", "100"}, [&] { ShapeBenchmark benchmark(config_); });
  config_.longspec = false;
  expect_error(ErrorCode::kInvalidArgument, {"draft_vocabulary", "101"}, [&] { ShapeBenchmark benchmark(config_); });
  config_.draft_vocabulary = 0;
  config_.sparse.selector = "quest";
  expect_error(ErrorCode::kInvalidArgument, {"quest", "streaming"}, [&] { ShapeBenchmark benchmark(config_); });
  config_.sparse.selector = "dustin";
  expect_error(ErrorCode::kInvalidArgument, {"dustin", "longspec"}, [&] { ShapeBenchmark benchmark(config_); });
  config_.sparse.selector = "";
  config_.synthetic_rows = 256;
  expect_error(ErrorCode::kInvalidArgument, {"synthetic_rows", "256"}, [&] { ShapeBenchmark benchmark(config_); });
  config_.synthetic_rows = 0;
  config_.synthetic_acceptance = 0;
  ShapeBenchmark benchmark(config_);
  expect_error(ErrorCode::kInvalidArgument, {"synthetic_rows"}, [&] { benchmark.measure(1, 60, 4, 3, true); });
}

TEST_F(ShapeBenchmarkTest, ShapesAreTheirConfigFiles) {
  EXPECT_NE(shape_json("qwen2.5-7b").find("\"hidden_size\": 3584"), std::string::npos);
  EXPECT_NE(shape_json(config_.shape).find("\"hidden_size\": 32"), std::string::npos);
  expect_error(ErrorCode::kNotFound, {"qwen9"}, [] { shape_json("qwen9"); });
}

TEST_F(ShapeBenchmarkTest, RefusesPointsBeyondItsMemory) {
  ShapeBenchmark benchmark(config_);
  expect_error(ErrorCode::kInvalidArgument, {"context 90", "100 tokens"}, [&] { benchmark.measure(1, 90, 4, 3); });
  expect_error(ErrorCode::kOutOfMemory, {"of 3 sequences"}, [&] { benchmark.measure(4, 60, 4, 3); });
}

TEST_F(ShapeBenchmarkTest, WhatCannotBeTracedCanStillBeMeasured) {
  ShapeBenchmark benchmark(config_);
  expect_error(ErrorCode::kUnsupported, {"cpu", "no kernels"}, [&] { benchmark.trace(1, 60, 4); });
  EXPECT_EQ(benchmark.measure(1, 60, 4, 1).stats.steps, 4);
}

TEST_F(ShapeBenchmarkTest, RefusesUnknownShapes) {
  config_.shape = "qwen9";
  expect_error(ErrorCode::kNotFound, {"qwen9", "qwen2.5-7b"}, [&] { ShapeBenchmark benchmark(config_); });
}

}  // namespace
}  // namespace fastspec::test
