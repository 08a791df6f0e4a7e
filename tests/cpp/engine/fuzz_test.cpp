// Random workloads: arrivals, cancels, tiny pools, failures, ten thousand steps. Invariants hold after every step,
// nothing leaks, and what comes out is plain decoding's.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "support/engine_harness.h"
#include "support/failing_ops.h"
#include "support/tiny_model.h"

namespace fastspec::testing {
namespace {

constexpr int kVocab = 61;
constexpr int kKinds = 40;  // different requests; their plain outputs are computed once

std::vector<Request> make_kinds() {
  std::mt19937_64 random(5);
  std::vector<Request> kinds(kKinds);
  for (int i = 0; i < kKinds; ++i) {
    const int prompt_len = 1 + static_cast<int>(random() % 40);
    for (int t = 0; t < prompt_len; ++t) {
      kinds[i].prompt_token_ids.push_back(static_cast<TokenId>(random() % (kVocab - 1)));
    }
    kinds[i].sampling.temperature = i % 3 == 0 ? 0.0f : 0.9f;
    kinds[i].sampling.seed = 500 + i;
    kinds[i].sampling.n = i % 7 == 3 ? 3 : 1;
    kinds[i].sampling.max_tokens = 1 + static_cast<int>(random() % 30);
    if (i % 4 == 1) kinds[i].sampling.frequency_penalty = 0.5f;
    if (i % 5 == 2) kinds[i].sampling.stop = {"bca"};
  }
  return kinds;
}

struct Pending {
  int kind = 0;
  Outputs outputs;  // one a sample
  int unfinished = 0;
};

class Workload {
 public:
  Workload(EngineCore& engine, const std::vector<Request>& kinds, const std::vector<Outputs>& plain,
           std::shared_ptr<int> countdown, std::uint64_t seed)
      : engine_(engine), kinds_(kinds), plain_(plain), countdown_(std::move(countdown)), random_(seed) {}

  void run(int num_steps) {
    for (int step = 0; step < num_steps; ++step) {
      arrive();
      if (chance(0.03) && !pending_.empty()) engine_.cancel(std::next(pending_.begin(), index(pending_.size()))->first);
      if (chance(0.05)) *countdown_ = 1 + index(60);
      one_step();
      if (::testing::Test::HasFatalFailure()) return;
    }
    while (engine_.has_work()) one_step();
    EXPECT_TRUE(pending_.empty());
    EXPECT_EQ(engine_.kv().num_free_pages(), engine_.kv().num_pages());
  }

  int finished = 0;
  int cancelled = 0;
  int failed_steps = 0;

 private:
  bool chance(double probability) { return std::bernoulli_distribution(probability)(random_); }
  int index(std::size_t count) { return static_cast<int>(random_() % count); }

  void arrive() {
    while (pending_.size() < 12 && chance(0.3)) {
      Request request = kinds_[index(kKinds)];
      const int kind = static_cast<int>(*request.sampling.seed) - 500;
      if (chance(0.2)) request.speculation.enabled = false;
      const RequestId id = engine_.submit(request);
      pending_[id] = {kind, Outputs(request.sampling.n), request.sampling.n};
    }
  }

  void one_step() {
    StepReport report;
    try {
      report = engine_.step();
    } catch (const Error& error) {
      ASSERT_STREQ(error.what(), "injected failure");
      ++failed_steps;
    }
    engine_.check_invariants();
    for (const Output& delta : report.outputs) {
      Pending& pending = pending_.at(delta.request);
      WholeOutput& whole = pending.outputs[delta.sample];
      whole.tokens.insert(whole.tokens.end(), delta.token_ids.begin(), delta.token_ids.end());
      whole.text += delta.text;
      if (!delta.finished()) continue;
      check(whole, plain_[pending.kind][delta.sample], delta.finish_reason);
      if (--pending.unfinished == 0) pending_.erase(delta.request);
    }
  }

  void check(const WholeOutput& seen, const WholeOutput& plain, FinishReason reason) {
    if (reason == FinishReason::kCancelled) {
      ++cancelled;
      ASSERT_LE(seen.tokens.size(), plain.tokens.size());
      ASSERT_TRUE(std::equal(seen.tokens.begin(), seen.tokens.end(), plain.tokens.begin()));
    } else {
      ++finished;
      ASSERT_EQ(reason, plain.finish);
      ASSERT_EQ(seen.tokens, plain.tokens);
      ASSERT_EQ(seen.text, plain.text);
    }
  }

