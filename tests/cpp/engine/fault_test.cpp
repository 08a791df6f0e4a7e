// A failure at the n-th operation of a step, for every n: nothing is left behind and the step run again gives the same
// tokens.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <tuple>

#include "support/engine_harness.h"
#include "support/failing_ops.h"
#include "support/tiny_model.h"

namespace fastspec::testing {
namespace {

constexpr int kVocab = 61;

struct Snapshot {
  std::map<SeqId, std::tuple<std::vector<TokenId>, int, std::vector<PageId>>> sequences;  // tokens, kv_len, pages
  int free_pages = 0;
  std::vector<std::int64_t> counters;

  bool operator==(const Snapshot&) const = default;
};

Snapshot snapshot(EngineCore& engine) {
  Snapshot taken;
  for (const auto& sequence : engine.scheduler().running_sequences()) {
    const auto pages = engine.kv().pages(sequence->id());
    taken.sequences[sequence->id()] = {
        sequence->tokens(), engine.kv().kv_len(sequence->id()), {pages.begin(), pages.end()}};
  }
  taken.free_pages = engine.kv().num_free_pages();
  const EngineStats stats = engine.runner().stats();
  taken.counters = {stats.steps,           stats.rows,           stats.prompt_rows,     stats.decoding_passes,
                    stats.decoding_tokens, stats.drafted_tokens, stats.verified_tokens, stats.accepted_tokens,
                    stats.generated_tokens};
  return taken;
}

std::vector<Request> make_requests(int max_tokens = 14) {
  std::vector<Request> requests(3);
  for (int i = 0; i < 3; ++i) {
    for (int t = 0; t < 5 + 9 * i; ++t) requests[i].prompt_token_ids.push_back((t * 13 + i * 5) % (kVocab - 1));
    requests[i].sampling.temperature = i == 0 ? 0.0f : 0.8f;
    requests[i].sampling.seed = 40 + i;
    requests[i].sampling.max_tokens = max_tokens;
    requests[i].sampling.ignore_eos = true;
    requests[i].sampling.stop = {"abca"};
    requests[i].sampling.n = i == 1 ? 2 : 1;
  }
  return requests;
}

/// Steps the engine to the end, failing every operation of every step once. `drafter_operations`: at least as many as
/// the drafter issues in a step; 0 = none. @returns how many failures were thrown.
int run_with_failures(EngineCore& engine, int& countdown, int drafter_operations, bool pipelined, Outputs& outputs,
                      const std::vector<Request>& requests) {
  std::map<RequestId, std::size_t> first;
  for (const Request& request : requests) {
    first[engine.submit(request)] = outputs.size();
    outputs.resize(outputs.size() + request.sampling.n);
  }
  int failures = 0;
  for (int step = 0; engine.has_work(); ++step) {
    const Snapshot before = snapshot(engine);
    std::optional<Snapshot> after_plan;
    // A failure of the drafter ends in a plain step, so most steps begin behind its operations, and some have none.
    const int begin[] = {1, drafter_operations, 0, drafter_operations + 22};
    // A step that failed leaves nothing in flight. Every other one is left in peace, so that the next, which is made to
    // fail, was launched ahead.
    const bool in_peace = pipelined && step % 2 == 0;
    for (int n = drafter_operations > 0 ? begin[(pipelined ? step / 2 : step) % 4] : 1;; ++n) {
      countdown = in_peace ? 0 : n;
      StepReport report;
      try {
        report = engine.step();
      } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "injected failure");
        if (::testing::Test::HasFailure()) return failures;  // would fail for ever
        ++failures;
        const Snapshot seen = snapshot(engine);
        if (!after_plan) {
          // Admission is a decision of plan and stands; whoever ran before is untouched.
          for (const auto& [seq, state] : before.sequences) EXPECT_EQ(seen.sequences.at(seq), state);
          EXPECT_EQ(seen.counters, before.counters);
          after_plan = seen;
        } else {
          EXPECT_EQ(seen, *after_plan) << "after a failure of operation " << n;
        }
        engine.check_invariants();
        // What was in flight is gone: the step begins with the drafter's operations again.
        if (pipelined && drafter_operations > 0) n = std::max(n, begin[1]);
        continue;
      }
      countdown = 0;
      for (const Output& delta : report.outputs) {
        WholeOutput& whole = outputs[first.at(delta.request) + delta.sample];
        whole.tokens.insert(whole.tokens.end(), delta.token_ids.begin(), delta.token_ids.end());
        whole.text += delta.text;
        whole.finish = delta.finish_reason;
      }
      break;
    }
  }
  return failures;
}

class Fault : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};  // drafter, pipelined

