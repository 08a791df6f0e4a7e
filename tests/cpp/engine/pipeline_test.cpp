// Steps launched ahead, on a device that runs behind the host: what is in flight when, and what becomes of it when
// sequences are cancelled or cut, a launch fails, or the engine ends.
#include <gtest/gtest.h>

#include <memory>

#include "support/engine_harness.h"
#include "support/failing_ops.h"

namespace fastspec::testing {
namespace {

Request make_request(std::uint64_t seed, int max_tokens) {
  Request request;
  for (int t = 0; t < 6; ++t) request.prompt_token_ids.push_back(static_cast<TokenId>((seed + 3 * t) % 60));
  request.sampling.temperature = 0.8f;
  request.sampling.seed = seed;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  return request;
}

/// Counts passes of the target as they are issued.
class CountingOps final : public InterceptedOps {
 public:
  CountingOps(std::unique_ptr<Ops> inner, std::shared_ptr<int> passes)
      : InterceptedOps(std::move(inner)), passes_(std::move(passes)) {}
  void embed(const EmbeddingParams& params) override {
    ++*passes_;
    InterceptedOps::embed(params);
  }

 private:
  void before() override {}
  void after() override {}
  std::shared_ptr<int> passes_;
};

class Pipeline : public ::testing::Test {
 protected:
  std::unique_ptr<EngineCore> make(bool pipelined) {
    HarnessOptions options;
    options.pipelined = pipelined;
    options.replays = true;
    options.wrap_ops = [this](std::unique_ptr<Ops> ops) {
      return std::make_unique<FailingOps>(std::make_unique<CountingOps>(std::move(ops), passes_), countdown_);
    };
    return make_engine(std::move(options));
  }
  static std::vector<TokenId> plain(const Request& request) { return run_plain_alone({}, {request})[0].tokens; }
  /// Steps to the end; tokens of `request`.
  static std::vector<TokenId> finish(EngineCore& engine, RequestId request, std::vector<TokenId> tokens = {}) {
    while (engine.has_work()) {
      for (const Output& output : engine.step().outputs) {
        if (output.request == request) {
          tokens.insert(tokens.end(), output.token_ids.begin(), output.token_ids.end());
        }
      }
      engine.check_invariants();
    }
    return tokens;
  }

