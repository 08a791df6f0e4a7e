// Engine options: what is refused and what the message names, and the JSON form.
#include <fastspec/config.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "support/expect_error.h"

namespace fastspec::test {
namespace {

EngineConfig valid() {
  EngineConfig config;
  config.model = "some/model";
  return config;
}

void expect_refused(const std::function<void(EngineConfig&)>& spoil, std::initializer_list<std::string> parts) {
  EngineConfig config = valid();
  config.speculation.drafter.kind = "ngram";
  EXPECT_NO_THROW(config.validate());
  spoil(config);
  expect_error(ErrorCode::kInvalidArgument, parts, [&] { config.validate(); });
}

TEST(DrafterConfigTest, ParsesEveryForm) {
  EXPECT_EQ(DrafterConfig::parse("").kind, "");
  EXPECT_EQ(DrafterConfig::parse("none").kind, "");
  EXPECT_EQ(DrafterConfig::parse("ngram").kind, "ngram");
  const DrafterConfig standalone = DrafterConfig::parse("standalone:C:/models/a:b");
  EXPECT_EQ(standalone.kind, "standalone");
  EXPECT_EQ(standalone.model, "C:/models/a:b");
  EXPECT_EQ(DrafterConfig::parse("longspec:dir").model, "dir");
  for (const std::string text : {"none", "ngram", "standalone:dir", "longspec:dir", "dflash:dir"}) {
    EXPECT_EQ(DrafterConfig::parse(text).to_string(), text);
  }
}

TEST(DrafterConfigTest, RefusesOthersAndSaysWhatIsPossible) {
  for (const std::string text :
       {"eagle", "Ngram", "ngram:4", "ngram:", ":dir", "none:dir", " ngram", "standalone", "longspec", "dflash"}) {
    expect_error(ErrorCode::kInvalidArgument,
                 {"\"" + text + "\"", "none, ngram, standalone:DIR, longspec:DIR, dflash:DIR or self_sparse"},
                 [&] { DrafterConfig::parse(text); });
  }
  expect_error(ErrorCode::kInvalidArgument, {"directory", "standalone:DIR"},
               [] { DrafterConfig::parse("standalone:"); });
  expect_error(ErrorCode::kInvalidArgument, {"directory", "longspec:DIR"}, [] { DrafterConfig::parse("longspec:"); });
}

TEST(BudgetConfigTest, ParsesEveryMode) {
  for (const std::string text : {"off", "auto", "fixed:0.25", "fixed:1", "fixed:0.333"}) {
    BudgetConfig budget;
    budget.set_mode(text);
    EXPECT_EQ(budget.mode_text(), text);
  }
  BudgetConfig budget;
  budget.set_mode("fixed:0.25");
  EXPECT_EQ(budget.ratio, 0.25);
  budget.set_objective("paper");
  EXPECT_EQ(budget.objective_text(), "paper");
  for (const std::string text : {"", "on", "Auto", "fixed", "fixed:", "fixed:0", "fixed:-1", "fixed:1.01", "fixed:nan",
                                 "fixed:0.5x", "fixed: 0.5", "fixed:inf", "auto:0.5", "0.5"}) {
    expect_error(ErrorCode::kInvalidArgument, {"\"" + text + "\"", "off, auto or fixed:RHO"},
                 [&] { budget.set_mode(text); });
  }
  expect_error(ErrorCode::kInvalidArgument, {"\"speed\"", "throughput or paper"},
               [&] { budget.set_objective("speed"); });
  EXPECT_EQ(budget.mode_text() + budget.objective_text(), "fixed:0.25paper") << "what is refused changes nothing";
}

TEST(EngineConfigTest, DefaultsWithAModelAreValid) {
  EXPECT_NO_THROW(valid().validate());
}

TEST(EngineConfigTest, RefusalsNameTheOptionAndItsValue) {
  expect_refused([](EngineConfig& c) { c.model = ""; }, {"model"});
  expect_refused([](EngineConfig& c) { c.device = "gpu"; }, {"device", "gpu", "cpu:reference"});
  expect_refused([](EngineConfig& c) { c.max_model_len = -1; }, {"max_model_len", "-1"});
  expect_refused([](EngineConfig& c) { c.max_num_seqs = 0; }, {"max_num_seqs", "0", "1"});
  expect_refused([](EngineConfig& c) { c.max_num_seqs = 5000; }, {"max_num_seqs", "5000", "4096"});
  expect_refused([](EngineConfig& c) { c.max_batch_rows = 0; }, {"max_batch_rows", "0"});
  expect_refused([](EngineConfig& c) { c.max_batch_rows = 15; }, {"max_batch_rows is 15", "max_num_seqs is 16"});
  expect_refused([](EngineConfig& c) { c.page_size = 0; }, {"page_size", "0"});
  expect_refused([](EngineConfig& c) { c.page_size = 24; }, {"page_size is 24", "power of two"});
  expect_refused([](EngineConfig& c) { c.page_size = 2048; }, {"page_size", "2048"});
  expect_refused([](EngineConfig& c) { c.kv_cache_bytes = -5; }, {"kv_cache_bytes", "-5"});
  expect_refused([](EngineConfig& c) { c.gpu_memory_utilization = 0; }, {"gpu_memory_utilization is 0", "at most 1"});
  expect_refused([](EngineConfig& c) { c.gpu_memory_utilization = 1.5; }, {"gpu_memory_utilization is 1.5"});
  expect_refused([](EngineConfig& c) { c.gpu_memory_utilization = std::nan(""); }, {"gpu_memory_utilization"});
  expect_refused([](EngineConfig& c) { c.num_threads = -2; }, {"num_threads", "-2"});
  expect_refused([](EngineConfig& c) { c.speculation.max_draft_tokens = 0; }, {"max_draft_tokens", "0"});
  expect_refused([](EngineConfig& c) { c.speculation.max_draft_tokens = 256; }, {"max_draft_tokens", "256", "255"});
  expect_refused([](EngineConfig& c) { c.speculation.drafter.ngram_min = 0; }, {"ngram_min", "0"});
  expect_refused([](EngineConfig& c) { c.speculation.drafter.ngram_max = 1; }, {"ngram_max", "1", "2"});
  expect_refused([](EngineConfig& c) { c.speculation.drafter.kind = "magic"; }, {"drafter", "magic", "ngram"});
  expect_refused([](EngineConfig& c) { c.speculation.drafter.kind = "none"; }, {"drafter", "none"});
  expect_refused([](EngineConfig& c) { c.speculation.drafter.kind = "standalone"; },
                 {"drafter", "standalone", "model"});
  expect_refused([](EngineConfig& c) { c.speculation.drafter.model = "dir"; }, {"drafter", "ngram", "dir"});
  expect_refused([](EngineConfig& c) { c.speculation.drafter.kind = "longspec"; }, {"drafter", "longspec", "model"});
  expect_refused(
      [](EngineConfig& c) {
        c.speculation.budget.mode = RowBudgetMode::kFixed;
        c.speculation.budget.ratio = 1.5;
      },
      {"row_budget", "1.5", "at most 1"});
  expect_refused([](EngineConfig& c) { c.speculation.budget.ratios = {}; }, {"row_budget_ratios", "empty"});
  expect_refused([](EngineConfig& c) { c.speculation.budget.ratios = {0.5, 0.5}; }, {"row_budget_ratios", "ascending"});
  expect_refused([](EngineConfig& c) { c.speculation.budget.ratios = {0.0, 1.0}; }, {"row_budget_ratios", "0"});
  expect_refused([](EngineConfig& c) { c.speculation.budget.ratios = {0.5, std::nan("")}; }, {"row_budget_ratios"});
  expect_refused([](EngineConfig& c) { c.speculation.budget.min_saving = 1; }, {"row_budget_min_saving", "1"});
  expect_refused([](EngineConfig& c) { c.speculation.budget.profile_seconds = 0; }, {"profile_seconds", "0"});
  const auto refuses_widths = [](const std::vector<int>& widths, std::initializer_list<std::string> parts) {
    expect_refused(
        [&](EngineConfig& c) {
          c.speculation.drafter = DrafterConfig::parse("longspec:dir");
          c.speculation.drafter.tree_widths = widths;
        },
        parts);
  };
  refuses_widths({}, {"tree_widths", "empty"});
  refuses_widths({4, 0, 4}, {"tree_widths", "0", "1 to 255"});
  refuses_widths({256}, {"tree_widths", "256", "255"});
  refuses_widths({128, 128}, {"tree_widths", "256 nodes", "255"});
  const auto refuses_context = [](int window, int sinks, bool rebases, std::initializer_list<std::string> parts) {
    expect_refused(
        [&](EngineConfig& c) {
          c.speculation.drafter = DrafterConfig::parse("dflash:dir");
          c.speculation.drafter.window = window;
          c.speculation.drafter.sinks = sinks;
          c.speculation.drafter.rebase_positions = rebases;
        },
        parts);
  };
  refuses_context(-1, 0, false, {"window", "-1"});
  refuses_context(0, 4, false, {"sinks", "window is 0"});
  refuses_context(64, -4, false, {"sinks", "-4"});
  refuses_context(64, 0, true, {"rebase_positions", "sinks"});
}

TEST(EngineConfigTest, BoundsAreAllowed) {
  EngineConfig config = valid();
  config.speculation.drafter.kind = "ngram";
  config.max_num_seqs = config.max_batch_rows = 1;
  config.page_size = 1;
  config.speculation.max_draft_tokens = 255;
  config.speculation.drafter.ngram_min = config.speculation.drafter.ngram_max = 1;
  EXPECT_NO_THROW(config.validate());
  config.max_num_seqs = 4096;
  config.max_batch_rows = 1 << 16;
  config.page_size = 1024;
  config.max_model_len = 1 << 24;
  EXPECT_NO_THROW(config.validate());
}

TEST(SparseConfigTest, SelectorsAndWhatTheyNeed) {
  SparseConfig config;
  for (const std::string text : {"streaming", "history", "history:m.json", "quest", "dustin:m.json", "none"}) {
    config.set_selector(text);
    EXPECT_EQ(config.selector_text(), text);
    EXPECT_EQ(config.enabled(), text != "none");
  }
  for (const std::string text : {"snapkv", "dustin", "dustin:", "quest:m.json", "streaming:", "none:x", "oracle"}) {
    expect_error(ErrorCode::kInvalidArgument, {text, "dustin:"}, [&] { config.set_selector(text); });
  }
}

TEST(SparseConfigTest, ImpossibleValuesAreNamed) {
  const auto refuses = [](std::initializer_list<std::string> parts, const auto& change) {
    EngineConfig config = valid();
    config.sparse.selector = "streaming";
    EXPECT_NO_THROW(config.validate());
    change(config.sparse);
    expect_error(ErrorCode::kInvalidArgument, parts, [&] { config.validate(); });
    config.sparse.selector.clear();
    EXPECT_NO_THROW(config.validate()) << "options of what is off";
  };
  refuses({"sparse.kv_budget", "0"}, [](SparseConfig& sparse) { sparse.kv_budget = 0; });
  refuses({"sparse.sinks", "-1"}, [](SparseConfig& sparse) { sparse.sinks = -1; });
  refuses({"sparse.sinks are 4", "sparse.recent 16", "kv_budget is 19"},
          [](SparseConfig& sparse) { sparse.kv_budget = 19; });
  refuses({"sparse.refresh_interval", "65", "64"}, [](SparseConfig& sparse) { sparse.refresh_interval = 65; });
  refuses({"sparse.min_mass", "1.5"}, [](SparseConfig& sparse) { sparse.min_mass = 1.5; });
  refuses({"sparse.min_margin", "-1"}, [](SparseConfig& sparse) { sparse.min_margin = -1; });
  EngineConfig config = valid();
  config.sparse.selector = "streaming";
  config.sparse.guarantee = Guarantee::kSparse;
  config.sparse.refresh_interval = 1000;
  EXPECT_NO_THROW(config.validate());
}

TEST(EngineConfigTest, SelfSparseIsAnotherNameForExactSparsePasses) {
  EngineConfig config = valid();
  EXPECT_EQ(config.resolved().to_json(), config.to_json());
  config.speculation.drafter = DrafterConfig::parse("self_sparse");
  EXPECT_EQ(config.speculation.drafter.to_string(), "self_sparse");
  config.sparse.kv_budget = 128;
  EngineConfig meant = valid();
  meant.sparse.kv_budget = 128;
  meant.sparse.selector = "streaming";
  EXPECT_EQ(config.resolved().to_json(), meant.to_json());

  config.sparse.selector = meant.sparse.selector = "quest";
  config.speculation.max_draft_tokens = meant.sparse.refresh_interval = 7;
  EXPECT_EQ(config.resolved().to_json(), meant.to_json());

  const auto refuses = [&](std::initializer_list<std::string> parts, const auto& change) {
    EngineConfig impossible = config;
    change(impossible);
    expect_error(ErrorCode::kInvalidArgument, parts, [&] { impossible.validate(); });
    expect_error(ErrorCode::kInvalidArgument, parts, [&] { impossible.resolved(); });
  };
  refuses({"self_sparse", "guarantee"}, [](EngineConfig& c) { c.sparse.guarantee = Guarantee::kSparse; });
  refuses({"self_sparse", "row_budget", "auto"}, [](EngineConfig& c) { c.speculation.budget.set_mode("auto"); });
  refuses({"max_draft_tokens", "65", "64"}, [](EngineConfig& c) { c.speculation.max_draft_tokens = 65; });
  refuses({"self_sparse", "refresh_interval"}, [](EngineConfig& c) { c.sparse.refresh_interval = 3; });
  refuses({"sparse.kv_budget", "0"}, [](EngineConfig& c) { c.sparse.kv_budget = 0; });
  refuses({"self_sparse", "model"}, [](EngineConfig& c) { c.speculation.drafter.model = "somewhere"; });
  expect_error(ErrorCode::kInvalidArgument, {"self_sparse:x", "self_sparse"},
               [] { DrafterConfig::parse("self_sparse:x"); });
}

TEST(EngineConfigTest, SpeculationOptionsAreReadOnlyWhenItIsOn) {
  EngineConfig config = valid();
  config.speculation.max_draft_tokens = 0;
  EXPECT_NO_THROW(config.validate());
}

TEST(EngineConfigTest, JsonRoundTrip) {
  EngineConfig config = valid();
  config.device = "cpu:reference";
  config.dtype = DType::kBFloat16;
  config.max_model_len = 1000;
  config.max_num_seqs = 3;
  config.max_batch_rows = 77;
  config.page_size = 32;
  config.kv_cache_bytes = std::int64_t{1} << 40;
  config.num_threads = 5;
  config.speculation.drafter = DrafterConfig::parse("standalone:draft/dir");
  config.speculation.drafter.ngram_min = 3;
  config.speculation.drafter.ngram_max = 6;
  config.speculation.drafter.window = 100;
  config.speculation.drafter.sinks = 7;
  config.speculation.drafter.rebase_positions = true;
  config.speculation.drafter.tree_widths = {2, 3};
  config.speculation.drafter.coupled = false;
  config.speculation.max_draft_tokens = 17;
  config.speculation.budget.set_mode("fixed:0.3");
  config.speculation.budget.set_objective("paper");
  config.speculation.budget.ratios = {0.1, 0.9};
  config.speculation.budget.min_saving = 0.12;
  config.speculation.budget.profile_seconds = 3.5;
  config.sparse.set_selector("dustin:some/manifest.json");
  config.sparse.kv_budget = 300;
  config.sparse.sinks = 2;
  config.sparse.recent = 30;
  config.sparse.set_guarantee("sparse");
  config.sparse.refresh_interval = 200;
  config.sparse.min_mass = 0.75;
  config.sparse.min_margin = 1.5;
  const EngineConfig read = EngineConfig::from_json(config.to_json());
  EXPECT_EQ(read.to_json(), config.to_json());
  EXPECT_EQ(read.model, "some/model");
  EXPECT_EQ(read.device, "cpu:reference");
  EXPECT_EQ(read.dtype, DType::kBFloat16);
  EXPECT_EQ(read.max_model_len, 1000);
  EXPECT_EQ(read.max_num_seqs, 3);
  EXPECT_EQ(read.max_batch_rows, 77);
  EXPECT_EQ(read.page_size, 32);
  EXPECT_EQ(read.kv_cache_bytes, std::int64_t{1} << 40);
  EXPECT_EQ(read.num_threads, 5);
  EXPECT_EQ(read.speculation.drafter.kind, "standalone");
  EXPECT_EQ(read.speculation.drafter.model, "draft/dir");
  EXPECT_EQ(read.speculation.drafter.ngram_min, 3);
  EXPECT_EQ(read.speculation.drafter.ngram_max, 6);
  EXPECT_EQ(read.speculation.drafter.tree_widths, (std::vector<int>{2, 3}));
  EXPECT_FALSE(read.speculation.drafter.coupled);
  EXPECT_EQ(read.speculation.max_draft_tokens, 17);
  EXPECT_EQ(read.speculation.budget.mode_text(), "fixed:0.3");
  EXPECT_EQ(read.speculation.budget.objective, BudgetObjective::kPaper);
  EXPECT_EQ(read.speculation.budget.ratios, (std::vector<double>{0.1, 0.9}));
  EXPECT_EQ(read.speculation.budget.min_saving, 0.12);
  EXPECT_EQ(read.speculation.budget.profile_seconds, 3.5);
  EXPECT_EQ(read.sparse.selector, "dustin");
  EXPECT_EQ(read.sparse.manifest, "some/manifest.json");
  EXPECT_EQ(read.sparse.kv_budget, 300);
  EXPECT_EQ(read.sparse.sinks, 2);
  EXPECT_EQ(read.sparse.recent, 30);
  EXPECT_EQ(read.sparse.guarantee, Guarantee::kSparse);
  EXPECT_EQ(read.sparse.refresh_interval, 200);
  EXPECT_EQ(read.sparse.min_mass, 0.75);
  EXPECT_EQ(read.sparse.min_margin, 1.5);

  const EngineConfig defaults = EngineConfig::from_json("{}");
  EXPECT_EQ(defaults.to_json(), EngineConfig().to_json());
  EXPECT_FALSE(EngineConfig::from_json(defaults.to_json()).dtype.has_value());
  EXPECT_FALSE(EngineConfig::from_json(defaults.to_json()).speculation.max_draft_tokens.has_value());
}

TEST(EngineConfigTest, EveryOptionOfTheJsonFormCanBeGivenAlone) {
  const nlohmann::json all = nlohmann::json::parse(valid().to_json());
  for (const auto& [name, value] : all.items()) {
    EXPECT_NO_THROW(EngineConfig::from_json(nlohmann::json{{name, value}}.dump())) << name;
  }
  for (const std::string part : {"speculation", "sparse"}) {
    for (const auto& [name, value] : all[part].items()) {
      EXPECT_NO_THROW(EngineConfig::from_json(nlohmann::json{{part, {{name, value}}}}.dump())) << name;
    }
  }
}

TEST(EngineConfigTest, UnknownAndMistypedOptionsAreNamed) {
  const auto refuses = [](const std::string& json, std::initializer_list<std::string> parts) {
    expect_error(ErrorCode::kInvalidArgument, parts, [&] { EngineConfig::from_json(json); });
  };
  refuses(R"({"max_seqs": 4})", {"unknown", "max_seqs"});
  refuses(R"({"speculation": {"depth": 4}})", {"unknown", "speculation.depth"});
  refuses(R"({"ngram_min": 2})", {"unknown", "ngram_min"});
  refuses(R"({"max_num_seqs": "4"})", {"max_num_seqs", "\"4\"", "wrong type"});
  refuses(R"({"max_num_seqs": 4.0})", {"max_num_seqs", "4.0", "wrong type"});
  refuses(R"({"max_num_seqs": true})", {"max_num_seqs", "true", "wrong type"});
  refuses(R"({"max_num_seqs": null})", {"max_num_seqs", "null", "wrong type"});
  refuses(R"({"model": 4})", {"model", "4", "wrong type"});
  refuses(R"({"gpu_memory_utilization": "0.5"})", {"gpu_memory_utilization", "wrong type"});
  refuses(R"({"gpu_memory_utilization": true})", {"gpu_memory_utilization", "wrong type"});
  refuses(R"({"dtype": 16})", {"dtype", "16", "wrong type"});
  refuses(R"({"dtype": "int8"})", {"dtype", "int8", "bfloat16"});
  refuses(R"({"speculation": "ngram"})", {"speculation", "object"});
  refuses(R"({"speculation": {"drafter": 3}})", {"speculation.drafter", "3", "wrong type"});
  refuses(R"({"speculation": {"drafter": "eagle"}})", {"drafter", "eagle", "ngram"});
  refuses(R"({"speculation": {"max_draft_tokens": []}})", {"speculation.max_draft_tokens", "[]", "wrong type"});
  refuses(R"({"speculation": {"max_draft_tokens": "all"}})", {"max_draft_tokens", "all", "wrong type"});
  refuses(R"({"speculation": {"row_budget": "on"}})", {"row budget", "on", "off, auto or fixed:RHO"});
  refuses(R"({"speculation": {"row_budget": 0.5}})", {"speculation.row_budget", "0.5", "wrong type"});
  refuses(R"({"speculation": {"row_budget_objective": 1}})", {"speculation.row_budget_objective", "wrong type"});
  refuses(R"({"speculation": {"row_budget_ratios": 0.5}})", {"speculation.row_budget_ratios", "wrong type"});
  refuses(R"({"speculation": {"row_budget_ratios": ["a"]}})", {"speculation.row_budget_ratios", "wrong type"});
  refuses(R"({"speculation": {"profile_seconds": "20"}})", {"speculation.profile_seconds", "wrong type"});
  refuses(R"({"sparse": "quest"})", {"sparse", "object"});
  refuses(R"({"sparse": {"budget": 4}})", {"unknown", "sparse.budget"});
  refuses(R"({"sparse": {"kv_budget": "512"}})", {"sparse.kv_budget", "wrong type"});
  refuses(R"({"sparse": {"guarantee": "near"}})", {"guarantee", "near", "exact or sparse"});
  refuses(R"({"speculation": {"tree_widths": 4}})", {"speculation.tree_widths", "4", "wrong type"});
  refuses(R"({"speculation": {"tree_widths": [4, "a"]}})", {"speculation.tree_widths", "\"a\"", "wrong type"});
  for (const std::string text : {"", "[]", "3", "{", "null", R"({"model": "a",})", "{\"model\": \"\xFF\"}"}) {
    refuses(text, {"JSON object"});
  }
}

TEST(EngineConfigTest, NumbersThatWouldWrapAreRefused) {
  const auto refuses = [](const std::string& json, std::initializer_list<std::string> parts) {
    expect_error(ErrorCode::kInvalidArgument, parts, [&] { EngineConfig::from_json(json); });
  };
  refuses(R"({"max_num_seqs": 4294967297})", {"max_num_seqs", "4294967297", "range"});
  refuses(R"({"page_size": -4294967280})", {"page_size", "-4294967280", "range"});
  refuses(R"({"kv_cache_bytes": 18446744073709551615})", {"kv_cache_bytes", "18446744073709551615", "range"});
  refuses(R"({"speculation": {"max_draft_tokens": 4294967304}})", {"speculation.max_draft_tokens", "range"});
  EXPECT_EQ(EngineConfig::from_json(R"({"kv_cache_bytes": 9223372036854775807})").kv_cache_bytes,
            std::numeric_limits<std::int64_t>::max());
}

TEST(EngineConfigTest, AnyPathCanBePrinted) {
  EngineConfig config = valid();
  config.model = "\xFF/model";
  EXPECT_NE(config.to_json().find("/model"), std::string::npos);
}

}  // namespace
}  // namespace fastspec::test
