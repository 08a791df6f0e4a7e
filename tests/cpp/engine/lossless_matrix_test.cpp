// The lossless matrix on the reference backend: whatever is drafted, batched, cut or preempted, the output is bit for
// bit that of plain decoding of each request alone. Also the rule by which tests/cuda/lossless_check.cpp judges the
// same matrix where rounding depends on the batch.
#include "support/lossless_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "backend/intercepted_ops.h"
#include "support/engine_harness.h"
#include "support/near_tie.h"
#include "support/sanitized.h"

namespace fastspec::testing {
namespace {

// What a build with sanitizers walks is one temperature, with penalties, of one batch.
std::vector<float> matrix_temperatures() {
  return kSanitized ? std::vector{0.7f} : std::vector{0.0f, 0.7f, 1.0f};
}
std::vector<bool> matrix_penalties() {
  return kSanitized ? std::vector{true} : std::vector{false, true};
}
std::vector<int> matrix_batches() {
  return kSanitized ? std::vector{3} : std::vector{1, 3, 8};
}

/// Checks that the cases reached what they are there for; a part of them need not.
void expect_reach(const MatrixReach& reach, int batch) {
  if (!kSanitized) {
    EXPECT_EQ(reach.missing(batch), "");
  }
}

class LosslessMatrix : public ::testing::TestWithParam<int> {};  // sequences in a pass

TEST_P(LosslessMatrix, EqualsPlainDecodingBitForBit) {
  const int batch = GetParam();
  MatrixReach reach;
  for (const float temperature : matrix_temperatures()) {
    for (const bool penalties : matrix_penalties()) {
      const std::vector<Request> requests = matrix_requests(8, temperature, penalties);
      const Outputs plain = run_plain_alone({}, requests);
      for (const MatrixSetting& setting : matrix_settings()) {
        for (const Disturbance disturbance : kDisturbances) {
          const MatrixCase matrix_case{setting, batch, disturbance};
          SCOPED_TRACE(describe(matrix_case, temperature, penalties));
          const MatrixRun seen = run_matrix_case(matrix_case, {}, requests, plain, reach.coverage_of(matrix_case));
          ASSERT_EQ(difference(plain, seen.outputs), "");
          if (disturbance == Disturbance::kHeld) {
            EXPECT_EQ(seen.stats.prompt_rows, prompt_rows_on_held(requests));
          }
          reach.add(matrix_case, seen);
        }
      }
    }
  }
  expect_reach(reach, batch);
}

INSTANTIATE_TEST_SUITE_P(Batch, LosslessMatrix, ::testing::ValuesIn(matrix_batches()));

class LosslessReplay : public ::testing::TestWithParam<bool> {};  // steps are launched ahead

TEST_P(LosslessReplay, PaddedAndReplayedPassesEqualPlainDecodingBitForBit) {
  EngineStats total;
  // As many as are needed; few enough for preemption.
  const std::vector<int> pools = kSanitized ? std::vector{26} : std::vector{0, 26};
  for (const float temperature : kSanitized ? std::vector{0.7f} : std::vector{0.0f, 0.7f}) {
    const std::vector<Request> requests = matrix_requests(8, temperature, true);
    const Outputs plain = run_plain_alone({}, requests);
    for (const MatrixSetting& setting : matrix_settings()) {
      for (const int num_pages : pools) {
        SCOPED_TRACE(describe({setting, 8}, temperature, true) + " pages " + std::to_string(num_pages));
        HarnessOptions options = matrix_options(setting, requests, plain, nullptr);
        options.replays = true;
        options.pipelined = GetParam();
        options.num_pages = num_pages;
        options.max_model_len = num_pages > 0 ? 104 : options.max_model_len;
        options.max_batch_rows = num_pages > 0 ? 21 : options.max_batch_rows;  // no tier: the limit stands in for one
        const auto engine = make_engine(std::move(options));
        ASSERT_EQ(difference(plain, run(*engine, requests, 2)), "");
        engine->check_invariants();
        const EngineStats stats = engine->stats();
        EXPECT_EQ(stats.graph_replays + stats.graph_captures + stats.graph_eager_passes, stats.steps);
        total.steps += stats.steps;
        total.steps_ahead += stats.steps_ahead;
        total.graph_replays += stats.graph_replays;
        total.graph_captures += stats.graph_captures;
        total.graph_eager_passes += stats.graph_eager_passes;
      }
    }
  }
  if (!kSanitized) {
    EXPECT_GT(total.graph_replays, total.graph_captures);
    EXPECT_GT(total.graph_captures, 40);
    EXPECT_GT(total.graph_eager_passes, 40);
  }
  if (GetParam()) {
    EXPECT_GT(total.steps_ahead, total.steps * 9 / 10);
  } else {
    EXPECT_EQ(total.steps_ahead, 0);
  }
}

// With sanitizers LosslessPipeline alone launches steps ahead.
INSTANTIATE_TEST_SUITE_P(Ahead, LosslessReplay,
                         ::testing::ValuesIn(kSanitized ? std::vector{false} : std::vector{false, true}));

TEST(LosslessPipeline, StepsLaunchedAheadEqualPlainDecodingBitForBit) {
  MatrixReach reach;
  HarnessOptions base;
  base.pipelined = true;
  for (const float temperature : matrix_temperatures()) {
    const std::vector<Request> requests = matrix_requests(8, temperature, true);
    const Outputs plain = run_plain_alone({}, requests);
    for (const MatrixSetting& setting : matrix_settings()) {
      for (const Disturbance disturbance : kDisturbances) {
        if (kSanitized && disturbance == Disturbance::kHeld) continue;  // LosslessMatrix walks them
        const MatrixCase one{setting, 8, disturbance};
        SCOPED_TRACE(describe(one, temperature, true));
        const MatrixRun run = run_matrix_case(one, base, requests, plain, reach.coverage_of(one));
        ASSERT_EQ(difference(plain, run.outputs), "");
        EXPECT_GT(run.stats.steps_ahead, run.stats.steps / 2);
        reach.add(one, run);
      }
    }
  }
  expect_reach(reach, 8);
}

// --- planted faults: each must make the matrix fail, under either rule
// ------------------------------------------------

enum class Fault { kNone, kSiblingSlot, kPenaltyHistory, kNoiseKey };

/// Does one thing wrong, and only where a tree was verified, so that plain decoding is untouched.
class FaultyOps final : public InterceptedOps {
 public:
  FaultyOps(std::unique_ptr<Ops> inner, Fault fault) : InterceptedOps(std::move(inner)), fault_(fault) {}

