// Scheduling without a device: who runs, who waits, who gives pages back. Steps are committed by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "support/expect_error.h"
#include "support/scheduler_simulation.h"

namespace fastspec::test {
namespace {

TEST(SchedulerTest, NothingToDo) {
  Simulation simulation({.max_num_seqs = 2, .max_batch_rows = 8}, 10, 4);
  EXPECT_FALSE(simulation.scheduler().has_work());
  EXPECT_TRUE(simulation.step().empty());
}

TEST(SchedulerTest, PromptIsCutIntoChunksAndOnlyTheLastSamples) {
  Simulation simulation({.max_num_seqs = 2, .max_batch_rows = 8}, 10, 4);
  const SeqId seq = simulation.submit(18, 5)[0];
  for (const int rows : {8, 8, 2}) {
    const StepPlan plan = simulation.step();
    ASSERT_EQ(plan.sequences.size(), 1u);
    EXPECT_EQ(plan.sequences[0].num_known_rows, rows);
    EXPECT_EQ(plan.sequences[0].samples, rows == 2);
    EXPECT_FALSE(plan.sequences[0].is_decoding);
  }
  const StepPlan plan = simulation.step();
  EXPECT_TRUE(plan.sequences[0].is_decoding);
  EXPECT_EQ(simulation.kv().kv_len(seq), 19);
}

TEST(SchedulerTest, PromptOfOneTokenIsAPromptPass) {
  Simulation simulation({.max_num_seqs = 2, .max_batch_rows = 8, .max_tree_nodes = 2, .max_tree_depth = 2}, 10, 4);
  simulation.submit(1, 5);
  const StepPlan plan = simulation.step();
  EXPECT_TRUE(plan.sequences[0].samples);
  EXPECT_FALSE(plan.sequences[0].is_decoding);
  EXPECT_EQ(plan.sequences[0].max_drafted, 0);
}

TEST(SchedulerTest, ChunksRideWithDecodingRows) {
  Simulation simulation({.max_num_seqs = 4, .max_batch_rows = 8}, 40, 4);
  const Ids decoding{simulation.submit(2, 50)[0], simulation.submit(3, 50)[0]};
  simulation.step();
  const SeqId prompt = simulation.submit(20, 5)[0];
  const StepPlan plan = simulation.step();
  for (const SeqId seq : decoding) EXPECT_TRUE(Simulation::find(plan, seq)->is_decoding);
  EXPECT_EQ(Simulation::find(plan, prompt)->num_known_rows, 6) << "what the roots leave";
}

TEST(SchedulerTest, PromptsShareTheRowsInOrder) {
  Simulation simulation({.max_num_seqs = 4, .max_batch_rows = 8}, 40, 4);
  const Ids ids{simulation.submit(5, 5)[0], simulation.submit(9, 5)[0], simulation.submit(1, 5)[0]};
  const StepPlan plan = simulation.step();
  EXPECT_EQ(simulation.running(), (Ids{ids[0], ids[1]})) << "no row was left for the third";
  EXPECT_EQ(plan.sequences[0].num_known_rows, 5);
  EXPECT_EQ(plan.sequences[1].num_known_rows, 3);
}

class SchedulerSharesTest : public ::testing::Test {
 protected:
  /// Two decoding sequences that may draft `nodes` each, 16 rows a pass.
  StepPlan plan_with(int nodes, int prompt_len) {
    Simulation simulation({.max_num_seqs = 4, .max_batch_rows = 16, .max_tree_nodes = nodes, .max_tree_depth = nodes},
                          200, 4);
    simulation.submit(2, 100);
    simulation.submit(2, 100);
    simulation.step();
    if (prompt_len > 0) simulation.submit(prompt_len, 5);
    StepPlan plan = simulation.step();
    prompt_rows_ = 0;
    for (const SequencePlan& planned : plan.sequences) prompt_rows_ += planned.is_decoding ? 0 : planned.num_known_rows;
    return plan;
  }
  int prompt_rows_ = 0;
};

TEST_F(SchedulerSharesTest, HalfEachWhenBothWantAll) {
  EXPECT_EQ(plan_with(8, 100).max_drafted_rows, 7);
  EXPECT_EQ(prompt_rows_, 7);
}

TEST_F(SchedulerSharesTest, DraftsTakeWhatPromptsLeave) {
  EXPECT_EQ(plan_with(8, 3).max_drafted_rows, 11);
  EXPECT_EQ(prompt_rows_, 3);
  EXPECT_EQ(plan_with(8, 0).max_drafted_rows, 14);
}

TEST_F(SchedulerSharesTest, PromptsTakeWhatDraftsLeave) {
  const StepPlan plan = plan_with(1, 100);
  EXPECT_EQ(plan.max_drafted_rows, 2);
  EXPECT_EQ(prompt_rows_, 12);
}

TEST(SchedulerTest, EveryPromptMovesHoweverManyDraft) {
  Simulation simulation({.max_num_seqs = 3, .max_batch_rows = 3, .max_tree_nodes = 8, .max_tree_depth = 8}, 200, 4);
  simulation.submit(1, 100);
  simulation.submit(1, 100);
  simulation.step();
  const SeqId prompt = simulation.submit(4, 2)[0];
  for (int i = 0; i < 4; ++i) {
    const StepPlan plan = simulation.step();
    ASSERT_NE(Simulation::find(plan, prompt), nullptr);
    EXPECT_EQ(Simulation::find(plan, prompt)->num_known_rows, 1);
  }
}

TEST(SchedulerTest, DraftsEndWhereTheOutputDoes) {
  Simulation simulation({.max_num_seqs = 1, .max_batch_rows = 16, .max_tree_nodes = 8, .max_tree_depth = 6}, 50, 4);
  simulation.submit(2, 5);
  simulation.step();
  for (const int depth : {3, 2, 1, 0}) {  // with the bonus: 4, 3, 2, 1 tokens remain
    const StepPlan plan = simulation.step();
    EXPECT_EQ(plan.sequences[0].max_depth, depth);
    EXPECT_EQ(plan.sequences[0].max_drafted, depth == 0 ? 0 : 8);
  }
  EXPECT_EQ(simulation.finished().size(), 1u);
}

TEST(SchedulerTest, RequestsLimitTheirDrafts) {
  Simulation simulation({.max_num_seqs = 2, .max_batch_rows = 32, .max_tree_nodes = 8, .max_tree_depth = 8}, 50, 4);
  const SeqId plain = simulation.submit(2, 50, 1, 0)[0];
  const SeqId three = simulation.submit(2, 50, 1, 3)[0];
  simulation.step();
  const StepPlan plan = simulation.step();
  EXPECT_EQ(Simulation::find(plan, plain)->max_drafted, 0);
  EXPECT_EQ(Simulation::find(plan, three)->max_drafted, 3);
  EXPECT_EQ(Simulation::find(plan, three)->max_depth, 3);
}

TEST(SchedulerTest, DraftsTakeOnlyPagesThatNobodyNeeds) {
  Simulation simulation({.max_num_seqs = 2, .max_batch_rows = 32, .max_tree_nodes = 8, .max_tree_depth = 8}, 3, 4);
  const SeqId first = simulation.submit(4, 50)[0];
  const SeqId second = simulation.submit(3, 50)[0];
  simulation.step();
  const StepPlan plan = simulation.step();
  EXPECT_TRUE(plan.preempted.empty());
  EXPECT_EQ(Simulation::find(plan, first)->max_depth, 3) << "the rest of the page that its root opens";
  EXPECT_EQ(Simulation::find(plan, second)->max_depth, 0) << "its root fills its page, and the third went to the first";
}

TEST(SchedulerTest, FirstComeFirstServed) {
  Simulation simulation({.max_num_seqs = 4, .max_batch_rows = 64}, 10, 4);
  const SeqId first = simulation.submit(20, 2)[0];  // 5 pages
  const SeqId large = simulation.submit(24, 2)[0];  // 6: does not fit beside
  const SeqId small = simulation.submit(2, 2)[0];   // would fit, but came later
  simulation.step();
  EXPECT_EQ(simulation.running(), Ids{first});
  EXPECT_EQ(simulation.scheduler().num_waiting(), 2);
  simulation.step();
  simulation.step();
  EXPECT_EQ(simulation.running(), (Ids{large, small}));
}

TEST(SchedulerTest, PromptsAreAdmittedOnlyOnPagesThatNoOtherPromptWaitsFor) {
  Simulation simulation({.max_num_seqs = 4, .max_batch_rows = 4}, 10, 4);
  const SeqId first = simulation.submit(32, 2)[0];   // 8 pages, taken chunk by chunk
  const SeqId second = simulation.submit(12, 2)[0];  // 3
  for (int i = 0; i < 8; ++i) {
    const StepPlan plan = simulation.step();
    EXPECT_TRUE(plan.preempted.empty());
    EXPECT_EQ(simulation.running(), Ids{first});
  }
  while (simulation.scheduler().has_work()) EXPECT_TRUE(simulation.step().preempted.empty());
  EXPECT_EQ(simulation.finished(), (Ids{first, second}));
}

TEST(SchedulerTest, YoungestGivesItsPagesBackAndReturnsFirst) {
  Simulation simulation({.max_num_seqs = 3, .max_batch_rows = 64}, 6, 4);
  const SeqId oldest = simulation.submit(7, 12)[0];
  const SeqId middle = simulation.submit(7, 12)[0];
  const SeqId youngest = simulation.submit(7, 12)[0];
  simulation.step();  // two pages each: the pool is full
  EXPECT_EQ(simulation.running(), (Ids{oldest, middle, youngest}));
  const SeqId later = simulation.submit(1, 1)[0];
  simulation.step();
  const StepPlan plan = simulation.step();
  EXPECT_EQ(plan.preempted, Ids{youngest});
  EXPECT_EQ(simulation.running(), (Ids{oldest, middle}));
  EXPECT_EQ(Simulation::find(plan, youngest), nullptr);
  while (simulation.scheduler().has_work()) simulation.step();
  EXPECT_EQ(simulation.finished()[0], oldest);
  EXPECT_LT(std::find(simulation.finished().begin(), simulation.finished().end(), youngest),
            simulation.finished().end());
  EXPECT_EQ(std::set<SeqId>(simulation.finished().begin(), simulation.finished().end()),
            (std::set<SeqId>{oldest, middle, youngest, later}));
  EXPECT_EQ(simulation.kv().num_free_pages(), 6);
}

TEST(SchedulerTest, PreemptionIsCountedAndTheTokensStay) {
  Simulation simulation({.max_num_seqs = 2, .max_batch_rows = 64}, 4, 4);
  simulation.submit(7, 9);
  const SeqId young = simulation.submit(7, 9)[0];
  simulation.step();
  simulation.step();
  ASSERT_EQ(simulation.step().preempted, Ids{young});
  EXPECT_EQ(simulation.scheduler().num_waiting(), 1);
  while (simulation.running() != Ids{young}) simulation.step();
  const Sequence& sequence = simulation.scheduler().running(young);
  EXPECT_EQ(sequence.stats.preemptions, 1);
  EXPECT_EQ(sequence.num_generated(), 3) << "two before, and one of the pass that recomputed them";
}

TEST(SchedulerTest, SamplesOfAPromptWaitForItsPagesAndShareThem) {
  Simulation simulation({.max_num_seqs = 8, .max_batch_rows = 6}, 40, 4);
  const Ids samples = simulation.submit(14, 20, 3);
  const SeqId other = simulation.submit(2, 20)[0];
  for (int i = 0; i < 2; ++i) {
    simulation.step();
    EXPECT_EQ(simulation.running(), Ids{samples[0]});
  }
  // 12 of 14 are computed: still not the 13 whose pages can be shared. Others are not held up.
  StepPlan plan = simulation.step();
  EXPECT_EQ(simulation.running(), (Ids{samples[0], other}));
  plan = simulation.step();
  ASSERT_EQ(plan.shared.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(plan.shared[i].from, samples[0]);
    EXPECT_EQ(plan.shared[i].to, samples[i + 1]);
    EXPECT_EQ(plan.shared[i].length, 12);
    EXPECT_EQ(Simulation::find(plan, samples[i + 1])->first_position, 12);
    EXPECT_EQ(Simulation::find(plan, samples[i + 1])->num_known_rows, 2) << "the last prompt token is computed again";
    EXPECT_EQ(simulation.kv().pages(samples[i + 1])[2], simulation.kv().pages(samples[0])[2]);
  }
}

TEST(SchedulerTest, ShortPromptsShareNoPage) {
  Simulation simulation({.max_num_seqs = 8, .max_batch_rows = 16}, 40, 4);
  const Ids samples = simulation.submit(4, 5, 2);  // the last token is computed again, so not even its one page
  simulation.step();
  const StepPlan plan = simulation.step();
  EXPECT_TRUE(plan.shared.empty());
  EXPECT_EQ(Simulation::find(plan, samples[1])->num_known_rows, 4);
}

TEST(SchedulerTest, FailedStepsArePlannedAgain) {
  Simulation simulation({.max_num_seqs = 4, .max_batch_rows = 8, .max_tree_nodes = 3, .max_tree_depth = 3}, 20, 4);
  simulation.submit(1, 5);
  simulation.submit(9, 5);
  for (int i = 0; i < 40 && simulation.scheduler().has_work(); ++i) {
    const StepPlan failed = simulation.step(-1, true);
    const StepPlan again = simulation.step(1);
    ASSERT_EQ(failed.sequences.size(), again.sequences.size());
    for (const SequencePlan& planned : failed.sequences) {
      EXPECT_EQ(Simulation::find(again, planned.seq)->first_position, planned.first_position);
    }
  }
  EXPECT_EQ(simulation.finished().size(), 2u);
}

TEST(SchedulerTest, RemoveTakesSequencesOutWhereverTheyAre) {
  Simulation simulation({.max_num_seqs = 1, .max_batch_rows = 8}, 20, 4);
  const Ids samples = simulation.submit(3, 5, 2);
  simulation.step();
  Scheduler& scheduler = simulation.scheduler();
  EXPECT_EQ(scheduler.sequences_of(0), samples);
  EXPECT_EQ(scheduler.sequences_of(1), Ids{});
  EXPECT_EQ(scheduler.remove(77), nullptr);
  EXPECT_EQ(scheduler.remove(samples[1])->id(), samples[1]);
  EXPECT_EQ(scheduler.remove(samples[0])->id(), samples[0]);
  EXPECT_FALSE(scheduler.has_work());
  EXPECT_EQ(simulation.kv().num_free_pages(), 20);
  expect_error(ErrorCode::kInternal, {"sequence 0"}, [&] { scheduler.running(samples[0]); });
}

// --- held prompts ----------------------------------------------------------------------------------------------------

TEST(SchedulerTest, AHeldPromptIsComputedAndNeverPlannedAgain) {
  Simulation simulation({.max_num_seqs = 2, .max_batch_rows = 8, .max_tree_nodes = 3, .max_tree_depth = 3}, 20, 4);
  const SeqId held = simulation.hold(14);
  for (const int rows : {8, 5}) {
    const StepPlan plan = simulation.step();
    ASSERT_EQ(plan.sequences.size(), 1u);
    EXPECT_EQ(plan.sequences[0].num_known_rows, rows);
    EXPECT_FALSE(plan.sequences[0].samples);
  }
  EXPECT_TRUE(simulation.step().empty());
  EXPECT_EQ(simulation.kv().kv_len(held), 13);
  const SeqId other = simulation.submit(3, 9)[0];
  simulation.step();
  const StepPlan plan = simulation.step();
  EXPECT_EQ(plan.sequences.size(), 1u);
  EXPECT_EQ(Simulation::find(plan, other)->max_drafted, 3);
  EXPECT_EQ(plan.max_drafted_rows, 7) << "a held prompt claims no rows";
  EXPECT_EQ(simulation.scheduler().num_held(), 1);
}

TEST(SchedulerTest, EqualPromptsStartOnAHeldOneAndOthersDoNot) {
  Simulation simulation({.max_num_seqs = 8, .max_batch_rows = 16}, 40, 4);
  const SeqId held = simulation.hold(14);
  const Ids same = simulation.submit(14, 5, 2);  // wait for it
  const SeqId other = simulation.submit(13, 5)[0];
  simulation.step();
  EXPECT_EQ(simulation.running(), (Ids{held, other}));
  const SeqId second = simulation.hold(14);
  const StepPlan plan = simulation.step();
  ASSERT_EQ(plan.shared.size(), 3u);
  for (const SharedPrefix& shared : plan.shared) {
    EXPECT_EQ(shared.from, held);
    EXPECT_EQ(shared.length, 12);
  }
  EXPECT_EQ(plan.shared[2].to, second);
  EXPECT_EQ(Simulation::find(plan, same[0])->num_known_rows, 2);
  EXPECT_EQ(Simulation::find(plan, second)->num_known_rows, 1);
  const SeqId late = simulation.submit(13, 5)[0];  // as one that runs, but is not held
  EXPECT_TRUE(simulation.step().shared.empty());
  EXPECT_EQ(simulation.kv().kv_len(late), 13);
}

TEST(SchedulerTest, AHeldPromptGivesWayFirstAndReturnsWhenNobodyElseWaits) {
  Simulation simulation({.max_num_seqs = 3, .max_batch_rows = 64}, 8, 4);
  const SeqId held = simulation.hold(12);           // 3 pages
  const SeqId first = simulation.submit(6, 13)[0];  // 2, of 5 in the end
  const SeqId young = simulation.submit(7, 12)[0];  // the same
  StepPlan plan;
  for (int i = 0; i < 10 && plan.preempted.empty(); ++i) plan = simulation.step();
  EXPECT_EQ(plan.preempted, Ids{held}) << "though it was admitted first";
  EXPECT_EQ(simulation.running(), (Ids{first, young}));
  const SeqId late = simulation.submit(20, 2)[0];
  while (simulation.finished().size() < 3) {
    EXPECT_FALSE(simulation.kv().contains(held) && simulation.scheduler().num_waiting() > 0);
    simulation.step();
  }
  EXPECT_EQ(simulation.finished().back(), late);
  while (!simulation.step().empty()) {
  }
  EXPECT_EQ(simulation.kv().kv_len(held), 11);
}

TEST(SchedulerTest, AHeldPromptGivesItsPlaceOrPagesToARequestThatCannotStart) {
  Simulation simulation({.max_num_seqs = 2, .max_batch_rows = 64}, 8, 4);
  const Ids held{simulation.hold(9), simulation.hold(10)};  // all places, 6 pages
  simulation.step();
  const SeqId small = simulation.submit(2, 3)[0];
  EXPECT_EQ(simulation.step().preempted, Ids{held[1]});
  EXPECT_EQ(simulation.running(), (Ids{held[0], small}));
  const SeqId large = simulation.submit(31, 1)[0];  // the whole pool
  simulation.submit(1, 1);
  EXPECT_TRUE(simulation.step().preempted.empty()) << "it can wait for the one that decodes";
  while (simulation.finished().size() < 3) simulation.step();
  EXPECT_EQ((Ids{simulation.finished()[0], simulation.finished()[1]}), (Ids{small, large}));
  while (!simulation.step().empty()) {
  }
  EXPECT_EQ(simulation.scheduler().num_running(), 2) << "both are held again";
}

TEST(SchedulerTest, HeldPromptsThatDoNotFitTogetherDoNotTakeTurns) {
  Simulation simulation({.max_num_seqs = 4, .max_batch_rows = 64}, 6, 4);
  const SeqId held = simulation.hold(14);
  simulation.hold(15);
  simulation.step();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(simulation.step().empty());
  EXPECT_EQ(simulation.running(), Ids{held});
  const SeqId other = simulation.submit(3, 2)[0];  // is not held up behind the one that waits
  simulation.step();
  simulation.step();
  EXPECT_EQ(simulation.finished(), Ids{other});
}

struct RandomCase {
  SchedulerLimits limits;
  int num_pages;
  int page_size;
};

class SchedulerRandomTest : public ::testing::TestWithParam<RandomCase> {};

TEST_P(SchedulerRandomTest, EveryPlanHoldsAndEverythingEnds) {
  const auto& [limits, num_pages, page_size] = GetParam();
  Simulation simulation(limits, num_pages, page_size, 17);
  const int capacity = num_pages * page_size;
  int num_submitted = 0;
  int num_preempted = 0;
  int num_shared = 0;
  Ids held;
  int num_gave_way = 0;
  int idle = 0;
  const auto others = [&] {
    const Scheduler& scheduler = simulation.scheduler();
    return scheduler.num_running() + scheduler.num_waiting() - scheduler.num_held();
  };
  for (int step = 0; step < 3000 && !::testing::Test::HasFailure(); ++step) {
    if (simulation.scheduler().num_waiting() < 4 && simulation.below(3) == 0) {
      const int prompt_len = 1 + simulation.below(capacity / 2);
      const int n = simulation.below(4) == 0 ? 1 + simulation.below(4) : 1;
      const int max_tokens = 1 + simulation.below(std::min(capacity - prompt_len, 40));
      num_submitted += static_cast<int>(simulation.submit(prompt_len, max_tokens, n, simulation.below(10)).size());
    }
    if (simulation.scheduler().num_held() < 3 && simulation.below(20) == 0) {
      held.push_back(simulation.hold(1 + simulation.below(capacity / 2)));
    }
    const bool has_work = others() > 0;
    const StepPlan plan = simulation.step(-1, simulation.below(10) == 0);
    ASSERT_TRUE(!plan.empty() || !has_work) << "nobody runs although there is work";
    for (const SeqId seq : plan.preempted) {
      ++(std::find(held.begin(), held.end(), seq) == held.end() ? num_preempted : num_gave_way);
    }
    num_shared += static_cast<int>(plan.shared.size());
    if (simulation.below(50) == 0 && !simulation.running().empty()) {
      const SeqId seq = simulation.running().back();
      simulation.scheduler().remove(seq);  // cancelled
      if (std::erase(held, seq) == 0) --num_submitted;
    }
  }
  while (others() > 0 && !::testing::Test::HasFailure()) {
    simulation.step(-1);
    ASSERT_LT(++idle, 20'000) << "no end in sight";
  }
  EXPECT_EQ(static_cast<int>(simulation.finished().size()), num_submitted);
  while (!simulation.step().empty()) ASSERT_LT(++idle, 20'000) << "held prompts take turns";
  for (const SeqId seq : held) {
    EXPECT_EQ(simulation.scheduler().remove(seq)->stats.completion_tokens, 0);
  }
  EXPECT_GT(num_gave_way, 0);
  EXPECT_EQ(simulation.kv().num_free_pages(), num_pages);
  EXPECT_GT(simulation.finished().size(), 50u);
  EXPECT_TRUE(num_preempted > 0 || num_pages > 100);
  EXPECT_GT(num_shared, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Pools, SchedulerRandomTest,
    ::testing::Values(
        RandomCase{{.max_num_seqs = 4, .max_batch_rows = 16, .max_tree_nodes = 8, .max_tree_depth = 4}, 12, 4},
        RandomCase{{.max_num_seqs = 8, .max_batch_rows = 8, .max_tree_nodes = 3, .max_tree_depth = 3}, 9, 8},
        RandomCase{{.max_num_seqs = 3, .max_batch_rows = 64, .max_tree_nodes = 0, .max_tree_depth = 0}, 20, 2},
        RandomCase{{.max_num_seqs = 6, .max_batch_rows = 32, .max_tree_nodes = 16, .max_tree_depth = 16}, 160, 1}));

}  // namespace
}  // namespace fastspec::test