  EngineCore& engine_;
  const std::vector<Request>& kinds_;
  const std::vector<Outputs>& plain_;
  std::shared_ptr<int> countdown_;
  std::mt19937_64 random_;
  std::map<RequestId, Pending> pending_;
};

TEST(Fuzz, TenThousandStepsOfRandomWork) {
  const std::vector<Request> kinds = make_kinds();
  std::vector<Outputs> plain, without_windows;  // of the target with and without windows
  std::vector<Request> all = kinds;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<TokenId>> truths, sparse_truths;
  for (const Request& kind : kinds) {
    plain.push_back(run_plain_alone({}, {kind}));
    HarnessOptions options;
    options.has_windows = false;
    without_windows.push_back(run_plain_alone(options, {kind}));
    truths.merge(truths_of({kind}, plain.back()));
    sparse_truths.merge(truths_of({kind}, without_windows.back()));
  }
  int finished = 0;
  int cancelled = 0;
  int failed_steps = 0;
  std::int64_t preemptions = 0;
  std::int64_t steps = 0;
  std::int64_t ahead = 0;
  const std::vector<std::string> drafters = {"", "ngram", "standalone", "longspec", "dflash", "planted", "sparse"};
  for (int turn = 0; turn < 2 * static_cast<int>(drafters.size()); ++turn) {
    const std::string& drafter = drafters[turn / 2];
    SCOPED_TRACE(drafter);
    HarnessOptions options;
    options.pipelined = turn % 2 == 1;
    options.max_num_seqs = 6;
    options.max_batch_rows = 24;
    options.num_pages = 30;
    options.max_model_len = 80;
    const bool is_sparse = drafter == "sparse";
    if (is_sparse) {
      options.has_windows = false;
      options.sparse.set_selector("streaming");
      options.sparse.kv_budget = 10;
      options.sparse.sinks = options.sparse.recent = 2;
      options.sparse.refresh_interval = 3;
    }
    if (drafter == "planted" || is_sparse) {
      options.own_drafter = std::make_unique<PlantedDrafter>(is_sparse ? sparse_truths : truths, TreeShape::kTree, 0.7,
                                                             4, kVocab, nullptr);
    } else {
      options.drafter.kind = drafter;
      options.drafter.ngram_min = 1;
      options.drafter.model = drafter.empty() || drafter == "ngram" ? "" : "tiny";
      options.drafter.tree_widths = {2, 2, 1};
      options.drafter.window = drafter == "dflash" && options.pipelined ? 9 : 0;
      options.drafter.sinks = options.drafter.window / 4;
    }
    const auto countdown = std::make_shared<int>(0);
    options.wrap_ops = [&](std::unique_ptr<Ops> ops) {
      return std::make_unique<FailingOps>(std::move(ops), countdown);
    };
    const auto engine = make_engine(std::move(options));
    Workload workload(*engine, kinds, is_sparse ? without_windows : plain, countdown, 77 + drafter.size());
    workload.run(1200);
    if (is_sparse) {
      EXPECT_GT(engine->stats().sparse.confirmed_tokens, 30);
      EXPECT_GT(engine->stats().sparse.taken_back_tokens, 30);
    }
    finished += workload.finished;
    cancelled += workload.cancelled;
    failed_steps += workload.failed_steps;
    preemptions += engine->stats().preemptions;
    steps += engine->stats().steps;
    ahead += engine->stats().steps_ahead;
  }
  EXPECT_GE(steps, 10000 * 9 / 10);
  EXPECT_GT(finished, 1000);
  EXPECT_GT(cancelled, 30);
  EXPECT_GT(failed_steps, 100);
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(ahead, 3000);
}

class FuzzThreads : public ::testing::TestWithParam<bool> {};  // pipelined

TEST_P(FuzzThreads, SubmitAndCancel) {
  const std::vector<Request> kinds = make_kinds();
  HarnessOptions options;
  options.pipelined = GetParam();
  options.max_num_seqs = 6;
  options.num_pages = 64;
  options.max_model_len = 80;
  const auto engine = make_engine(std::move(options));
  std::atomic<int> submitted = 0;
  std::atomic<bool> done = false;
  std::vector<std::thread> clients;
  for (int client = 0; client < 3; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 60; ++i) {
        const RequestId id = engine->submit(kinds[(client * 13 + i) % kKinds]);
        submitted += kinds[(client * 13 + i) % kKinds].sampling.n;
        if (i % 5 == client) engine->cancel(id);
        engine->cancel(id + 1000000);  // unknown: ignored
        (void)engine->stats();
      }
    });
  }
  std::thread closer([&] {
    for (std::thread& client : clients) client.join();
    done = true;
  });
  int finished = 0;
  while (!done || engine->has_work()) {
    for (const Output& output : engine->step().outputs) finished += output.finished() ? 1 : 0;
  }
  closer.join();
  EXPECT_EQ(finished, submitted.load());
  engine->check_invariants();
}

INSTANTIATE_TEST_SUITE_P(Pipelined, FuzzThreads, ::testing::Bool());

}  // namespace
}  // namespace fastspec::testing
