// The row budget in the engine: drafting off and on again, what it costs while off, what auto decides, costs measured
// and kept. That no token depends on it is in the lossless matrix.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>

#include "backend/intercepted_ops.h"
#include "support/engine_harness.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace fastspec::testing {
namespace {

using fastspec::test::expect_error;
using fastspec::test::TemporaryDirectory;

Request some_request(int index, int max_tokens = 60) {
  Request request;
  for (int t = 0; t < 12; ++t) request.prompt_token_ids.push_back((5 * t + 7 * index) % 23);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.seed = static_cast<std::uint64_t>(index) + 1;
  return request;
}

std::vector<Request> some_requests(int count, int max_tokens = 60) {
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) requests.push_back(some_request(i, max_tokens));
  return requests;
}

/// Every drafted row is kept; who drafts is the test's to say.
HarnessOptions fixed_options(const std::string& drafter) {
  HarnessOptions options;
  options.drafter = DrafterConfig::parse(drafter);
  options.drafter.ngram_min = 1;
  options.draft_noise = 0;
  options.budget.set_mode("fixed:1");
  return options;
}

void let_draft(EngineCore& engine, bool drafts) {
  for (const auto& sequence : engine.scheduler().running_sequences()) sequence->drafting.drafts = drafts;
}

/// Tokens that a sequence gained in the step that began at this length, for the steps in which it could draft.
std::map<int, int> gains(const std::string& drafter, int off_from, int off_until) {
  const auto engine = make_engine(fixed_options(drafter));
  engine->submit(some_request(3));
  std::map<int, int> result;
  for (int step = 0; engine->has_work(); ++step) {
    const bool drafts = step < off_from || step >= off_until;
    let_draft(*engine, drafts);
    const auto& running = engine->scheduler().running_sequences();
    const int before = running.empty() ? 0 : running[0]->len();
    const std::int64_t accepted = engine->stats().accepted_tokens;
    const StepReport report = engine->step();
    if (report.outputs.empty() || before == 0) continue;
    const int gained = static_cast<int>(report.outputs[0].token_ids.size());
    if (drafts) result[before] = gained;
    EXPECT_TRUE(drafts || (gained == 1 && engine->stats().accepted_tokens == accepted));
  }
  return result;
}

TEST(DraftingOffAndOn, LeavesAcceptanceAsItWas) {
  for (const std::string drafter : {"standalone:tiny", "longspec:tiny", "ngram"}) {
    SCOPED_TRACE(drafter);
    const std::map<int, int> always = gains(drafter, 1000, 1000);
    int compared = 0, more_than_one = 0;
    for (const int off_for : {4, 5, 6, 7}) {  // steps, so that the two come to a common length again
      const int off_from = 3;
      for (const auto& [length, gained] : gains(drafter, off_from, off_from + off_for)) {
        const auto found = always.find(length);
        if (found == always.end() || length < 12 + off_from + off_for) continue;
        EXPECT_EQ(gained, found->second) << "from " << length << " tokens on";
        ++compared;
        more_than_one += gained > 1 ? 1 : 0;
      }
    }
    EXPECT_GT(compared, 5);
    EXPECT_GT(more_than_one, 3);
  }
}

/// Counts operations.
class CountedOps final : public InterceptedOps {
 public:
  CountedOps(std::unique_ptr<Ops> inner, std::int64_t& count) : InterceptedOps(std::move(inner)), count_(count) {}

 private:
  void before() override { ++count_; }
  void after() override {}
  std::int64_t& count_;
};

TEST(DraftingOff, RunsNoOperationThatAnEngineWithoutADrafterDoesNot) {
  std::vector<std::int64_t> totals;
  for (const std::string drafter : {"none", "standalone:tiny", "longspec:tiny", "ngram"}) {
    std::int64_t count = 0;
    HarnessOptions options = fixed_options(drafter);
    options.wrap_ops = [&](std::unique_ptr<Ops> ops) { return std::make_unique<CountedOps>(std::move(ops), count); };
    const auto engine = make_engine(std::move(options));
    for (const Request& request : some_requests(3)) engine->submit(request);
    for (int step = 0; step < 3; ++step) {  // prompts, which a small model reads too
      engine->step();
      let_draft(*engine, false);
    }
    count = 0;
    while (engine->has_work()) engine->step();
    totals.push_back(count);
    EXPECT_EQ(engine->stats().budget.passes_undrafted > 0, drafter != "none");
  }
  EXPECT_GT(totals[0], 1000);
  for (const std::int64_t total : totals) EXPECT_EQ(total, totals[0]);
}

