// How a configured selector is planned: which layers and heads it looks at, how a budget is shared out, what is
// refused.
#include "sparse/selector_factory.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace fastspec::test {
namespace {

ModelConfig model_of(std::vector<int> windows, int num_heads = 4) {
  ModelConfig model;
  model.architecture = "MistralForCausalLM";
  model.num_layers = static_cast<int>(windows.size());
  model.num_heads = num_heads;
  model.num_kv_heads = 2;
  model.head_dim = 8;
  model.window = std::move(windows);
  return model;
}

SparseConfig sparse(const std::string& selector, const std::string& manifest = "") {
  SparseConfig config;
  config.selector = selector;
  config.manifest = manifest;
  return config;
}

TEST(SelectorPlan, IsNoneWhereSparsePassesAreOff) {
  const ModelConfig model = model_of({0, 0});
  EXPECT_FALSE(plan_selector({}, {.target = model}));
  EXPECT_TRUE(plan_selector(sparse("streaming"), {.target = model})->history.empty());
}

TEST(SelectorPlan, WithoutAManifestLooksAtAllHeadsOfFourLayers) {
  const ModelConfig large = model_of(std::vector<int>(28, 0)), small = model_of({0, 0, 0});
  for (const char* selector : {"history", "quest"}) {
    const auto plan = plan_selector(sparse(selector), {.target = large});
    EXPECT_EQ(plan->target_layers(), (std::vector<int>{3, 10, 17, 24}));
    EXPECT_EQ(plan->history[0].heads, (std::vector<int>{0, 1, 2, 3}));
    EXPECT_EQ(plan_selector(sparse(selector), {.target = small})->target_layers(), (std::vector<int>{0, 1, 2}));
  }
  EXPECT_EQ(plan_selector(sparse("oracle"), {.target = large})->history.size(), 28u);
}

TEST(SelectorPlan, SharesAnotherBudgetOutInTheProportionOfTheManifest) {
  const TemporaryDirectory directory;
  const std::string manifest = directory
                                   .write("m.json", R"({"format": "fastspec-srh", "version": 1,
 "target": {"fingerprint": "000000000000000a", "layers": [{"layer": 1, "heads": [2, 0]}]},
 "drafter": {"fingerprint": "000000000000000b", "kind": "longspec", "layers": [{"layer": 0, "heads": [3]}]},
 "budget": 512, "sinks": 4, "recent": 16, "lookahead_slots": 256, "pooling": "max"})")
                                   .string();
  const ModelConfig model = model_of({0, 0});
  const SelectorModels models{.target = model,
                              .fingerprint = "000000000000000a",
                              .draft_kind = "longspec",
                              .drafter = {"000000000000000b", 1, 4}};
  SparseConfig config = sparse("dustin", manifest);
  const auto plan = [&](int budget) {
    config.kv_budget = budget;
    return *plan_selector(config, models);
  };
  EXPECT_EQ(plan(512).shape.lookahead_slots, 256);
  EXPECT_EQ(plan(128).shape.lookahead_slots, 64);
  EXPECT_EQ(plan(30).shape.lookahead_slots, 10);  // what sinks and recent ones leave
  EXPECT_EQ(plan(20).shape.lookahead_slots, 0);
  EXPECT_TRUE(plan(20).lookahead.empty());  // nobody looks for nothing
  EXPECT_EQ(plan(512).draft_layers(), std::vector<int>{0});
  EXPECT_EQ(plan(512).target_layers(), std::vector<int>{1});
  EXPECT_EQ(plan(512).pooling, RowPooling::kMax);
  config.selector = "history";
  EXPECT_TRUE(plan(512).lookahead.empty());
}

TEST(SelectorPlan, RefusesSlidingWindowsAndTooManyHeadsByName) {
  const ModelConfig windowed = model_of({0, 128});
  expect_error(ErrorCode::kUnsupported, {"MistralForCausalLM whose layer 1 sees a sliding window of 128"},
               [&] { plan_selector(sparse("streaming"), {.target = windowed}); });
  const ModelConfig wide = model_of({0, 0}, 2 * kMaxScoredHeads);
  expect_error(ErrorCode::kUnsupported, {"quest", "256 query heads", "128"},
               [&] { plan_selector(sparse("quest"), {.target = wide}); });
}

TEST(SelectorNeeds, CountWhatIsKept) {
  const ModelConfig model = model_of({0, 0, 0, 0});
  const SelectorLimits limits{.max_sequences = 8, .max_keys = 1000, .page_size = 16, .pass_rows = 5};
  const auto needs = [&](const char* selector) {
    const SparseConfig config = sparse(selector);
    return selector_needs(config, *plan_selector(config, {.target = model}), model, 4, DType::kFloat32, limits);
  };
  EXPECT_EQ(needs("streaming").memory, 0u);
  EXPECT_GE(needs("history").memory, 8u * (1000 + 4 * 32) * 4);
  EXPECT_EQ(needs("history").bytes_per_page, 0u);
  EXPECT_EQ(needs("history").max_scored_rows, 4);
  EXPECT_EQ(needs("oracle").max_scored_rows, 20);
  EXPECT_EQ(needs("quest").bytes_per_page, std::size_t{4} * 2 * 2 * 8 * 4);
}

}  // namespace
}  // namespace fastspec::test
