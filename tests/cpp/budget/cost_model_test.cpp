// Prices: the sum and its parts, what a measured step changes.
#include "budget/cost_model.h"

#include <gtest/gtest.h>

namespace fastspec::test {
namespace {

CostParameters some_costs() {
  return {.rows_per_tile = 4,
          .linear = {{1, 2, 4, 8}, {10, 11, 13, 21}},
          .per_tile_key = 0.5,
          .per_key = 0.25,
          .per_sequence = 2,
          .draft = {{1, 4}, {3, 6}},
          .draft_per_key = 0.01};
}

TEST(CostModelTest, TablesAreStraightBetweenAndBeyondTheirEntries) {
  const CostTable table{{2, 4, 8}, {10, 20, 24}};
  EXPECT_DOUBLE_EQ(cost_at(table, 2), 10);
  EXPECT_DOUBLE_EQ(cost_at(table, 3), 15);
  EXPECT_DOUBLE_EQ(cost_at(table, 6), 22);
  EXPECT_DOUBLE_EQ(cost_at(table, 8), 24);
  EXPECT_DOUBLE_EQ(cost_at(table, 16), 32);
  EXPECT_DOUBLE_EQ(cost_at(table, 1), 5);
  EXPECT_DOUBLE_EQ(cost_at({{4, 5}, {1, 9}}, 1), 0) << "never negative";
  EXPECT_DOUBLE_EQ(cost_at({{3}, {7}}, 99), 7);
  EXPECT_DOUBLE_EQ(cost_at({}, 5), 0);
}

TEST(CostModelTest, AStepIsTheSumOfItsParts) {
  const CostModel cost(some_costs());
  EXPECT_EQ(cost.tiles(1), 1);
  EXPECT_EQ(cost.tiles(4), 1);
  EXPECT_EQ(cost.tiles(5), 2);
  StepLoad load{.num_drafting = 2, .draft_keys = 300};
  cost.add_sequence(5, 100, load);  // two tiles
  cost.add_sequence(1, 200, load);
  EXPECT_EQ(load.num_rows, 6);
  EXPECT_EQ(load.num_sequences, 2);
  const double pass = 17 + 0.5 * (2 * 100 + 200) + 0.25 * 300 + 2 * 2;
  EXPECT_DOUBLE_EQ(cost.pass_milliseconds(load), pass);
  EXPECT_DOUBLE_EQ(cost.step_milliseconds(load), pass + 4 + 3);
  load.num_drafting = 0;
  EXPECT_DOUBLE_EQ(cost.step_milliseconds(load), pass) << "who drafts nothing pays nothing";
}

TEST(CostModelTest, MeasuredStepsCorrectThePredictionForTheirLoad) {
  CostModel cost(some_costs());
  StepLoad load{.num_drafting = 1, .draft_keys = 0};
  cost.add_sequence(4, 0, load);
  const double truth = 1.4 * cost.pass_milliseconds(load);
  for (int i = 0; i < 200; ++i) cost.observe(load, 5, truth);
  EXPECT_NEAR(cost.pass_milliseconds(load), truth, 0.01 * truth);
  EXPECT_NEAR(cost.draft_milliseconds(1, 0), 5, 0.05);
}

TEST(CostModelTest, WhatChangesForAllRowsIsLearnedFromSome) {
  CostModel cost(some_costs());
  StepLoad seen, unseen;
  cost.add_sequence(1, 0, seen);
  cost.add_sequence(8, 0, unseen);
  const double before = cost.pass_milliseconds(unseen);
  for (int i = 0; i < 300; ++i) cost.observe(seen, 0, 2 * 12);
  EXPECT_GT(cost.pass_milliseconds(unseen), 1.1 * before);
}

TEST(CostModelTest, OneStepThatWasHeldUpMovesLittle) {
  CostModel cost(some_costs());
  StepLoad load{.num_drafting = 1};
  cost.add_sequence(4, 10, load);
  const double before = cost.step_milliseconds(load);
  cost.observe(load, 1e9, 1e9);
  EXPECT_LT(cost.step_milliseconds(load), 1.1 * before);
  cost.observe(load, 0, 0);
  EXPECT_GT(cost.step_milliseconds(load), 0.9 * before);
}

}  // namespace
}  // namespace fastspec::test
