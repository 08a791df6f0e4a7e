// The lossless matrix of sparse passes under Guarantee::kExact: a selector that reads twelve keys disagrees often, and
// still the output is bit for bit that of plain decoding, whatever drafts, however steps are batched, cut or preempted.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "support/engine_harness.h"
#include "support/lossless_matrix.h"

namespace fastspec::testing {
namespace {

HarnessOptions sparse_base(int kv_budget, int refresh_interval) {
  HarnessOptions base;
  base.has_windows = false;
  base.sparse.set_selector("streaming");
  base.sparse.kv_budget = kv_budget;
  base.sparse.sinks = 2;
  base.sparse.recent = 4;
  base.sparse.refresh_interval = refresh_interval;
  return base;
}

/// What the runs of provisional tokens came to. Of engines with one sequence, whose statistics speak of it alone.
struct SparseReach {
  std::set<int> confirmed_whole;  // lengths of runs
  std::set<int> taken_back_at;    // tokens of a run that were confirmed before one was not
  std::map<std::string, int> provisional_ends;
  int preempted = 0;  // sequences with provisional tokens
  int truncated_provisional = 0;

  /// Sees an engine after each of its steps.
  void watch(EngineCore& engine) {
    const SparseStats now = engine.stats().sparse;
    const int confirmed = static_cast<int>(now.confirmed_tokens - before_.confirmed_tokens);
    const int taken_back = static_cast<int>(now.taken_back_tokens - before_.taken_back_tokens);
    if (engine.config().max_num_seqs == 1 && taken_back > 0) taken_back_at.insert(confirmed);
    if (engine.config().max_num_seqs == 1 && taken_back == 0 && confirmed > 0) confirmed_whole.insert(confirmed);
    before_ = now;
    std::map<SeqId, int> provisional;
    for (const auto& sequence : engine.scheduler().running_sequences()) {
      EXPECT_LE(sequence->visible_len(), sequence->exact_len());
      provisional[sequence->id()] = sequence->num_provisional();
      if (!sequence->sparse.dense_is_due || sequence->num_provisional() == 0) continue;
      const std::vector<TokenId>& ends = sequence->request().end_tokens;
      const bool is_end = std::find(ends.begin(), ends.end(), sequence->tokens().back()) != ends.end();
      ++provisional_ends[is_end ? "token" : sequence->num_remaining() == 0 ? "limit" : "text"];
    }
    if (engine.stats().preemptions > preemptions_) {
      for (const auto& [seq, count] : provisional_) {
        if (!provisional.contains(seq) && count > 0 && !engine.scheduler().sequences_of(request_of_[seq]).empty()) {
          ++preempted;
        }
      }
    }
    preemptions_ = engine.stats().preemptions;
    provisional_ = std::move(provisional);
    for (const auto& sequence : engine.scheduler().running_sequences()) {
      request_of_[sequence->id()] = sequence->request().id;
    }
  }
  void begin() {
    before_ = {};
    provisional_.clear();
    request_of_.clear();
    preemptions_ = 0;
  }

