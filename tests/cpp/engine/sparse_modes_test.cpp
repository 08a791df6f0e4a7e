// Sparse passes in the engine beside the lossless matrix: when they come, what lists of slots are worth against page
// lists, what outputs promise, refreshes, triggers, failures and statistics.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <set>

#include "backend/intercepted_ops.h"
#include "base/check.h"
#include "support/engine_harness.h"
#include "support/expect_error.h"

namespace fastspec::testing {
namespace {

constexpr int kVocab = 61;

HarnessOptions sparse_options(Guarantee guarantee, int kv_budget, int refresh_interval = 0) {
  HarnessOptions options;
  options.has_windows = false;
  options.sparse.set_selector("streaming");
  options.sparse.kv_budget = kv_budget;
  options.sparse.sinks = 1;
  options.sparse.recent = 2;
  options.sparse.guarantee = guarantee;
  options.sparse.refresh_interval = refresh_interval;
  return options;
}

Request some_request(int index, int prompt_len = 20, int max_tokens = 24) {
  Request request;
  for (int t = 0; t < prompt_len; ++t) request.prompt_token_ids.push_back((t * 13 + index * 5) % (kVocab - 1));
  request.sampling.temperature = index % 2 == 0 ? 0.0f : 0.8f;
  request.sampling.seed = 70 + index;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 2;
  return request;
}

std::vector<Request> some_requests() {
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) requests.push_back(some_request(i, 6 + 9 * i));
  requests[1].sampling.n = 3;
  return requests;
}

// --- lists of slots against lists of pages ---------------------------------------------------------------------------

TEST(SparseModes, AContextThatFitsTheBudgetIsDenseBitForBit) {
  for (const Guarantee guarantee : {Guarantee::kExact, Guarantee::kSparse}) {
    HarnessOptions options = sparse_options(guarantee, 64);
    const Outputs plain = run_plain_alone(options, some_requests());
    const auto engine = make_engine(std::move(options));
    const Outputs seen = run(*engine, some_requests());
    EXPECT_EQ(difference(plain, seen), "");
    EXPECT_EQ(engine->stats().sparse.sparse_passes, 0);
    EXPECT_EQ(engine->stats().sparse.kv_bytes_read, engine->stats().sparse.kv_bytes_dense);
    for (const WholeOutput& output : seen) EXPECT_EQ(output.guarantee, Guarantee::kExact);
  }
}

TEST(SparseModes, SelfSparseDraftsInRunsAndTheOutputIsPlainDecodings) {
  for (const std::string selector : {"", "history"}) {
    HarnessOptions options = sparse_options(Guarantee::kExact, 12);
    options.sparse.selector = selector;
    options.drafter = DrafterConfig::parse("self_sparse");
    options.max_draft_tokens = 3;
    const Outputs plain = run_plain_alone(options, some_requests());
    const auto engine = make_engine(std::move(options));
    EXPECT_EQ(difference(plain, run(*engine, some_requests())), "");
    EXPECT_EQ(engine->info().selector, selector.empty() ? "streaming" : selector);
    EXPECT_EQ(engine->info().drafter, "none");
    const EngineStats stats = engine->stats();
    EXPECT_GT(stats.sparse.sparse_passes, 50);
    EXPECT_LE(stats.sparse.sparse_passes, 3 * stats.sparse.dense_passes);
    EXPECT_GT(stats.sparse.confirmed_tokens, 0);
  }
}

TEST(SparseModes, SwitchingSpeculationOffSwitchesSelfSparseOff) {
  HarnessOptions options = sparse_options(Guarantee::kExact, 12);
  options.sparse.selector.clear();
  options.drafter = DrafterConfig::parse("self_sparse");
  const auto engine = make_engine(std::move(options));
  std::vector<Request> requests = some_requests();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (i % 2 == 0) {
      requests[i].speculation.enabled = false;
    } else {
      requests[i].speculation.max_draft_tokens = 0;
    }
  }
  run(*engine, requests);
  EXPECT_EQ(engine->stats().sparse.sparse_passes, 0);
  requests[1].speculation.max_draft_tokens = 2;
  test::expect_error(ErrorCode::kInvalidArgument, {"max_draft_tokens", "2", "self_sparse"},
                     [&] { engine->submit(requests[1]); });
  requests[1].speculation = {};
  requests[1].guarantee = Guarantee::kSparse;
  test::expect_error(ErrorCode::kInvalidArgument, {"guarantee", "self_sparse"}, [&] { engine->submit(requests[1]); });
  requests[1].guarantee.reset();
  run(*engine, {requests[1]});
  EXPECT_GT(engine->stats().sparse.sparse_passes, 0);
}

