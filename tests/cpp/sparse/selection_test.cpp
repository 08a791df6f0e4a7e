// What selectors choose inside an engine, by definition: every selection of every step is computed again from keys and
// queries in double precision (support/selection_watch.h), on a device that records and on one that does not, with
// preemption, shared prompts and cuts.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "support/engine_harness.h"
#include "support/expect_error.h"
#include "support/lossless_matrix.h"
#include "support/selection_watch.h"
#include "support/temporary_directory.h"

namespace fastspec::testing {
namespace {

constexpr int kBudget = 12;

struct SelectionCase {
  const char* selector = "history";
  DrafterConfig drafter;
  Guarantee guarantee = Guarantee::kSparse;
  bool replays = false;
  bool pipelined = false;
  bool records = false;  // every pass before the first request
  int num_pages = 0;
  int samples = 1;
  bool cuts = false;
  std::string manifest = "";
};

std::vector<Request> requests_of(const SelectionCase& setting) {
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) {
    Request& request = requests.emplace_back();
    for (int token = 0; token < 18 + 9 * i; ++token) request.prompt_token_ids.push_back((7 * token + 13 * i) % 60);
    request.sampling.max_tokens = 14;
    request.sampling.seed = 100 + i;
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    request.sampling.ignore_eos = true;
    request.sampling.n = setting.samples;
  }
  return requests;
}

struct Seen {
  Outputs outputs;
  EngineStats stats;
  std::vector<std::string> faults;
  int selections = 0;
  int rows = 0;
  int bounded_pages = 0;
};

Seen run_watched(const SelectionCase& setting) {
  HarnessOptions options;
  options.has_windows = false;
  options.drafter = setting.drafter;
  options.max_draft_tokens = 3;
  options.replays = setting.replays;
  options.pipelined = setting.pipelined;
  options.num_pages = setting.num_pages;
  options.max_model_len = 96;
  options.sparse.selector = setting.selector;
  options.sparse.manifest = setting.manifest;
  options.sparse.kv_budget = kBudget;
  options.sparse.sinks = 2;
  options.sparse.recent = 3;
  options.sparse.guarantee = setting.guarantee;
  SelectionWatch* watch = nullptr;
  options.wrap_ops = [&](std::unique_ptr<Ops> inner) {
    auto own = std::make_unique<SelectionWatch>(std::move(inner));
    watch = own.get();
    watch->asks_by_dense_pass = std::string(setting.selector) == "oracle";
    return own;
  };
  const auto engine = make_engine(std::move(options));
  if (setting.records) engine->record_graphs(8);
  Seen seen;
  int steps = 0;
  seen.outputs = run(*engine, requests_of(setting), 1, [&](EngineCore& core) {
    core.kv().check_invariants();
    if (!setting.cuts || ++steps % 5 != 0 || steps > 30) return;
    for (const auto& sequence : core.scheduler().running_sequences()) {
      const int kept = sequence->prompt_len() + sequence->num_generated() / 2;
      if (sequence->num_generated() > 1) core.runner().truncate(sequence->id(), kept);
    }
  });
  seen.stats = engine->stats();
  seen.faults = watch->faults;
  seen.selections = watch->selections;
  seen.rows = watch->rows;
  seen.bounded_pages = watch->bounded_pages;
  return seen;
}

void expect_right(const Seen& seen, int least_selections) {
  for (const std::string& fault : seen.faults) ADD_FAILURE() << fault;
  EXPECT_GE(seen.selections, least_selections);
  for (const WholeOutput& output : seen.outputs) EXPECT_EQ(output.error, "");
}

class SelectionTest : public ::testing::TestWithParam<const char*> {};

TEST_P(SelectionTest, IsByDefinitionWithEveryGuaranteeAndOnEveryDevice) {
  for (const Guarantee guarantee : {Guarantee::kSparse, Guarantee::kExact}) {
    for (const bool replays : {false, true}) {
      SelectionCase setting{.selector = GetParam(), .drafter = DrafterConfig::parse("ngram"), .guarantee = guarantee};
      setting.replays = replays;
      setting.pipelined = setting.records = replays;
      const Seen seen = run_watched(setting);
      SCOPED_TRACE(std::string(to_string(guarantee)) + (replays ? ", replayed" : ""));
      expect_right(seen, 20);
      if (replays) {
        EXPECT_GT(seen.stats.graph_replays, 0);
        EXPECT_EQ(seen.stats.graph_captures, 0);
      }
    }
  }
}

TEST_P(SelectionTest, OutlivesPreemptionSharedPromptsAndCuts) {
  SelectionCase setting{.selector = GetParam()};
  setting.num_pages = 20;
  setting.samples = 2;
  const Seen crowded = run_watched(setting);
  expect_right(crowded, 20);
  EXPECT_GT(crowded.stats.preemptions, 0);
  setting.num_pages = 0;
  setting.cuts = true;
  expect_right(run_watched(setting), 20);
}

INSTANTIATE_TEST_SUITE_P(Selectors, SelectionTest, ::testing::Values("history", "quest", "oracle"),
                         [](const auto& each) { return std::string(each.param); });

TEST(Selection, QuestBoundsEveryPage) {
  EXPECT_GT(run_watched({.selector = "quest"}).bounded_pages, 100);
}

TEST(Selection, TheOracleAsksForAllRowsThatAreVerified) {
  const SelectionCase setting{.selector = "oracle", .drafter = DrafterConfig::parse("ngram")};
  const Seen seen = run_watched(setting);
  EXPECT_GT(seen.rows, 2 * seen.selections);  // two layers, and drafted rows beside the roots
}

class DustinTest : public ::testing::Test {
 protected:
  /// For the harness' models, whose files have no fingerprint.
  std::string manifest(const char* kind, int lookahead_slots, const char* pooling) {
    return directory_
        .write("m.json", std::string(R"({"format": "fastspec-srh", "version": 1,
  "target": {"fingerprint": "0000000000000011", "layers": [{"layer": 1, "heads": [0, 2]}, {"layer": 0, "heads": [1]}]},
  "drafter": {"fingerprint": "0000000000000022", "kind": ")") +
                             kind + R"(", "layers": [{"layer": 0, "heads": [1, 3]}]},
  "budget": 24, "sinks": 4, "recent": 8, "lookahead_slots": )" +
                             std::to_string(lookahead_slots) + R"(, "pooling": ")" + pooling + "\"}")
        .string();
  }
  test::TemporaryDirectory directory_;
};