/// Ten milliseconds and `row` for each row; measured steps say otherwise, and slowly correct it.
CostParameters costs(double row) {
  return {.linear = {{1, 101}, {10 + row, 10 + 101 * row}}, .draft = {{1, 8}, {0.1, 0.1}}};
}

HarnessOptions planted_options(const std::vector<Request>& requests, double probability, double row) {
  HarnessOptions options;
  options.own_drafter =
      std::make_unique<PlantedDrafter>(truths_of(requests, run_plain_alone({}, requests)), TreeShape::kChain,
                                       probability, 6, options.vocab_size, nullptr);
  options.budget.set_mode("auto");
  options.costs = costs(row);
  return options;
}

TEST(AutoBudget, DraftsThatAreNeverTakenStop) {
  const std::vector<Request> requests = some_requests(8, 100);
  const auto engine = make_engine(planted_options(requests, 0.0, 5));
  run(*engine, requests);
  const EngineStats stats = engine->stats();
  EXPECT_GT(stats.budget.steps_undrafted, stats.steps / 2);
  EXPECT_GT(stats.budget.passes_undrafted, stats.decoding_passes / 2);
  EXPECT_GT(stats.budget.predicted_steps, 0);
}

TEST(AutoBudget, StepsThatRecordPassesAreNotMeasured) {
  const std::vector<Request> requests = some_requests(4, 100);
  HarnessOptions options = planted_options(requests, 1.0, 0.001);
  options.replays = true;
  const auto engine = make_engine(std::move(options));
  run(*engine, requests);
  const EngineStats stats = engine->stats();
  EXPECT_GT(stats.graph_captures, 0);
  EXPECT_GT(stats.budget.predicted_steps, 0);
  EXPECT_LE(stats.budget.predicted_steps, stats.graph_replays);
}

TEST(AutoBudget, DraftsThatAreAlwaysTakenAreVerified) {
  const std::vector<Request> requests = some_requests(4, 100);
  const auto engine = make_engine(planted_options(requests, 1.0, 0.001));
  run(*engine, requests);
  const EngineStats stats = engine->stats();
  EXPECT_GT(stats.acceptance_length(), 5);
  EXPECT_EQ(stats.budget.passes_undrafted, 0);
  std::int64_t steps = 0;
  for (const RatioCount& count : stats.budget.ratios) steps += count.steps;
  EXPECT_GT(steps, 0);
  EXPECT_LE(steps, stats.steps);
  EXPECT_LE(stats.verified_tokens, stats.drafted_tokens);
}

TEST(FixedBudget, KeepsItsShareAndSaysSo) {
  const std::vector<Request> requests = some_requests(4, 100);
  HarnessOptions options = planted_options(requests, 0.8, 1);
  options.budget.set_mode("fixed:0.5");
  const auto engine = make_engine(std::move(options));
  run(*engine, requests);
  const EngineStats stats = engine->stats();
  ASSERT_EQ(stats.budget.ratios.size(), 1u);
  EXPECT_EQ(stats.budget.ratios[0].ratio, 0.5);
  EXPECT_NEAR(static_cast<double>(stats.verified_tokens + stats.decoding_passes),
              0.5 * static_cast<double>(stats.drafted_tokens + stats.decoding_passes),
              0.1 * static_cast<double>(stats.drafted_tokens));
}

class MeasuredCosts : public ::testing::Test {
 protected:
  MeasuredCosts() { setenv("XDG_CACHE_HOME", directory_.path().c_str(), 1); }
  ~MeasuredCosts() override { unsetenv("XDG_CACHE_HOME"); }

  static HarnessOptions options_of(const std::string& drafter, bool replays) {
    HarnessOptions options;
    options.drafter = DrafterConfig::parse(drafter);
    options.budget.set_mode("auto");
    options.budget.profile_seconds = 0.2;
    options.replays = replays;
    return options;
  }
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> result;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path())) {
      if (entry.is_regular_file()) result.push_back(entry.path());
    }
    return result;
  }
  static std::string text_of(const std::filesystem::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  TemporaryDirectory directory_;
};

