// Who drafts: by gain and load, without flutter, with probes that cost no more than they may.
#include "budget/draft_switch.h"

#include <gtest/gtest.h>

#include <vector>

namespace fastspec::test {
namespace {

/// Ten milliseconds up to `flat` rows, then one more for each; a draft takes two.
CostModel hinge(int flat) {
  return CostModel({.linear = {{1, flat, flat + 100}, {10, 10, 110}}, .draft = {{1, 64}, {2, 2}}});
}

class DraftSwitchTest : public ::testing::Test {
 protected:
  explicit DraftSwitchTest() : records_(64) {}

  void decide(int count, const CostModel& cost) {
    std::vector<DraftCandidate> candidates;
    for (int i = 0; i < count; ++i) candidates.push_back({&records_[static_cast<std::size_t>(i)], 100});
    switch_.decide(candidates, 0, cost);
  }
  int num_drafting(int count) const {
    int drafting = 0;
    for (int i = 0; i < count; ++i) drafting += records_[static_cast<std::size_t>(i)].drafts ? 1 : 0;
    return drafting;
  }
  void feed(int sequence, int verified, int accepted, int times = 40) {
    for (int i = 0; i < times; ++i) switch_.observe(verified, accepted, records_[static_cast<std::size_t>(sequence)]);
  }

  std::vector<DraftRecord> records_;
  DraftSwitch switch_{0.03};
};

TEST_F(DraftSwitchTest, AllDraftUntilSomethingIsKnown) {
  decide(4, hinge(1));
  EXPECT_EQ(num_drafting(4), 4);
}

TEST_F(DraftSwitchTest, LoadDecides) {
  for (int i = 0; i < 64; ++i) feed(i, 4, 1);
  decide(1, hinge(100));
  EXPECT_EQ(num_drafting(1), 1) << "two tokens for 12 ms instead of one for 10";
  decide(64, hinge(100));
  EXPECT_LT(num_drafting(64), 64) << "rows beyond 100 cost a millisecond each";
  decide(64, hinge(1));
  EXPECT_EQ(num_drafting(64), 0) << "four rows for a token where each row costs what a token brings";
}

TEST_F(DraftSwitchTest, TheBestDraftersDraft) {
  for (int i = 0; i < 8; ++i) feed(i, 4, i < 3 ? 4 : 0);
  decide(8, hinge(20));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(records_[static_cast<std::size_t>(i)].drafts, i < 3) << i;
}

TEST_F(DraftSwitchTest, LittleIsEnoughToStopAndNotToStart) {
  feed(0, 4, 1);
  const auto drafts_at = [&](double draft, bool is_on) {
    records_[0].is_on = is_on;
    decide(1, CostModel({.linear = {{1, 100}, {10, 10}}, .draft = {{1, 64}, {draft, draft}}}));
    return records_[0].is_on;
  };
  // Two tokens instead of one. At 10 ms for a draft that is a tie.
  EXPECT_FALSE(drafts_at(10.2, true)) << "1 % slower than plain decoding";
  EXPECT_TRUE(drafts_at(10.1, true)) << "0.5 % slower, which may be noise";
  EXPECT_FALSE(drafts_at(9.6, false)) << "2 % faster, which may be noise";
  EXPECT_TRUE(drafts_at(9.2, false)) << "4 % faster";
}

TEST_F(DraftSwitchTest, ProbesComeBackAndCostHalfAPercentAtMost) {
  const CostModel cost = hinge(1);
  feed(0, 4, 0);
  int probes = 0, steps = 0;
  double extra = 0, total = 0;
  for (; steps < 4000; ++steps) {
    decide(1, cost);
    const bool drafts = records_[0].drafts;
    EXPECT_EQ(drafts, switch_.is_probe());
    StepLoad load{.num_drafting = drafts ? 1 : 0};
    cost.add_sequence(drafts ? 5 : 1, 100, load);
    const double time = cost.step_milliseconds(load);
    total += time;
    if (!drafts) continue;
    ++probes;
    extra += time - 10;
    switch_.observe(4, 0, records_[0]);
  }
  EXPECT_GE(probes, 10);
  EXPECT_LE(extra, 0.0051 * total);
}

TEST_F(DraftSwitchTest, WhatPaysAgainIsFoundByProbes) {
  const CostModel cost = hinge(100);
  feed(0, 4, 0);
  decide(1, cost);
  ASSERT_FALSE(records_[0].drafts);
  int steps = 0;
  for (; steps < 2000 && !records_[0].is_on; ++steps) {
    decide(1, cost);
    if (records_[0].drafts) switch_.observe(4, 4, records_[0]);
  }
  EXPECT_TRUE(records_[0].is_on);
  EXPECT_LT(steps, 500);
}

TEST_F(DraftSwitchTest, NobodyIsNoReasonToProbe) {
  feed(0, 4, 0);
  EXPECT_NO_THROW(decide(0, hinge(1)));
  EXPECT_FALSE(switch_.is_probe());
}

}  // namespace
}  // namespace fastspec::test