  void copy_slots(const CopySlotsParams& params) override {
    std::vector<SlotMove> moves(params.moves, params.moves + params.num_moves);
    if (fault_ == Fault::kSiblingSlot) {
      for (SlotMove& move : moves) move.source += 1;
    }
    CopySlotsParams changed = params;
    changed.moves = moves.data();
    InterceptedOps::copy_slots(changed);
  }

  void accept(const AcceptParams& params) override {
    std::vector<AcceptTree> trees(params.trees, params.trees + params.num_trees);
    for (AcceptTree& tree : trees) {
      if (tree.num_nodes == 1) continue;
      if (fault_ == Fault::kPenaltyHistory) tree.rule.num_counts = std::max(0, tree.rule.num_counts - 1);
      if (fault_ == Fault::kNoiseKey) tree.root_position += 1;
    }
    AcceptParams changed = params;
    changed.trees = trees.data();
    InterceptedOps::accept(changed);
  }

 private:
  void before() override {}
  void after() override {}
  Fault fault_;
};

std::string describe_fault(Fault fault) {
  static const char* const kNames[] = {"none", "a sibling's slot", "penalty history", "noise key"};
  return kNames[static_cast<int>(fault)];
}

class PlantedFault : public ::testing::TestWithParam<Fault> {
 protected:
  /// Of the fast path; made once.
  static NearTieJudge& judge_of(DType dtype) {
    static NearTieJudge wide("cpu", DType::kFloat32);
    static NearTieJudge narrow("cpu", DType::kBFloat16);
    return dtype == DType::kFloat32 ? wide : narrow;
  }
  static Outputs run_faulty(const HarnessOptions& base, const std::vector<Request>& requests, const Outputs& plain) {
    HarnessOptions options = matrix_options({MatrixDrafter::kPlantedTree, 0.8}, requests, plain, nullptr);
    options.device = base.device;
    options.dtype = base.dtype;
    options.wrap_ops = [](std::unique_ptr<Ops> ops) { return std::make_unique<FaultyOps>(std::move(ops), GetParam()); };
    return run(*make_engine(std::move(options)), requests);
  }
};

TEST_P(PlantedFault, IsSeenBitForBit) {
  const std::vector<Request> requests = matrix_requests(8, 0.7f, true);
  const Outputs plain = run_plain_alone({}, requests);
  EXPECT_EQ(difference(plain, run_faulty({}, requests, plain)).empty(), GetParam() == Fault::kNone)
      << describe_fault(GetParam());
}

TEST_P(PlantedFault, IsNoNearTie) {
  if (kSanitized) GTEST_SKIP() << "a question of rounding";
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    HarnessOptions base;
    base.device = "cpu";
    base.dtype = dtype;
    const std::vector<Request> requests = matrix_requests(24, 0.7f, true);
    const Outputs plain = run_plain_alone(base, requests);
    const std::string failure = judge_of(dtype).judge(requests, plain, {run_faulty(base, requests, plain)}).failure;
    EXPECT_EQ(failure.empty(), GetParam() == Fault::kNone)
        << to_string(dtype) << ", " << describe_fault(GetParam()) << ": " << failure;
  }
}

INSTANTIATE_TEST_SUITE_P(Fault, PlantedFault,
                         ::testing::Values(Fault::kNone, Fault::kSiblingSlot, Fault::kPenaltyHistory,
                                           Fault::kNoiseKey));

// --- the near-tie rule -----------------------------------------------------------------------------------------------

constexpr float kError = 0.01f;

/// Whether `token` could win after the prompt {0}, logits being off by kError at most.
bool wins(TokenId token, const std::vector<float>& logits, SamplingParams sampling) {
  sampling.seed = 4;
  const TokenId prompt[] = {0};
  return could_win(token, logits, kError, sampling, 0, prompt, 1, {});
}

TEST(NearTie, GreedyIsOneWithinTwiceTheError) {
  SamplingParams greedy;
  greedy.temperature = 0;
  EXPECT_TRUE(wins(1, {2.0f, 1.981f, 0.0f}, greedy));
  EXPECT_FALSE(wins(1, {2.0f, 1.979f, 0.0f}, greedy));
}

TEST(NearTie, PenaltiesAndBiasCount) {
  SamplingParams sampling;
  sampling.temperature = 0;
  sampling.logit_bias = {{2, 1.0f}};
  EXPECT_TRUE(wins(2, {2.0f, 1.0f, 0.99f}, sampling));
  sampling.repetition_penalty = 2.0f;  // token 0 is in the prompt, and its error doubles
  EXPECT_TRUE(wins(1, {2.0f, 1.97f, 0.0f}, sampling));
  EXPECT_FALSE(wins(0, {2.0f, 1.97f, 0.0f}, sampling));
}

TEST(NearTie, AFiltersCutoffCountsWhateverTheNoise) {
  // With this much noise either of the last two may win; only the filter decides.
  for (const TokenId token : {1, 2}) {
    SamplingParams sampling;
    sampling.temperature = 1000.0f;
    const auto lets_win = [&](float other) {
      std::vector<float> logits = {other, other, other};
      logits[static_cast<std::size_t>(token)] = 1.0f;
      bool any = false;
      for (std::uint64_t seed = 0; seed < 64 && !any; ++seed) {
        SamplingParams drawn = sampling;
        drawn.seed = seed;
        const TokenId prompt[] = {0};
        any = could_win(token, logits, kError, drawn, 0, prompt, 1, {});
      }
      return any;
    };
    sampling.top_k = 1;
    EXPECT_TRUE(lets_win(1.015f));
    EXPECT_FALSE(lets_win(1.025f));
    sampling.top_k = 0;
    sampling.temperature = 1.0f;
    sampling.min_p = 0.5f;
    const float cutoff = 1.0f + std::log(2.0f);
    EXPECT_TRUE(lets_win(cutoff + 0.015f));
    EXPECT_FALSE(lets_win(cutoff + 0.025f));
    sampling.min_p = 0;
    sampling.top_p = 0.9f;  // two others hold 2x / (2x + 1), x their weight: 0.9 at x = 4.5
    const float mass = 1.0f + std::log(4.5f);
    EXPECT_TRUE(lets_win(mass + 0.1f));
    EXPECT_FALSE(lets_win(mass + 0.3f));
  }
}

}  // namespace
}  // namespace fastspec::testing