TEST(SparseModes, AListOfAllSlotsEqualsThePagesBitForBit) {
  for (const int num_pages : {0, 34}) {  // few enough for preemption, which leaves pages in disorder
    HarnessOptions options = sparse_options(Guarantee::kSparse, 4096);
    options.bypasses = false;
    options.num_pages = num_pages;
    if (num_pages > 0) options.max_model_len = 80;
    const Outputs plain = run_plain_alone(options, some_requests());
    const auto engine = make_engine(std::move(options));
    EXPECT_EQ(difference(plain, run(*engine, some_requests())), "");
    const EngineStats stats = engine->stats();
    EXPECT_GT(stats.sparse.sparse_passes, 100);
    EXPECT_EQ(stats.sparse.sparse_passes, stats.decoding_passes);
    EXPECT_EQ(stats.sparse.kv_bytes_read, stats.sparse.kv_bytes_dense);
    EXPECT_EQ(stats.preemptions > 0, num_pages > 0);
  }
}

TEST(SparseModes, OneKeyLessThanTheContextDiffersFromThereOn) {
  const Request request = some_request(0);
  HarnessOptions options = sparse_options(Guarantee::kSparse, 24);
  const WholeOutput plain = run_plain_alone(options, {request})[0];
  const auto engine = make_engine(std::move(options));
  const WholeOutput seen = run(*engine, {request})[0];
  // 25 keys are cached when the sixth token has been drawn from 24 of them, all that there were.
  for (int i = 0; i <= 5; ++i) EXPECT_EQ(seen.logprobs[i].logprob, plain.logprobs[i].logprob) << i;
  EXPECT_NE(seen.logprobs[6].logprob, plain.logprobs[6].logprob);
  EXPECT_EQ(engine->stats().sparse.sparse_passes, 24 - 6);
  EXPECT_EQ(seen.guarantee, Guarantee::kSparse);
}

// --- refresh ---------------------------------------------------------------------------------------------------------

/// K and V of cached positions of a sequence, all layers, as bytes.
std::vector<std::byte> cached(EngineCore& engine, SeqId seq, int length) {
  std::vector<std::byte> bytes;
  const auto pages = engine.kv().pages(seq);
  for (const KvView& layer : engine.target_kv().layers()) {
    for (int position = 0; position < length; ++position) {
      const int page_size = engine.kv().page_size();
      for (int head = 0; head < layer.num_kv_heads; ++head) {
        for (int which = 0; which < 2; ++which) {
          const std::int64_t at = pages[position / page_size] * layer.page_stride + head * layer.head_stride +
                                  which * layer.value_offset + position % page_size * layer.slot_stride;
          const std::size_t count = static_cast<std::size_t>(layer.head_dim) * sizeof(float);
          bytes.resize(bytes.size() + count);
          std::memcpy(bytes.data() + bytes.size() - count, static_cast<const float*>(layer.base) + at, count);
        }
      }
    }
  }
  return bytes;
}

class Refresh : public ::testing::TestWithParam<int> {};  // rows of a pass

