// Plans with sparse passes, without a device: who reads a list, which tokens a dense pass reads anew, what rows and
// pages that takes, how long a run may be.
#include <gtest/gtest.h>

#include <memory>

#include "engine/scheduler.h"
#include "engine/sparse_steps.h"

namespace fastspec::test {
namespace {

constexpr int kBudget = 6;
constexpr int kLongest = 3;

/// Ready for all but one sequence.
class SomeSelector final : public KvSelector {
 public:
  std::string name() const override { return "some"; }
  bool is_ready(SeqId seq) const override { return seq != unready; }
  void select(std::span<const SelectRequest>) override {}
  void observe(std::span<const SelectorObservation>) override {}
  void truncate(SeqId, int) override {}
  void forget(SeqId) noexcept override {}
  void share(SeqId, SeqId, int) override {}
  SeqId unready = -1;
};

class SparsePlanTest : public ::testing::Test {
 protected:
  SparsePlanTest() : kv_(40, 10, 4), scheduler_(limits(), kv_) { config_.set_selector("streaming"); }

  static SchedulerLimits limits() {
    return {.max_num_seqs = 3,
            .max_batch_rows = 16,
            .max_tree_nodes = 4,
            .max_tree_depth = 4,
            .kv_budget = kBudget,
            .max_provisional = kLongest};
  }

  SeqId submit(int prompt_len, bool wants_sparse = true) {
    auto request = std::make_shared<RequestState>();
    request->id = next_;
    request->prompt.assign(static_cast<std::size_t>(prompt_len), 1);
    request->max_tokens = request->sampling.max_tokens = 30;
    request->max_drafted = 4;
    request->wants_sparse = wants_sparse;
    request->guarantee = config_.guarantee;
    scheduler_.add(std::make_unique<Sequence>(next_, request, 0, nullptr));
    return next_++;
  }

  /// Plans a step and commits it, with `accepted` drafted tokens of every sequence that samples.
  StepPlan step(int accepted = 0) {
    config_.kv_budget = kBudget;
    SparseSteps sparse(config_, &selector_, kLongest);
    sparse.decide(scheduler_.running_sequences(), kv_, {});
    const StepPlan plan = scheduler_.plan();
    KvReservation reservation = kv_.reserve(plan);
    std::vector<int> kv_lens;
    for (const SequencePlan& planned : plan.sequences) {
      Sequence& sequence = scheduler_.running(planned.seq);
      Acceptance acceptance;
      const int count = planned.samples ? std::min(accepted, planned.num_provisional + planned.max_depth) : 0;
      for (int i = 0; i < count; ++i) acceptance.path.push_back(i + 1);
      acceptance.tokens.resize(planned.samples ? static_cast<std::size_t>(count) + 1 : 0);
      if (planned.samples) sequence.find_end(acceptance, planned.kv_mode);
      kv_lens.push_back(planned.first_position + planned.num_known_rows + count);
      sequence.commit(acceptance, planned.kv_mode);
    }
    kv_.commit(reservation, kv_lens);
    kv_.check_invariants();
    return plan;
  }

