// The lossless matrix (cpp/README.md, "Promises"): whatever is drafted, batched, cut or preempted, the output is bit
// for bit that of plain decoding of each request alone. Runs on the reference backend; the last part counts near-ties
// on the fast path.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "backend/intercepted_ops.h"
#include "support/engine_harness.h"
#include "support/tiny_model.h"

namespace fastspec::testing {
namespace {

constexpr int kVocab = 61;

/// Requests that use every sampling feature; seeds differ, so that the planted drafter can tell them apart.
std::vector<Request> make_requests(int count, float temperature, bool penalties) {
  std::mt19937_64 random(108);
  std::vector<Request> requests(count);
  for (int i = 0; i < count; ++i) {
    Request& request = requests[i];
    const int prompt_len = std::vector<int>{1, 7, 30, 4, 45, 12, 2, 19}[i % 8];
    for (int t = 0; t < prompt_len; ++t) {
      request.prompt_token_ids.push_back(std::uniform_int_distribution<TokenId>(0, kVocab - 2)(random));
    }
    SamplingParams& sampling = request.sampling;
    sampling.temperature = temperature;
    sampling.seed = 1000 + i;
    sampling.max_tokens = 30 + i % 3;
    sampling.n = i % 8 == 2 ? 2 : 1;
    if (i % 4 == 1) sampling.logprobs = 3;
    if (i % 4 == 2) sampling.stop = {"abca", "dd"};
    if (i % 4 == 3) sampling.stop_token_ids = {5, 17};
    if (i % 5 == 1) sampling.min_tokens = 9;
    if (i % 3 == 1) sampling.top_k = 12;
    if (i % 3 == 2) sampling.top_p = 0.9f;
    if (i % 7 == 3) sampling.min_p = 0.02f;
    if (i % 6 == 4) sampling.ignore_eos = true;
    sampling.logit_bias = {{3, 1.5f}, {kVocab - 1, i % 2 == 0 ? 2.0f : -1.0f}};
    if (penalties) {
      sampling.repetition_penalty = 1.3f;
      sampling.presence_penalty = 0.4f;
      sampling.frequency_penalty = 0.3f;
    }
  }
  return requests;
}

enum class Kind {
  kNone,
  kNgram,
  kStandalone,
  kLongSpecChain,
  kLongSpecTree,
  kPlantedChain,
  kPlantedBlock,
  kPlantedTree,
  kAdversarialTree
};

struct Setting {
  Kind kind = Kind::kNone;
  double probability = 0.8;
};

HarnessOptions make_options(const Setting& setting, const std::vector<Request>& requests, const Outputs& plain,
                            Coverage* coverage) {
  HarnessOptions options;
  const auto plant = [&](TreeShape shape, bool knows) {
    options.own_drafter = std::make_unique<PlantedDrafter>(
        knows ? truths_of(requests, plain) : std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<TokenId>>{},
        shape, setting.probability, shape == TreeShape::kTree ? 4 : 6, kVocab, coverage);
  };
  switch (setting.kind) {
    case Kind::kNone:
      break;
    case Kind::kNgram:
      options.drafter.kind = "ngram";
      options.drafter.ngram_min = 1;
      break;
    case Kind::kStandalone:
      options.drafter.kind = "standalone";
      options.drafter.model = "tiny";
      break;
    case Kind::kLongSpecChain:
      options.drafter = DrafterConfig::parse("longspec:tiny");
      options.drafter.tree_widths = {1, 1, 1, 1};
      for (TokenId token = 0; token < kVocab; token += 1 + token % 3) options.draft_vocabulary.push_back(token);
      break;
    case Kind::kLongSpecTree:
      options.drafter = DrafterConfig::parse("longspec:tiny");
      options.drafter.tree_widths = {3, 6, 6, 5};
      options.max_draft_tokens = std::nullopt;
      break;
    case Kind::kPlantedChain:
      plant(TreeShape::kChain, true);
      break;
    case Kind::kPlantedBlock:
      plant(TreeShape::kBlock, true);
      break;
    case Kind::kPlantedTree:
      plant(TreeShape::kTree, true);
      break;
    case Kind::kAdversarialTree:
      plant(TreeShape::kTree, false);
      break;
  }
  return options;
}

const std::vector<Setting> kSettings = {
    {Kind::kNone},
    {Kind::kNgram},
    {Kind::kStandalone},
    {Kind::kLongSpecChain},
    {Kind::kLongSpecTree},
    {Kind::kPlantedChain, 0.3},
    {Kind::kPlantedChain, 0.8},
    {Kind::kPlantedChain, 1.0},
    {Kind::kPlantedBlock, 0.8},
    {Kind::kPlantedTree, 0.3},
    {Kind::kPlantedTree, 0.8},
    {Kind::kPlantedTree, 1.0},
    {Kind::kAdversarialTree},
};

std::string describe(const Setting& setting, int count, float temperature, bool penalties) {
  return "drafter " + std::to_string(static_cast<int>(setting.kind)) + " p " + std::to_string(setting.probability) +
         " batch " + std::to_string(count) + " T " + std::to_string(temperature) + (penalties ? " penalties" : "");
}

/// Drops a random tail of a random running sequence in every owner of its state.
class RandomTruncation {
 public:
  void operator()(EngineCore& engine) {
    const auto& running = engine.scheduler().running_sequences();
    if (running.empty() || !std::bernoulli_distribution(0.2)(random_)) return;
    const Sequence& victim = *running[random_() % running.size()];
    const int generated = victim.num_generated();
    engine.runner().truncate(victim.id(), victim.len() - static_cast<int>(random_() % (generated + 1)));
    engine.kv().check_invariants();
    ++count;
  }
  int count = 0;