TEST_P(Refresh, RewritesKeysAndValuesAsADensePassWritesThem) {
  HarnessOptions options = sparse_options(Guarantee::kSparse, 12, 4);
  options.max_batch_rows = GetParam();
  options.max_num_seqs = 2;
  const auto engine = make_engine(std::move(options));
  engine->submit(some_request(0));
  int refreshed = 0, sparse = 0;
  while (engine->has_work()) {
    engine->step();
    engine->check_invariants();
    if (engine->scheduler().running_sequences().empty()) break;
    const Sequence& sequence = *engine->scheduler().running_sequences()[0];
    const int kv_len = engine->kv().kv_len(sequence.id());
    const int dense_len = engine->kv().dense_len(sequence.id());
    if (sequence.num_generated() < 3 || sequence.len() - kv_len != 1) continue;
    HarnessOptions dense;
    dense.has_windows = false;
    const auto other = make_engine(std::move(dense));
    Request same = some_request(0);  // of another prompt, running on whatever it samples
    same.prompt_token_ids = sequence.tokens();
    other->submit(same);
    other->step();
    const SeqId twin = other->scheduler().running_sequences()[0]->id();
    EXPECT_EQ(cached(*engine, sequence.id(), dense_len), cached(*other, twin, dense_len));
    if (dense_len == kv_len) {
      ++refreshed;
    } else {
      ++sparse;
      EXPECT_NE(cached(*engine, sequence.id(), kv_len), cached(*other, twin, kv_len));
    }
  }
  EXPECT_GT(refreshed, 3);
  EXPECT_GT(sparse, 8);
  const EngineStats stats = engine->stats();
  EXPECT_GE(stats.sparse.refreshes, 3);
  EXPECT_EQ(stats.prompt_rows, std::ssize(some_request(0).prompt_token_ids));
  EXPECT_EQ(stats.decoding_passes, stats.sparse.sparse_passes + stats.sparse.dense_passes);
  EXPECT_GE(stats.sparse.dense_passes, stats.sparse.refreshes);
}

INSTANTIATE_TEST_SUITE_P(Rows, Refresh, ::testing::Values(256, 3));  // at once, and in chunks

TEST(SparseModes, WhatNeverWinsByEnoughIsDecodedDensely) {
  for (const Guarantee guarantee : {Guarantee::kExact, Guarantee::kSparse}) {
    HarnessOptions options = sparse_options(guarantee, 12);
    options.sparse.min_margin = 1e6;
    options.drafter = DrafterConfig::parse("standalone:tiny");
    const Outputs plain = run_plain_alone(options, some_requests());
    const auto engine = make_engine(std::move(options));
    const auto invariants = [](EngineCore& core) { core.check_invariants(); };
    EXPECT_EQ(difference(plain, run(*engine, some_requests(), 0, invariants)), "");
    const EngineStats stats = engine->stats();
    EXPECT_GT(stats.sparse.sparse_passes, 20);
    EXPECT_GE(stats.sparse.dense_passes, stats.sparse.sparse_passes);
    EXPECT_EQ(stats.sparse.confirmed_tokens + stats.sparse.taken_back_tokens, 0);
  }
}

TEST(SparseModes, TokensThatJustWinAreLeftToDensePasses) {
  const Request request = some_request(0);
  std::vector<std::int64_t> dense_passes;
  for (const double margin : {0.0, 0.3, 1.0}) {
    HarnessOptions options = sparse_options(Guarantee::kSparse, 12);
    options.sparse.min_margin = margin;
    const auto engine = make_engine(std::move(options));
    EXPECT_EQ(run(*engine, {request})[0].tokens.size(), 24u);
    EXPECT_GT(engine->stats().sparse.sparse_passes, 0);
    dense_passes.push_back(engine->stats().sparse.dense_passes);
  }
  EXPECT_EQ(dense_passes[0], 0);
  EXPECT_GT(dense_passes[1], 0);
  EXPECT_GT(dense_passes[2], dense_passes[1]);
}

TEST(SparseModes, WithoutAnIntervalNothingIsRefreshed) {
  const auto engine = make_engine(sparse_options(Guarantee::kSparse, 12));
  run(*engine, some_requests());
  EXPECT_EQ(engine->stats().sparse.refreshes, 0);
  EXPECT_GT(engine->stats().sparse.sparse_passes, 100);
  EXPECT_LT(engine->stats().sparse.kv_bytes_read, engine->stats().sparse.kv_bytes_dense / 2);
}

// --- selectors -------------------------------------------------------------------------------------------------------

/// What a test's selector saw and is to say.
struct Script {
  float mass = std::numeric_limits<float>::quiet_NaN();
  bool fails_to_select = false;
  bool fails_to_observe = false;
  int not_ready_below = 0;  // tokens that it wants to have seen
  std::map<SeqId, int> seen;
  std::set<int> truncations;
  int forgotten = 0, shared = 0;
};

