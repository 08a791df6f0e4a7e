// Held prompts in the engine, beside the lossless matrix: their life from submit to cancel, and what is refused.
#include <gtest/gtest.h>

#include "support/engine_harness.h"
#include "support/expect_error.h"

namespace fastspec::testing {
namespace {

using test::expect_error;

Request some_request(int prompt_len, bool hold = false) {
  Request request;
  for (int t = 0; t < prompt_len; ++t) request.prompt_token_ids.push_back((t * 13 + prompt_len) % 60);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 12;
  request.sampling.ignore_eos = true;
  request.hold = hold;
  return request;
}

class HeldPrompt : public ::testing::TestWithParam<bool> {};  // steps are launched ahead

TEST_P(HeldPrompt, IsNoWorkOnceComputedAndEndsWhenItIsCancelled) {
  HarnessOptions options;
  options.pipelined = GetParam();
  options.max_batch_rows = 16;
  const auto engine = make_engine(std::move(options));
  const RequestId held = engine->submit(some_request(42, true));
  ASSERT_TRUE(engine->has_work());
  while (engine->has_work()) EXPECT_TRUE(engine->step().outputs.empty());
  EXPECT_EQ(engine->stats().prompt_rows, 41);
  EXPECT_EQ(engine->stats().generated_tokens, 0);
  EXPECT_EQ(engine->stats().sequences_running, 1);
  EXPECT_EQ(engine->stats().pages_used, 11);

  engine->reset_stats();
  EXPECT_EQ(engine->stats().prompt_rows, 0);
  EXPECT_EQ(engine->stats().pages_used, 11) << "what is there is not counted anew";
  EXPECT_EQ(engine->stats().sequences_running, 1);
  run(*engine, {some_request(42)});
  EXPECT_FALSE(engine->has_work()) << "the other request came and went";
  EXPECT_EQ(engine->stats().prompt_rows, 42 - 40);
  EXPECT_EQ(engine->stats().pages_used, 11);
  engine->check_invariants();

  engine->cancel(held);
  ASSERT_TRUE(engine->has_work());
  std::vector<Output> outputs;
  while (engine->has_work()) {
    for (Output& output : engine->step().outputs) outputs.push_back(std::move(output));
  }
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0].request, held);
  EXPECT_EQ(outputs[0].finish_reason, FinishReason::kCancelled);
  EXPECT_TRUE(outputs[0].token_ids.empty());
  EXPECT_EQ(engine->stats().pages_used, 0);
  EXPECT_FALSE(engine->scheduler().has_work());
}

TEST_P(HeldPrompt, GivesItsPagesToARequestThatNeedsThemAll) {
  HarnessOptions options;
  options.pipelined = GetParam();
  options.num_pages = 16;
  options.max_model_len = 64;
  const auto engine = make_engine(std::move(options));
  engine->submit(some_request(40, true));
  while (engine->has_work()) engine->step();
  const Outputs alone = run_plain_alone({}, {some_request(50)});
  EXPECT_EQ(difference(alone, run(*engine, {some_request(50)})), "");
  EXPECT_EQ(engine->stats().preemptions, 1);
  EXPECT_EQ(engine->stats().pages_used, 10) << "it was computed again";
  EXPECT_EQ(engine->stats().prompt_rows, 39 + 50 + 39);
}

INSTANTIATE_TEST_SUITE_P(Ahead, HeldPrompt, ::testing::Bool());

TEST(HeldPromptRules, HasOneSampleAndNoEnd) {
  const auto engine = make_engine({});
  Request request = some_request(8, true);
  expect_error(ErrorCode::kInvalidArgument, {"hold", "submit"}, [&] { engine->generate({request}, {}); });
  request.sampling.n = 2;
  expect_error(ErrorCode::kInvalidArgument, {"n is 2", "hold"}, [&] { engine->submit(request); });
  EXPECT_FALSE(engine->has_work());
}

TEST(HeldPromptRules, ARowBudgetIsChangedWhileItRests) {
  HarnessOptions options;
  options.drafter.kind = "ngram";
  const auto engine = make_engine(std::move(options));
  engine->submit(some_request(8, true));
  expect_error(ErrorCode::kInvalidArgument, {"row budget"}, [&] { engine->set_row_budget("fixed:0.5"); });
  while (engine->has_work()) engine->step();
  engine->set_row_budget("fixed:0.5");
  EXPECT_EQ(engine->config().speculation.budget.ratio, 0.5);
  expect_error(ErrorCode::kInvalidArgument, {"costs"}, [&] { engine->profile(); });
}

// What a sparse pass chooses depends on the sequence alone, and so does what it computes.
TEST(HeldPromptRules, SparsePassesOfBothGuaranteesAreThoseWithoutIt) {
  for (const std::string selector : {"streaming", "history", "quest"}) {
    for (const Guarantee guarantee : {Guarantee::kExact, Guarantee::kSparse}) {
      for (const std::string drafter : {"", "standalone"}) {
        SCOPED_TRACE(selector + " " + to_string(guarantee) + " " + drafter);
        const auto make = [&] {
          HarnessOptions options;
          options.has_windows = false;
          options.sparse.set_selector(selector);
          options.sparse.kv_budget = 16;
          options.sparse.sinks = 2;
          options.sparse.recent = 4;
          options.sparse.refresh_interval = 4;
          options.sparse.guarantee = guarantee;
          options.drafter.kind = drafter;
          options.drafter.model = drafter.empty() ? "" : "tiny";
          return make_engine(std::move(options));
        };
        const std::vector<Request> requests = {some_request(42), some_request(31)};
        Outputs alone;
        for (const Request& request : requests) alone.push_back(run(*make(), {request})[0]);
        const auto engine = make();
        for (const int prompt_len : {42, 31}) engine->submit(some_request(prompt_len, true));
        while (engine->has_work()) engine->step();
        engine->reset_stats();
        EXPECT_EQ(difference(alone, run(*engine, requests)), "");
        EXPECT_EQ(engine->stats().prompt_rows, 2 + 3);
        EXPECT_GT(engine->stats().sparse.sparse_passes, 5);
      }
    }
  }
}

}  // namespace
}  // namespace fastspec::testing