  SparseConfig config_ = {.kv_budget = kBudget, .sinks = 1, .recent = 1, .refresh_interval = 3};
  SomeSelector selector_;
  PagedKvCache kv_;
  Scheduler scheduler_;
  SeqId next_ = 0;
};

TEST_F(SparsePlanTest, OnlyLongContextsOfThoseThatWantItAndAreReady) {
  const SeqId sparse = submit(8);
  const SeqId declines = submit(5, false);
  const SeqId fits = submit(3);
  step();
  StepPlan plan = step();
  EXPECT_EQ(plan.sequences[0].kv_mode, KvMode::kSparse);
  EXPECT_EQ(plan.sequences[0].num_slots, kBudget);
  EXPECT_EQ(plan.sequences[1].kv_mode, KvMode::kDense);
  EXPECT_EQ(plan.sequences[2].kv_mode, KvMode::kDense);
  EXPECT_EQ(plan.sequences[1].seq, declines);
  selector_.unready = fits;
  for (int i = 0; i < 4; ++i) plan = step();
  EXPECT_EQ(plan.sequences[2].kv_mode, KvMode::kDense);
  EXPECT_EQ(scheduler_.running(fits).num_provisional(), 0);
  EXPECT_EQ(plan.sequences[0].seq, sparse);
}

TEST_F(SparsePlanTest, ADensePassBeginsWithTheRootAndTheRunIsItsTree) {
  const SeqId seq = submit(8);
  step();
  for (const int provisional : {0, 1, 2}) {
    EXPECT_EQ(scheduler_.running(seq).num_provisional(), provisional);
    const StepPlan plan = step();
    EXPECT_EQ(plan.sequences[0].kv_mode, KvMode::kSparse);
    EXPECT_EQ(plan.sequences[0].max_depth, kLongest - provisional - 1) << "a run is no longer than it may be";
  }
  EXPECT_EQ(kv_.kv_len(seq), 11);
  EXPECT_EQ(kv_.dense_len(seq), 8);
  const StepPlan plan = step(1);
  EXPECT_EQ(plan.sequences[0].kv_mode, KvMode::kDense);
  EXPECT_TRUE(plan.sequences[0].is_decoding);
  EXPECT_EQ(plan.sequences[0].first_position, 8);
  EXPECT_EQ(plan.sequences[0].num_known_rows, 1);
  EXPECT_EQ(plan.sequences[0].num_provisional, 3);
  EXPECT_EQ(plan.sequences[0].max_drafted, 4);
  EXPECT_LE(plan.max_drafted_rows, 16 - 4);
  const Sequence& sequence = scheduler_.running(seq);
  EXPECT_EQ(sequence.len(), 11) << "one was confirmed, one drawn, two taken back";
  EXPECT_EQ(sequence.exact_len(), 11);
  EXPECT_EQ(kv_.kv_len(seq), 10);
  EXPECT_EQ(kv_.dense_len(seq), 10);
}

TEST_F(SparsePlanTest, ARefreshComputesRowsAnewAndTheTokensStand) {
  config_.guarantee = Guarantee::kSparse;
  const SeqId seq = submit(8);
  step();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step().sequences[0].kv_mode, KvMode::kSparse);
  const std::vector<TokenId> before = scheduler_.running(seq).tokens();
  const StepPlan plan = step();
  EXPECT_TRUE(plan.sequences[0].refreshes);
  EXPECT_EQ(plan.sequences[0].kv_mode, KvMode::kDense);
  EXPECT_EQ(plan.sequences[0].first_position, 8);
  EXPECT_EQ(plan.sequences[0].num_known_rows, 4);
  EXPECT_TRUE(plan.sequences[0].samples);
  EXPECT_EQ(plan.sequences[0].num_provisional, 0);
  EXPECT_EQ(kv_.dense_len(seq), kv_.kv_len(seq));
  EXPECT_EQ(scheduler_.running(seq).len(), static_cast<int>(before.size()) + 1);
  EXPECT_EQ(step().sequences[0].kv_mode, KvMode::kSparse);
}

TEST_F(SparsePlanTest, PreemptionDropsProvisionalTokens) {
  const SeqId old = submit(8);
  const SeqId young = submit(8);
  step();
  step();
  EXPECT_EQ(scheduler_.running(young).num_provisional(), 1);
  kv_.add(100);  // somebody takes the other pages
  StepPlan fill;
  fill.sequences.push_back({.seq = 100, .first_position = 0, .num_known_rows = 4 * kv_.num_free_pages()});
  KvReservation reservation = kv_.reserve(fill);
  const int all[] = {fill.sequences[0].num_known_rows};
  kv_.commit(reservation, all);
  StepPlan plan;
  while (plan.preempted.empty()) plan = step();
  EXPECT_EQ(plan.preempted, std::vector<SeqId>{young});
  const std::unique_ptr<Sequence> waiting = scheduler_.remove(young);
  EXPECT_EQ(waiting->num_provisional(), 0);
  EXPECT_EQ(waiting->len(), waiting->exact_len());
  EXPECT_EQ(scheduler_.running(old).id(), old);
}

TEST(LongestRunTest, FitsRowsMaskAndWishes) {
  EngineConfig config;
  config.max_num_seqs = 4;
  config.max_batch_rows = 512;
  EXPECT_EQ(SparseSteps::longest_run(config, 8), 0) << "sparse passes are off";
  config.sparse.set_selector("streaming");
  EXPECT_EQ(SparseSteps::longest_run(config, 8), 32);
  config.sparse.refresh_interval = 50;
  EXPECT_EQ(SparseSteps::longest_run(config, 8), 50);
  EXPECT_EQ(SparseSteps::longest_run(config, 230), 25) << "with the tree 256 rows";
  config.max_batch_rows = 44;
  EXPECT_EQ(SparseSteps::longest_run(config, 8), 10) << "for all sequences at once";
  config.max_batch_rows = 4;
  EXPECT_EQ(SparseSteps::longest_run(config, 8), 0);
  config.sparse.guarantee = Guarantee::kSparse;
  EXPECT_EQ(SparseSteps::longest_run(config, 8), 0) << "nothing is provisional";
}

}  // namespace
}  // namespace fastspec::test