 private:
  std::mt19937_64 random_{3};
};

class LosslessMatrix : public ::testing::TestWithParam<int> {};  // sequences in a pass

TEST_P(LosslessMatrix, EqualsPlainDecodingBitForBit) {
  const int batch = GetParam();
  Coverage trees;
  Coverage chains;
  std::int64_t accepted_standalone = 0;
  std::int64_t accepted_longspec[2] = {};  // chain, tree
  std::int64_t accepted_ngram = 0;
  std::int64_t preemptions = 0;
  int truncations = 0;
  for (const float temperature : {0.0f, 0.7f, 1.0f}) {
    for (const bool penalties : {false, true}) {
      const std::vector<Request> requests = make_requests(8, temperature, penalties);
      const Outputs plain = run_plain_alone({}, requests);
      for (const Setting& setting : kSettings) {
        SCOPED_TRACE(describe(setting, batch, temperature, penalties));
        Coverage& coverage = setting.kind == Kind::kPlantedTree ? trees : chains;
        Coverage* recorded = setting.kind == Kind::kAdversarialTree ? nullptr : &coverage;
        {  // together, whole prompts
          HarnessOptions options = make_options(setting, requests, plain, recorded);
          options.max_num_seqs = batch;
          const auto engine = make_engine(std::move(options));
          ASSERT_EQ(difference(plain, run(*engine, requests)), "");
          const EngineStats stats = engine->stats();
          if (setting.kind == Kind::kStandalone) accepted_standalone += stats.accepted_tokens;
          if (setting.kind == Kind::kLongSpecChain) accepted_longspec[0] += stats.accepted_tokens;
          if (setting.kind == Kind::kLongSpecTree) accepted_longspec[1] += stats.accepted_tokens;
          if (setting.kind == Kind::kNgram) accepted_ngram += stats.accepted_tokens;
          engine->check_invariants();
        }
        {  // small chunks mixed with decoding rows, fewer rows than drafted tokens, one arrival a step
          HarnessOptions options = make_options(setting, requests, plain, nullptr);
          options.max_num_seqs = std::min(batch, 4);
          options.max_batch_rows = 9;
          const auto engine = make_engine(std::move(options));
          ASSERT_EQ(difference(plain, run(*engine, requests, 1)), "");
        }
        {  // pages for little more than the longest sequence: preemption
          HarnessOptions options = make_options(setting, requests, plain, nullptr);
          options.max_num_seqs = batch;
          options.num_pages = 26;
          options.max_model_len = 104;
          const auto engine = make_engine(std::move(options));
          ASSERT_EQ(difference(plain, run(*engine, requests)), "");
          preemptions += engine->stats().preemptions;
          engine->check_invariants();
        }
        {  // sequences cut at random points
          RandomTruncation truncation;
          HarnessOptions options = make_options(setting, requests, plain, nullptr);
          options.max_num_seqs = batch;
          const auto engine = make_engine(std::move(options));
          ASSERT_EQ(difference(plain, run(*engine, requests, 0, std::ref(truncation))), "");
          truncations += truncation.count;
        }
      }
    }
  }
  // The matrix is worth what it reached.
  EXPECT_GT(truncations, 20);
  EXPECT_GT(accepted_standalone, 20);
  EXPECT_GT(accepted_ngram, 0);
  EXPECT_GT(accepted_longspec[0], 20);
  EXPECT_GT(accepted_longspec[1], 2 * accepted_longspec[0]);
  EXPECT_GT(preemptions, batch >= 3 ? 20 : -1);
  for (int length = 0; length <= 4; ++length) EXPECT_TRUE(trees.accepted_lengths.contains(length)) << length;
  for (int length = 0; length <= 6; ++length) EXPECT_TRUE(chains.accepted_lengths.contains(length)) << length;
  for (int child = 0; child < 3; ++child) EXPECT_TRUE(trees.child_indices.contains(child)) << child;
  for (int place = 1; place <= 5; ++place) EXPECT_TRUE(trees.end_places.contains(place)) << place;
  for (int place = 1; place <= 7; ++place) EXPECT_TRUE(chains.end_places.contains(place)) << place;
  EXPECT_GT(trees.duplicate_siblings, 100);
}

INSTANTIATE_TEST_SUITE_P(Batch, LosslessMatrix, ::testing::Values(1, 3, 8));

TEST(LosslessReplay, PaddedAndReplayedPassesEqualPlainDecodingBitForBit) {
  EngineStats total;
  for (const float temperature : {0.0f, 0.7f}) {
    const std::vector<Request> requests = make_requests(8, temperature, true);
    const Outputs plain = run_plain_alone({}, requests);
    for (const Setting& setting : kSettings) {
      for (const int num_pages : {0, 26}) {  // as many as are needed; few enough for preemption
        SCOPED_TRACE(describe(setting, 8, temperature, true) + " pages " + std::to_string(num_pages));
        HarnessOptions options = make_options(setting, requests, plain, nullptr);
        options.replays = true;
        options.num_pages = num_pages;
        options.max_model_len = num_pages > 0 ? 104 : options.max_model_len;
        options.max_batch_rows = num_pages > 0 ? 21 : options.max_batch_rows;  // no tier: the limit stands in for one
        const auto engine = make_engine(std::move(options));
        ASSERT_EQ(difference(plain, run(*engine, requests, 2)), "");
        engine->check_invariants();
        const EngineStats stats = engine->stats();
        EXPECT_EQ(stats.graph_replays + stats.graph_captures + stats.graph_eager_passes, stats.steps);
        total.graph_replays += stats.graph_replays;
        total.graph_captures += stats.graph_captures;
        total.graph_eager_passes += stats.graph_eager_passes;
      }
    }
  }
  EXPECT_GT(total.graph_replays, total.graph_captures);
  EXPECT_GT(total.graph_captures, 40);
  EXPECT_GT(total.graph_eager_passes, 40);
}

// --- the fast path: rounding varies with the number of rows, so near-ties are counted
// ---------------------------------

/// Largest difference of a logit between a row computed alone and among others, over a prompt of the tiny model.
float largest_logit_difference(DType dtype) {
  Backend backend = make_backend("cpu", dtype, 2);
  const ModelConfig config = tiny_config(kVocab);
  constexpr int kRows = 64;
  Transformer model(config, tiny_weights(config, 11, dtype, *backend.device), backend, kRows, kRows);
  KvPool kv(*backend.device, model.kv_shape(dtype), kRows / 16, 16);
  PassBuffers buffers(*backend.device, {.max_rows = kRows, .max_sequences = 1, .max_list_entries = kRows});
  const auto logits_of = [&](int first, int count) {
    RowBatch batch;
    for (int position = first; position < first + count; ++position) {
      batch.tokens.push_back(position * 7 % (kVocab - 1));
      batch.positions.push_back(position);
      batch.slots.push_back(position);
      batch.logit_rows.push_back(position - first);
    }
    batch.kv.lists.push_back({.offset = 0, .length = first, .pages = true});
    for (Slot page = 0; page < (first + 15) / 16; ++page) batch.kv.entries.push_back(page);
    batch.end_sequence(NewMask::kCausal);
    const Matrix logits = model.forward(buffers.upload(batch), kv);
    return std::vector<float>(logits.row<float>(0), logits.row<float>(0) + std::size_t(count) * kVocab);
  };
  float largest = 0;
  const std::vector<float> together = logits_of(0, kRows);
  for (const int step : {1, 2, 5, 11, 20}) {
    for (int first = 0; first < kRows; first += step) {
      const int count = std::min(step, kRows - first);
      const std::vector<float> apart = logits_of(first, count);
      for (int i = 0; i < count * kVocab; ++i) {
        largest = std::max(largest, std::abs(apart[i] - together[std::size_t(first) * kVocab + i]));
      }
    }
  }
  return largest;
}

class FastPath : public ::testing::TestWithParam<DType> {};

TEST_P(FastPath, DiffersFromPlainDecodingOnlyInNearTies) {
  const DType dtype = GetParam();
  const float tolerance = 2 * largest_logit_difference(dtype);
  int num_sequences = 0;
  int num_near_ties = 0;
  for (const float temperature : {0.0f, 0.7f, 1.0f}) {
    const std::vector<Request> requests = make_requests(8, temperature, true);
    HarnessOptions base;
    base.device = "cpu";
    base.dtype = dtype;
    const Outputs plain = run_plain_alone(base, requests);
    for (const Setting& setting : kSettings) {
      HarnessOptions options = make_options(setting, requests, plain, nullptr);
      options.device = base.device;
      options.dtype = dtype;
      const auto engine = make_engine(std::move(options));
      const Outputs seen = run(*engine, requests);
      for (std::size_t i = 0; i < plain.size(); ++i) {
        ++num_sequences;
        const auto at =
            std::mismatch(plain[i].tokens.begin(), plain[i].tokens.end(), seen[i].tokens.begin(), seen[i].tokens.end());
        if (at.first == plain[i].tokens.end() && at.second == seen[i].tokens.end()) continue;
        ++num_near_ties;
        const auto place = at.first - plain[i].tokens.begin();
        ASSERT_LT(place, static_cast<std::ptrdiff_t>(plain[i].margins.size()));
        // Margins are in units of logit / temperature.
        const float scale = temperature > 0 ? temperature : 1.0f;
        EXPECT_LT(plain[i].margins[place] * scale, tolerance)
            << describe(setting, 8, temperature, true) << ": output " << i << " differs at token " << place;
      }
    }
  }
  RecordProperty("near_ties", num_near_ties);
  std::printf("%s: %d near-ties in %d sequences, tolerance %g\n", to_string(dtype), num_near_ties, num_sequences,
              tolerance);
  EXPECT_LT(num_near_ties, (dtype == DType::kFloat32 ? 0.01 : 1.0) * num_sequences);
}

INSTANTIATE_TEST_SUITE_P(DType, FastPath, ::testing::Values(DType::kFloat32, DType::kBFloat16));

// --- planted faults: each must make the matrix fail ------------------------------------------------------------------

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

bool matrix_fails(Fault fault) {
  const std::vector<Request> requests = make_requests(8, 0.7f, true);
  const Outputs plain = run_plain_alone({}, requests);
  HarnessOptions options = make_options({Kind::kPlantedTree, 0.8}, requests, plain, nullptr);
  options.wrap_ops = [&](std::unique_ptr<Ops> ops) { return std::make_unique<FaultyOps>(std::move(ops), fault); };
  const auto engine = make_engine(std::move(options));
  return !difference(plain, run(*engine, requests)).empty();
}

TEST(PlantedFault, NoneLeavesTheMatrixWhole) {
  EXPECT_FALSE(matrix_fails(Fault::kNone));
}
TEST(PlantedFault, CommittingASiblingsSlotIsSeen) {
  EXPECT_TRUE(matrix_fails(Fault::kSiblingSlot));
}
TEST(PlantedFault, AWrongPenaltyHistoryIsSeen) {
  EXPECT_TRUE(matrix_fails(Fault::kPenaltyHistory));
}
TEST(PlantedFault, ANoiseKeyOffByOneIsSeen) {
  EXPECT_TRUE(matrix_fails(Fault::kNoiseKey));
}

}  // namespace
}  // namespace fastspec::testing