/// Reads the last keys, by a script.
class ScriptedSelector final : public KvSelector {
 public:
  explicit ScriptedSelector(std::shared_ptr<Script> script) : script_(std::move(script)) {}
  std::string name() const override { return "scripted"; }
  bool is_ready(SeqId seq) const override { return script_->seen[seq] >= script_->not_ready_below; }
  void select(std::span<const SelectRequest> requests) override {
    if (std::exchange(script_->fails_to_select, false)) fail(ErrorCode::kInternal, "no selection");
    for (const SelectRequest& request : requests) {
      EXPECT_EQ(request.num_cached, script_->seen[request.seq]);
      for (int i = 0; i < request.num_slots; ++i) {
        const int position = request.num_cached - request.num_slots + i;
        request.slots[i] = Slot{request.pages[position / 4]} * 4 + position % 4;
      }
    }
  }
  float recovered_mass(int) const override { return script_->mass; }
  void observe(std::span<const SelectorObservation> observations) override {
    for (const SelectorObservation& seen : observations) {
      EXPECT_TRUE(script_->fails_to_observe || seen.first_position <= script_->seen[seen.seq]);
      script_->seen[seen.seq] = seen.kv_len;
    }
    if (script_->fails_to_observe) fail(ErrorCode::kInternal, "nothing learnt");
  }
  void truncate(SeqId seq, int length) override {
    script_->truncations.insert(length);
    script_->seen[seq] = std::min(script_->seen[seq], length);
  }
  void forget(SeqId seq) noexcept override { script_->forgotten += static_cast<int>(script_->seen.erase(seq)); }
  void share(SeqId, SeqId to, int length) override {
    ++script_->shared;
    script_->seen[to] = length;
  }

 private:
  std::shared_ptr<Script> script_;
};

class Scripted : public ::testing::Test {
 protected:
  std::unique_ptr<EngineCore> make(HarnessOptions options) {
    options.own_selector = std::make_unique<ScriptedSelector>(script_);
    return make_engine(std::move(options));
  }
  std::shared_ptr<Script> script_ = std::make_shared<Script>();
};

TEST_F(Scripted, HearsOfEveryTokenAndOfEveryEnd) {
  HarnessOptions options = sparse_options(Guarantee::kExact, 12, 3);
  options.num_pages = 34;
  options.max_model_len = 80;
  const Outputs plain = run_plain_alone(options, some_requests());
  const auto engine = make(std::move(options));
  EXPECT_EQ(difference(plain, run(*engine, some_requests())), "");
  EXPECT_TRUE(script_->seen.empty());
  EXPECT_GE(script_->forgotten, 6);
  EXPECT_GT(script_->shared, 0);
  EXPECT_GT(engine->stats().preemptions, 0);
  EXPECT_GT(engine->stats().sparse.taken_back_tokens, 0);
  EXPECT_FALSE(script_->truncations.empty());
}

TEST_F(Scripted, DecodesDenselyUntilItIsReady) {
  script_->not_ready_below = 30;
  const Request request = some_request(0);
  const auto engine = make(sparse_options(Guarantee::kSparse, 12));
  run(*engine, {request});
  EXPECT_EQ(engine->stats().sparse.dense_passes, 10);
  EXPECT_EQ(engine->stats().sparse.sparse_passes, 13);
}

TEST_F(Scripted, TooLittleMassMakesTheNextPassDense) {
  script_->mass = 0.4f;
  HarnessOptions options = sparse_options(Guarantee::kSparse, 12);
  options.sparse.min_mass = 0.5;
  const auto engine = make(std::move(options));
  const WholeOutput seen = run(*engine, {some_request(0)})[0];
  EXPECT_EQ(engine->stats().sparse.sparse_passes, 12);
  EXPECT_EQ(engine->stats().sparse.dense_passes, 11);
  EXPECT_NEAR(engine->stats().sparse.mean_mass(), 0.4, 1e-6);
  EXPECT_EQ(seen.stats.sparse.mass_passes, 12);
}

TEST_F(Scripted, EnoughMassChangesNothing) {
  script_->mass = 0.6f;
  HarnessOptions options = sparse_options(Guarantee::kSparse, 12);
  options.sparse.min_mass = 0.5;
  const auto engine = make(std::move(options));
  run(*engine, {some_request(0)});
  EXPECT_EQ(engine->stats().sparse.dense_passes, 0);
}