TEST_F(DustinTest, LooksBackAndAheadWithEveryDrafterThatCan) {
  for (const char* drafter : {"standalone", "longspec"}) {
    for (const bool replays : {false, true}) {
      SelectionCase setting{.selector = "dustin", .drafter = {.kind = drafter, .model = "tiny"}};
      setting.drafter.tree_widths = {2, 2};
      setting.replays = setting.pipelined = replays;
      setting.manifest = manifest(drafter, 8, "mean");
      SCOPED_TRACE(std::string(drafter) + (replays ? ", replayed" : ""));
      const Seen seen = run_watched(setting);
      expect_right(seen, 20);
      EXPECT_GT(seen.rows, 3 * seen.selections);  // two layers of the target, and more than one drafted row
    }
  }
}

TEST_F(DustinTest, WithoutSlotsForLookaheadIsHistoryAlone) {
  SelectionCase setting{.selector = "dustin", .drafter = {.kind = "standalone", .model = "tiny"}};
  setting.manifest = manifest("standalone", 0, "mean");
  const Seen none = run_watched(setting);
  setting.selector = "history";
  const Seen history = run_watched(setting);
  expect_right(none, 20);
  EXPECT_EQ(difference(history.outputs, none.outputs), "");
  EXPECT_EQ(history.rows, none.rows);
}

TEST_F(DustinTest, RefusesModelsThatTheManifestIsNotFor) {
  SelectionCase setting{.selector = "dustin", .drafter = DrafterConfig::parse("ngram")};
  setting.manifest = manifest("standalone", 8, "mean");
  test::expect_error(ErrorCode::kInvalidArgument, {"m.json", "drafter.kind", "standalone", "ngram"},
                     [&] { run_watched(setting); });
  setting.selector = "history";  // reads nothing of a drafter
  expect_right(run_watched(setting), 20);
}

}  // namespace
}  // namespace fastspec::testing