TEST_P(Fault, AtEveryOperationLeavesNothingBehind) {
  const std::string drafter = std::get<0>(GetParam());
  const bool pipelined = std::get<1>(GetParam());
  const std::vector<Request> requests = make_requests(pipelined ? 40 : 14);  // half of the steps are left in peace
  HarnessOptions options;
  const bool is_sparse = drafter == "sparse";
  if (is_sparse) {  // runs of two tokens over eight keys, behind which a dense pass takes most back
    options.has_windows = false;
    options.sparse.set_selector("streaming");
    options.sparse.kv_budget = 8;
    options.sparse.sinks = options.sparse.recent = 2;
    options.sparse.refresh_interval = 2;
  }
  const Outputs plain = run_plain_alone(options, requests);
  const bool has_model = drafter == "standalone" || drafter == "longspec" || drafter == "dflash";
  options.pipelined = pipelined;
  if (drafter == "planted" || is_sparse) {
    options.own_drafter =
        std::make_unique<PlantedDrafter>(truths_of(requests, plain), TreeShape::kTree, 0.8, 4, kVocab, nullptr);
  } else {
    options.drafter.kind = drafter;
    options.drafter.ngram_min = 1;
    options.drafter.model = has_model ? "tiny" : "";
    options.drafter.tree_widths = {3, 4, 4};
    options.drafter.window = drafter == "dflash" ? 8 : 0;  // so that a hole is behind it some time
  }
  const auto countdown = std::make_shared<int>(0);
  options.wrap_ops = [&](std::unique_ptr<Ops> ops) { return std::make_unique<FailingOps>(std::move(ops), countdown); };
  const auto engine = make_engine(std::move(options));
  Outputs outputs;
  const int operations = drafter == "standalone" ? 124 : drafter == "longspec" ? 74 : drafter == "dflash" ? 26 : 0;
  const int failures = run_with_failures(*engine, *countdown, operations, pipelined, outputs, requests);
  EXPECT_EQ(difference(plain, outputs), "");
  EXPECT_GT(failures, 60);
  EXPECT_TRUE(!pipelined || engine->stats().steps_ahead > 5);
  engine->check_invariants();
  if (is_sparse) {
    EXPECT_GT(engine->stats().sparse.confirmed_tokens, 0);
    EXPECT_GT(engine->stats().sparse.taken_back_tokens, 0);
  }
  if (has_model) {
    // A failure of the drafter is no failure of the step: it decodes plainly, or the tokens stand and the draft's state
    // is rebuilt.
    EXPECT_GT(engine->stats().draft_failures, 0);
    EXPECT_GT(engine->stats().accepted_tokens, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Drafter, Fault,
                         ::testing::Combine(::testing::Values("", "ngram", "standalone", "longspec", "dflash",
                                                              "planted", "sparse"),
                                            ::testing::Bool()),
                         [](const auto& test) {
                           const std::string drafter = std::get<0>(test.param);
                           return (drafter.empty() ? "plain" : drafter) + (std::get<1>(test.param) ? "Pipelined" : "");
                         });

TEST(Fault, ADrafterThatAlwaysFailsLeavesPlainDecoding) {
  class Broken final : public Drafter {
   public:
    std::string name() const override { return "broken"; }
    DraftShape shape() const override { return {4, 4}; }
    void draft(std::span<const DraftRequest>, std::span<TokenTree> trees) override {
      trees[0].add(1, 0);
      fail(ErrorCode::kInternal, "broken");
    }
    void observe(std::span<const Observation>) override { fail(ErrorCode::kInternal, "broken"); }
    void truncate(SeqId, int) override {}
    void forget(SeqId) noexcept override {}
    void share(SeqId, SeqId, int) override {}
  };
  const std::vector<Request> requests = make_requests();
  HarnessOptions options;
  options.own_drafter = std::make_unique<Broken>();
  const auto engine = make_engine(std::move(options));
  EXPECT_EQ(difference(run_plain_alone({}, requests), run(*engine, requests)), "");
  EXPECT_GT(engine->stats().draft_failures, 10);
  EXPECT_EQ(engine->stats().drafted_tokens, 0);
}

TEST(Fault, ADeviceFailurePoisonsTheEngine) {
  class DeadDevice final : public InterceptedOps {
   public:
    using InterceptedOps::InterceptedOps;

   private:
    void before() override { fail(ErrorCode::kDeviceFailure, "the device fell off"); }
    void after() override {}
  };
  HarnessOptions options;
  options.wrap_ops = [](std::unique_ptr<Ops> ops) { return std::make_unique<DeadDevice>(std::move(ops)); };
  const auto engine = make_engine(std::move(options));
  engine->submit(make_requests()[0]);
  for (int i = 0; i < 2; ++i) {
    try {
      engine->step();
      FAIL() << "the step ran on a dead device";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDeviceFailure);
    }
  }
  EXPECT_THROW(engine->submit(make_requests()[0]), Error);
}

TEST(Fault, LogitsWithoutANumberEndTheirRequestAndNoOther) {
  class NanForOne final : public InterceptedOps {
   public:
    using InterceptedOps::InterceptedOps;
    void accept(const AcceptParams& params) override {
      for (int tree = 0; tree < params.num_trees; ++tree) {
        if (params.trees[tree].rule.seed == 41) {
          params.logits.row<float>(params.trees[tree].logit_rows[0])[7] = std::numeric_limits<float>::quiet_NaN();
        }
      }
      InterceptedOps::accept(params);
    }

   private:
    void before() override {}
    void after() override {}
  };
  const std::vector<Request> requests = make_requests();
  const Outputs plain = run_plain_alone({}, requests);
  HarnessOptions options;
  options.wrap_ops = [](std::unique_ptr<Ops> ops) { return std::make_unique<NanForOne>(std::move(ops)); };
  const auto engine = make_engine(std::move(options));
  const Outputs seen = run(*engine, requests);
  EXPECT_EQ(seen[0].tokens, plain[0].tokens);
  EXPECT_EQ(seen[3].tokens, plain[3].tokens);
  for (const int sample : {1, 2}) {
    EXPECT_EQ(seen[sample].finish, FinishReason::kError);
    EXPECT_NE(seen[sample].error.find("NaN"), std::string::npos) << seen[sample].error;
  }
  engine->check_invariants();
}

}  // namespace
}  // namespace fastspec::testing