TEST_F(Scripted, AFailedSelectionFailsTheStepAndTheNextIsDense) {
  const Request request = some_request(1);
  HarnessOptions options = sparse_options(Guarantee::kExact, 12, 4);
  const WholeOutput plain = run_plain_alone(options, {request})[0];
  const auto engine = make(std::move(options));
  engine->submit(request);
  std::vector<TokenId> tokens;
  int failures = 0;
  for (int step = 0; engine->has_work(); ++step) {
    script_->fails_to_select = step % 3 == 0;
    try {
      for (const Output& output : engine->step().outputs) {
        tokens.insert(tokens.end(), output.token_ids.begin(), output.token_ids.end());
      }
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "no selection");
      ++failures;
    }
    engine->check_invariants();
  }
  EXPECT_EQ(tokens, plain.tokens);
  EXPECT_GT(failures, 2);
}

TEST_F(Scripted, AFailureToObserveIsItsOwnAffair) {
  script_->fails_to_observe = true;
  script_->not_ready_below = 1;  // what it knew is cut to nothing
  HarnessOptions options = sparse_options(Guarantee::kExact, 12, 4);
  const Outputs plain = run_plain_alone(options, some_requests());
  const auto engine = make(std::move(options));
  EXPECT_EQ(difference(plain, run(*engine, some_requests())), "");
  EXPECT_EQ(engine->stats().sparse.sparse_passes, 0);
}

// --- requests, ends, statistics --------------------------------------------------------------------------------------

TEST(SparseModes, ARequestMayDeclineAndTheOthersDoNotFeelIt) {
  std::vector<Request> requests = some_requests();
  requests[0].sparse = requests[2].sparse = false;
  HarnessOptions options = sparse_options(Guarantee::kSparse, 8);
  const Outputs plain = run_plain_alone(options, requests);
  const auto engine = make_engine(std::move(options));
  const Outputs seen = run(*engine, requests);
  for (const int exact : {0, 4}) {  // of three samples the second request has
    EXPECT_EQ(seen[exact].tokens, plain[exact].tokens);
    EXPECT_EQ(seen[exact].guarantee, Guarantee::kExact);
    EXPECT_EQ(seen[exact].stats.sparse.sparse_passes, 0);
  }
  EXPECT_EQ(seen[5].guarantee, Guarantee::kSparse);
  EXPECT_NE(seen[5].tokens, plain[5].tokens);
}

TEST(SparseModes, GuaranteesAreOfRequestsOnAnEngineMadeForTheExactOne) {
  for (const int interval : {0, 4}) {
    std::vector<Request> requests = some_requests();
    requests[1].guarantee = requests[2].guarantee = Guarantee::kSparse;
    requests[3].guarantee = Guarantee::kExact;
    const Outputs plain = run_plain_alone(sparse_options(Guarantee::kExact, 8), requests);
    Outputs alone;  // of engines made for the other one
    for (const int i : {1, 2}) {
      const auto engine = make_engine(sparse_options(Guarantee::kSparse, 8, interval));
      for (WholeOutput& output : run(*engine, {requests[i]})) alone.push_back(std::move(output));
    }
    const auto engine = make_engine(sparse_options(Guarantee::kExact, 8, interval));
    const Outputs seen = run(*engine, requests);
    EXPECT_EQ(difference({plain[0], plain[5]}, {seen[0], seen[5]}), "");
    EXPECT_EQ(difference(alone, {seen[1], seen[2], seen[3], seen[4]}), "");
    EXPECT_NE(seen[4].tokens, plain[4].tokens);
    for (const int i : {0, 5}) {
      EXPECT_EQ(seen[i].guarantee, Guarantee::kExact);
      EXPECT_GT(seen[i].stats.sparse.sparse_passes, 0);
      EXPECT_GT(seen[i].stats.sparse.confirmed_tokens + seen[i].stats.sparse.taken_back_tokens, 0);
      EXPECT_EQ(seen[i].stats.sparse.refreshes, 0);
    }
    for (const int i : {1, 2, 3, 4}) {
      EXPECT_EQ(seen[i].guarantee, Guarantee::kSparse);
      EXPECT_EQ(seen[i].stats.sparse.refreshes > 0, interval > 0);
      EXPECT_EQ(seen[i].stats.sparse.confirmed_tokens + seen[i].stats.sparse.taken_back_tokens, 0);
    }
    engine->check_invariants();
  }
}