TEST_F(MeasuredCosts, AreThoseOfTheEnginesPassesAndLeaveNothingBehind) {
  const std::vector<Request> requests = some_requests(5, 40);
  const Outputs plain = run_plain_alone({}, requests);
  for (const std::string drafter : {"ngram", "standalone:tiny", "longspec:tiny"}) {
    for (const bool replays : {false, true}) {
      SCOPED_TRACE(drafter + (replays ? ", replayed" : ""));
      const auto engine = make_engine(options_of(drafter, replays));
      engine->check_invariants();
      const CostProfile profile = engine->profile();
      engine->check_invariants();
      EXPECT_EQ(profile.costs.rows_per_tile > 1, replays);
      EXPECT_EQ(profile.costs.linear.counts.front(), 1);
      EXPECT_GE(profile.costs.linear.counts.size(), 2u);
      EXPECT_GT(profile.costs.linear.milliseconds.back(), 0);
      EXPECT_EQ(profile.costs.draft.counts.front(), 1);
      EXPECT_FALSE(profile.checks.empty());
      for (const CostCheck& check : profile.checks) {
        EXPECT_GT(check.measured_milliseconds, 0);
        EXPECT_GT(check.predicted_milliseconds, 0);
      }
      EXPECT_EQ(engine->stats().steps, 0);
      EXPECT_EQ(difference(plain, run(*engine, requests, 1)), "");
      engine->check_invariants();
    }
  }
}

TEST_F(MeasuredCosts, OfABlockDrafterAreThoseOfItsBlocks) {
  HarnessOptions options = options_of("dflash:tiny", false);
  options.costs = costs(1);
  const auto engine = make_engine(std::move(options));
  const CostProfile profile = engine->profile();
  const double pass = profile.costs.linear.milliseconds.front();
  EXPECT_GT(profile.costs.draft.milliseconds.front(), 0.02 * pass) << "a draft that runs no layer takes no time";
}

TEST(RowBudgetOfAnEngine, ChangesBetweenRequests) {
  const std::vector<Request> requests = some_requests(3, 60);
  const auto engine = make_engine(planted_options(requests, 1.0, 0.001));
  const Outputs plain = run_plain_alone({}, requests);
  const auto kept_share = [&](const std::string& mode) {
    engine->set_row_budget(mode);
    engine->reset_stats();
    EXPECT_EQ(difference(plain, run(*engine, requests, 1)), "");
    const EngineStats stats = engine->stats();
    return static_cast<double>(stats.verified_tokens) / static_cast<double>(stats.drafted_tokens);
  };
  EXPECT_EQ(kept_share("off"), 1.0);
  EXPECT_LT(kept_share("fixed:0.5"), 0.7);
  EXPECT_GT(kept_share("auto"), 0.7);
  expect_error(ErrorCode::kInvalidArgument, {"fixed:2"}, [&] { engine->set_row_budget("fixed:2"); });
  engine->submit(requests[0]);
  expect_error(ErrorCode::kInvalidArgument, {"while no request runs"}, [&] { engine->set_row_budget("off"); });
  expect_error(ErrorCode::kInvalidArgument, {"drafter"}, [] { make_engine({})->set_row_budget("auto"); });
}

TEST_F(MeasuredCosts, AreKeptAndReadAgain) {
  {
    make_engine(options_of("ngram", false));
  }
  ASSERT_EQ(files().size(), 1u);
  const std::filesystem::path file = files()[0];
  const std::string first = text_of(file);
  {
    make_engine(options_of("ngram", false));
  }
  EXPECT_EQ(text_of(file), first) << "nothing was measured again";
  std::ofstream(file, std::ios::trunc) << first.substr(0, first.size() / 2);
  {
    make_engine(options_of("ngram", false));
  }
  EXPECT_NE(text_of(file), first);
  EXPECT_GT(text_of(file).size(), first.size() / 2 + 20) << "a broken file is replaced";
  HarnessOptions other = options_of("ngram", false);
  other.max_num_seqs = 3;
  {
    make_engine(std::move(other));
  }
  EXPECT_EQ(files().size(), 2u);
  {
    make_engine({});
  }
  EXPECT_EQ(files().size(), 2u) << "without a row budget nothing is measured";
}

TEST_F(MeasuredCosts, WithoutTimeAreThoseOfTheSmallestPasses) {
  HarnessOptions options = options_of("standalone:tiny", false);
  options.budget.profile_seconds = 1e-9;
  const auto engine = make_engine(std::move(options));
  const CostProfile profile = engine->profile();
  EXPECT_EQ(profile.costs.linear.counts, (std::vector<int>{1, 2}));
  EXPECT_EQ(profile.costs.draft.counts, std::vector<int>{1});
  EXPECT_TRUE(profile.checks.empty());
  EXPECT_NO_THROW(run(*engine, some_requests(2)));
}

TEST_F(MeasuredCosts, NeedADrafterAndAnIdleEngine) {
  expect_error(ErrorCode::kInvalidArgument, {"drafter"}, [] { make_engine({})->profile(); });
  const auto engine = make_engine(options_of("ngram", false));
  engine->submit(some_request(1));
  expect_error(ErrorCode::kInvalidArgument, {"while no request runs"}, [&] { engine->profile(); });
}

}  // namespace
}  // namespace fastspec::testing