  std::shared_ptr<int> passes_ = std::make_shared<int>(0);
  std::shared_ptr<int> countdown_ = std::make_shared<int>(0);
};

TEST_F(Pipeline, TheNextPassRunsWhenAStepIsReported) {
  const auto engine = make(true);
  engine->submit(make_request(1, 3));
  for (int step = 1; step <= 3; ++step) {
    EXPECT_EQ(engine->step().outputs.size(), 1u);
    EXPECT_EQ(*passes_, std::min(step + 1, 3)) << "nothing is launched for a sequence that ended";
    EXPECT_EQ(engine->has_work(), step < 3);
  }
  EXPECT_EQ(engine->stats().steps, 3);
  EXPECT_EQ(engine->stats().steps_ahead, 2);
  EXPECT_GT(engine->stats().turnaround_seconds, 0);
  EXPECT_TRUE(engine->step().outputs.empty());
}

TEST_F(Pipeline, ADeviceThatRunsWithTheHostIsNotGivenWorkAhead) {
  const auto engine = make(false);
  engine->submit(make_request(1, 3));
  for (int step = 1; step <= 3; ++step) {
    engine->step();
    EXPECT_EQ(*passes_, step);
  }
  EXPECT_EQ(engine->stats().steps_ahead, 0);
}

TEST_F(Pipeline, ARequestSubmittedWhileAPassRunsJoinsTheNextPlan) {
  const auto engine = make(true);
  engine->submit(make_request(1, 10));
  engine->step();
  const Request late = make_request(2, 4);
  const RequestId id = engine->submit(late);
  EXPECT_EQ(engine->step().num_sequences, 1);
  EXPECT_EQ(engine->step().num_sequences, 2);
  EXPECT_EQ(finish(*engine, id, {plain(late)[0]}), plain(late));
}

TEST_F(Pipeline, ASequenceCancelledWhileItsPassRunsIsDroppedAndNoOtherFeelsIt) {
  for (int steps = 1; steps <= 6; ++steps) {
    const auto engine = make(true);
    const Request stays = make_request(1, 9);
    const RequestId id = engine->submit(stays);
    const RequestId goes = engine->submit(make_request(2, 9));
    std::vector<TokenId> tokens;
    for (int step = 0; step < steps; ++step) {
      for (const Output& output : engine->step().outputs) {
        if (output.request == id) tokens.insert(tokens.end(), output.token_ids.begin(), output.token_ids.end());
      }
    }
    engine->cancel(goes);
    const StepReport report = engine->step();
    engine->check_invariants();
    int cancelled = 0;
    for (const Output& output : report.outputs) {
      if (output.request == id) {
        tokens.insert(tokens.end(), output.token_ids.begin(), output.token_ids.end());
        continue;
      }
      EXPECT_EQ(output.finish_reason, FinishReason::kCancelled);
      EXPECT_TRUE(output.token_ids.empty()) << "what was in flight is not delivered";
      ++cancelled;
    }
    EXPECT_EQ(cancelled, 1);
    EXPECT_EQ(finish(*engine, id, tokens), plain(stays));
    EXPECT_EQ(engine->kv().num_free_pages(), engine->kv().num_pages());
  }
}

TEST_F(Pipeline, WhenAllAreCancelledNothingStaysInFlight) {
  const auto engine = make(true);
  const RequestId id = engine->submit(make_request(1, 9));
  engine->step();
  engine->step();
  engine->cancel(id);
  EXPECT_EQ(engine->step().outputs.size(), 1u);
  EXPECT_FALSE(engine->has_work());
  EXPECT_EQ(engine->kv().num_free_pages(), engine->kv().num_pages());
  engine->check_invariants();
}

TEST_F(Pipeline, AFailedLaunchAheadLosesNoReportAndIsSaidByTheNextStep) {
  const Request request = make_request(1, 6);
  const std::vector<TokenId> expected = plain(request);
  const auto engine = make(true);
  const RequestId id = engine->submit(request);
  engine->step();
  *countdown_ = 4;  // behind the wait for the draws: in the next pass
  const StepReport report = engine->step();
  ASSERT_EQ(report.outputs.size(), 1u);
  EXPECT_EQ(report.outputs[0].token_ids, std::vector<TokenId>{expected[1]});
  EXPECT_TRUE(engine->has_work());
  engine->check_invariants();
  EXPECT_THROW(engine->step(), Error);
  engine->check_invariants();
  EXPECT_EQ(finish(*engine, id, {expected[0], expected[1]}), expected);
}

TEST_F(Pipeline, AFailedWaitIsRepairedByRunningTheStepAgain) {
  const Request request = make_request(1, 6);
  const std::vector<TokenId> expected = plain(request);
  const auto engine = make(true);
  const RequestId id = engine->submit(request);
  engine->step();
  *countdown_ = 1;
  EXPECT_THROW(engine->step(), Error);
  engine->check_invariants();
  EXPECT_EQ(finish(*engine, id, {expected[0]}), expected);
}

TEST_F(Pipeline, AnEngineMayEndWithAPassInFlight) {
  auto engine = make(true);
  engine->submit(make_request(1, 9));
  engine->step();
  engine.reset();
}

TEST_F(Pipeline, GraphsRecordedAheadLeaveNoPassOfDecodingEager) {
  HarnessOptions options;
  options.pipelined = true;
  options.drafter.kind = "standalone";
  options.drafter.model = "tiny";
  const auto engine = make_engine(std::move(options));
  engine->record_graphs(4);
  const EngineStats before = engine->stats();
  EXPECT_GT(before.graphs, 8);
  EXPECT_EQ(before.graph_bytes, 1000u * static_cast<std::size_t>(before.graphs));
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) requests.push_back(make_request(static_cast<std::uint64_t>(i), 20));
  EXPECT_EQ(difference(run_plain_alone({}, requests), run(*engine, requests)), "");
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.graph_captures, 0);
  EXPECT_EQ(stats.graph_eager_passes, 1) << "the prompts";
  EXPECT_GT(stats.graph_replays, 4);
  engine->submit(make_request(1, 9));
  engine->step();
  EXPECT_THROW(engine->record_graphs(4), Error);
}

}  // namespace
}  // namespace fastspec::testing