TEST(SparseModes, AnEngineMadeForTheSparseGuaranteeRefusesTheExactOne) {
  const auto engine = make_engine(sparse_options(Guarantee::kSparse, 8));
  Request request = some_request(0);
  request.guarantee = Guarantee::kExact;
  test::expect_error(ErrorCode::kInvalidArgument, {"sparse.guarantee exact"}, [&] { engine->submit(request); });
  request.sparse = false;  // which is exact anyway
  EXPECT_EQ(run(*engine, {request})[0].guarantee, Guarantee::kExact);
}

TEST(SparseModes, ARequestMayAskWhereThereAreNone) {
  Request request = some_request(0);
  request.sparse = true;
  HarnessOptions options;
  const Outputs plain = run_plain_alone({}, {request});
  EXPECT_EQ(difference(plain, run(*make_engine(std::move(options)), {request})), "");
}

TEST(SparseModes, LengthsOfRunsAndStatisticsAddUp) {
  const Request request = some_request(0, 20, 40);
  const auto engine = make_engine(sparse_options(Guarantee::kExact, 24, 4));
  const WholeOutput seen = run(*engine, {request})[0];
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.generated_tokens, 40);
  EXPECT_EQ(stats.decoding_tokens, 39);
  EXPECT_EQ(stats.decoding_passes, stats.sparse.dense_passes);
  EXPECT_EQ(stats.steps, 1 + stats.sparse.dense_passes + stats.sparse.sparse_passes);
  // Every dense pass draws a token of its own; without a drafter a sparse pass accepts one.
  EXPECT_EQ(stats.sparse.confirmed_tokens + stats.sparse.taken_back_tokens, stats.sparse.sparse_passes);
  EXPECT_LE(39 - stats.sparse.dense_passes, stats.sparse.confirmed_tokens);
  EXPECT_EQ(seen.stats.sparse.confirmed_tokens, stats.sparse.confirmed_tokens);
  EXPECT_EQ(seen.guarantee, Guarantee::kExact);
  EXPECT_GT(stats.acceptance_length(), 1.0);
}

TEST(SparseModes, AnEngineWithoutRowsForAChainDecodesDensely) {
  HarnessOptions options = sparse_options(Guarantee::kExact, 8);
  options.max_num_seqs = options.max_batch_rows = 4;
  const Outputs plain = run_plain_alone(options, some_requests());
  const auto engine = make_engine(std::move(options));
  EXPECT_EQ(difference(plain, run(*engine, some_requests())), "");
  EXPECT_EQ(engine->stats().sparse.sparse_passes, 0);
}

TEST(SparseModes, WhatCannotBeDrawnInASparsePassIsDrawnInADenseOne) {
  /// Gives NaN where a sequence's keys were a list of slots.
  class NanWhereSparse final : public InterceptedOps {
   public:
    using InterceptedOps::InterceptedOps;
    void attention(const AttentionParams& params) override {
      is_sparse_ = params.num_sequences > 0 && !params.lists[0].pages;
      InterceptedOps::attention(params);
    }
    void accept(const AcceptParams& params) override {
      if (is_sparse_ && ++num_sparse_ % 3 == 0) {
        params.logits.row<float>(params.trees[0].logit_rows[0])[7] = std::numeric_limits<float>::quiet_NaN();
      }
      InterceptedOps::accept(params);
    }

   private:
    void before() override {}
    void after() override {}
    bool is_sparse_ = false;
    int num_sparse_ = 0;
  };
  const Request request = some_request(1);
  HarnessOptions options = sparse_options(Guarantee::kExact, 12, 4);
  const Outputs plain = run_plain_alone(options, {request});
  options.wrap_ops = [](std::unique_ptr<Ops> ops) { return std::make_unique<NanWhereSparse>(std::move(ops)); };
  const auto engine = make_engine(std::move(options));
  EXPECT_EQ(difference(plain, run(*engine, {request}, 0, [](EngineCore& core) { core.check_invariants(); })), "");
  EXPECT_GT(engine->stats().sparse.sparse_passes, 10);
}

}  // namespace
}  // namespace fastspec::testing