 private:
  SparseStats before_;
  std::map<SeqId, int> provisional_;
  std::map<SeqId, RequestId> request_of_;
  std::int64_t preemptions_ = 0;
};

/// How a watched run is disturbed.
struct Trouble {
  int num_pages = 0;      // so few that sequences are preempted; 0 = enough
  double truncation = 0;  // chance a step that a random tail of a random sequence is cut
  bool pipelined = false;
};

/// Runs a setting of the matrix in a sparse engine and watches every step.
void run_watched(const MatrixSetting& setting, const HarnessOptions& base, int batch, const Trouble& trouble,
                 const std::vector<Request>& requests, const Outputs& plain, SparseReach& reach) {
  HarnessOptions options = matrix_options(setting, requests, plain, nullptr);
  options.has_windows = false;
  options.sparse = base.sparse;
  options.pipelined = trouble.pipelined;
  options.max_num_seqs = batch;
  options.num_pages = trouble.num_pages;
  if (trouble.num_pages > 0) options.max_model_len = 104;
  const auto engine = make_engine(std::move(options));
  reach.begin();
  std::mt19937_64 random(3);
  const auto between = [&](EngineCore& core) {
    const auto& running = core.scheduler().running_sequences();
    if (trouble.truncation == 0) core.check_invariants();
    if (trouble.truncation == 0) reach.watch(core);
    if (running.empty() || !std::bernoulli_distribution(trouble.truncation)(random)) return;
    const Sequence& victim = *running[random() % running.size()];
    reach.truncated_provisional += victim.num_provisional() > 0 ? 1 : 0;
    core.runner().truncate(victim.id(), victim.len() - static_cast<int>(random() % (victim.num_generated() + 1)));
    core.kv().check_invariants();
  };
  ASSERT_EQ(difference(plain, run(*engine, requests, 0, between)), "");
  engine->check_invariants();
  EXPECT_GT(engine->stats().sparse.sparse_passes, 20);
}

const std::vector<MatrixSetting>& sparse_settings() {
  static const std::vector<MatrixSetting> kSettings = {
      {MatrixDrafter::kNone},         {MatrixDrafter::kNgram},  {MatrixDrafter::kStandalone},
      {MatrixDrafter::kLongSpecTree}, {MatrixDrafter::kDFlash}, {MatrixDrafter::kPlantedTree, 0.8, "auto"},
  };
  return kSettings;
}

TEST(SparseMatrix, EveryRunIsConfirmedOrTakenBackAndTheOutputIsPlainDecodings) {
  SparseReach reach;
  for (const bool penalties : {false, true}) {
    const float temperature = penalties ? 0.7f : 0.0f;
    const std::vector<Request> requests = matrix_requests(8, temperature, penalties);
    HarnessOptions base = sparse_base(12, penalties ? 4 : 5);
    const Outputs plain = run_plain_alone(base, requests);
    for (const MatrixSetting& setting : sparse_settings()) {
      SCOPED_TRACE(describe({setting, 1}, temperature, penalties));
      base.sparse.kv_budget = penalties ? 24 : 12;
      run_watched(setting, base, 1, {}, requests, plain, reach);
      if (HasFatalFailure()) return;
    }
  }
  for (int place = 0; place < 4; ++place) EXPECT_TRUE(reach.taken_back_at.contains(place)) << place;
  for (const int length : {4, 5}) EXPECT_TRUE(reach.confirmed_whole.contains(length)) << length;
  for (const std::string end : {"token", "limit", "text"}) EXPECT_GT(reach.provisional_ends[end], 0) << end;
}

TEST(SparseMatrix, TogetherPreemptedInChunksAndTruncatedEqualsPlainDecoding) {
  SparseReach reach;
  std::int64_t confirmed = 0, taken_back = 0;
  const std::vector<Request> requests = matrix_requests(8, 0.7f, true);
  const Outputs plain = run_plain_alone(sparse_base(12, 0), requests);
  for (const MatrixSetting& setting : sparse_settings()) {
    for (const Disturbance disturbance : {Disturbance::kNone, Disturbance::kChunks, Disturbance::kHeld}) {
      const MatrixCase one{setting, 8, disturbance};
      SCOPED_TRACE(describe(one, 0.7f, true));
      const HarnessOptions base = sparse_base(12, disturbance == Disturbance::kNone ? 0 : 3);
      const MatrixRun seen = run_matrix_case(one, base, requests, plain, nullptr);
      ASSERT_EQ(difference(plain, seen.outputs), "");
      if (disturbance == Disturbance::kHeld) {
        EXPECT_EQ(seen.stats.prompt_rows, prompt_rows_on_held(requests));
      }
      confirmed += seen.stats.sparse.confirmed_tokens;
      taken_back += seen.stats.sparse.taken_back_tokens;
    }
    SCOPED_TRACE(describe({setting, 8}, 0.7f, true));
    run_watched(setting, sparse_base(12, 4), 8, {.num_pages = 26}, requests, plain, reach);
    if (HasFatalFailure()) return;
    run_watched(setting, sparse_base(12, 3), 8, {.truncation = 0.05}, requests, plain, reach);
    if (HasFatalFailure()) return;
    run_watched(setting, sparse_base(12, 3), 8, {.truncation = 0.05, .pipelined = true}, requests, plain, reach);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(confirmed, 100);
  EXPECT_GT(taken_back, 500);
  EXPECT_GT(reach.preempted, 5);
  EXPECT_GT(reach.truncated_provisional, 5);
}

TEST(SparseMatrix, PaddedReplayedAndLaunchedAhead) {
  const std::vector<Request> requests = matrix_requests(8, 0.7f, true);
  HarnessOptions base = sparse_base(12, 4);
  const Outputs plain = run_plain_alone(base, requests);
  for (const MatrixSetting& setting : sparse_settings()) {
    for (const double min_margin : {0.0, 0.3}) {
      SCOPED_TRACE(describe({setting, 8}, 0.7f, true) + " margin " + std::to_string(min_margin));
      HarnessOptions options = matrix_options(setting, requests, plain, nullptr);
      options.has_windows = false;
      options.sparse = base.sparse;
      options.sparse.min_margin = min_margin;
      options.pipelined = true;
      const auto engine = make_engine(std::move(options));
      ASSERT_EQ(difference(plain, run(*engine, requests, 2)), "");
      EXPECT_GT(engine->stats().graph_replays, 0);
      EXPECT_GT(engine->stats().steps_ahead, engine->stats().steps / 2);
      EXPECT_GT(engine->stats().sparse.confirmed_tokens, 0);
    }
  }
}

}  // namespace
}  // namespace fastspec::testing
