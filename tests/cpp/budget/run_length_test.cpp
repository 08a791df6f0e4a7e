// The run of provisional tokens: expectation against a simulation, the best length against all others, prices from
// steps that follow a known line.
#include "budget/run_length.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace fastspec {
namespace {

TEST(RunLengthTest, ExpectedTokensAreThoseOfASimulation) {
  std::mt19937_64 random(3);
  for (const double agreement : {0.5, 0.9}) {
    for (const int length : {0, 1, 5, 12}) {
      constexpr int kRuns = 200000;
      constexpr double kBelow = 2.5;  // tokens of the dense pass where all was confirmed
      double tokens = 0;
      std::bernoulli_distribution agrees(agreement);
      for (int run = 0; run < kRuns; ++run) {
        int confirmed = 0;
        while (confirmed < length && agrees(random)) ++confirmed;
        tokens += confirmed + (confirmed == length ? kBelow : 1);
      }
      EXPECT_NEAR(RunLength::expected_tokens(length, agreement, kBelow), tokens / kRuns, 0.03)
          << agreement << " " << length;
    }
  }
}

TEST(RunLengthTest, WholeAgreementRunsAsLongAsItMayAndNoneNotAtAll) {
  const PassPrices prices{.sparse = 1, .dense = 10};
  EXPECT_EQ(RunLength::best(1.0, prices, 1, 1, 20), 20);
  EXPECT_EQ(RunLength::best(0.0, prices, 1, 1, 20), 0);
}

TEST(RunLengthTest, LongerRunsForDearerDensePassesAndBetterAgreement) {
  int before = 0;
  for (const double dense : {1.0, 3.0, 10.0, 40.0}) {
    const int length = RunLength::best(0.95, {.sparse = 1, .dense = dense}, 1, 1, 64);
    EXPECT_GE(length, before);
    before = length;
  }
  EXPECT_EQ(RunLength::best(0.95, {.sparse = 1, .dense = 1}, 1, 1, 64), 0) << "a sparse pass costs as much";
  EXPECT_GT(before, 15);
  EXPECT_GT(RunLength::best(0.99, {.sparse = 1, .dense = 10}, 1, 1, 64),
            RunLength::best(0.9, {.sparse = 1, .dense = 10}, 1, 1, 64));
}

TEST(RunLengthTest, DraftsMakeLongRunsCheap) {
  // Two sparse passes instead of six.
  EXPECT_GT(RunLength::best(0.95, {.sparse = 1, .dense = 4}, 3, 3, 64),
            RunLength::best(0.95, {.sparse = 1, .dense = 4}, 1, 3, 64));
}

TEST(RunLengthTest, AgreementFollowsASequenceAndFadesInPauses) {
  RunLength run;
  AgreementRecord good, bad;
  EXPECT_NEAR(run.agreement(good), 0.95, 1e-9);
  for (int i = 0; i < 40; ++i) {
    run.observe_run(10, false, good);
    run.observe_run(1, true, bad);
  }
  EXPECT_GT(run.agreement(good), 0.97);
  EXPECT_LT(run.agreement(bad), 0.8);
  EXPECT_NEAR(run.agreement({}), run.agreement(AgreementRecord{}), 1e-12);
  const PassPrices prices{.sparse = 1, .dense = 3};
  const int careful = run.choose(bad, prices, 32);
  EXPECT_LT(careful, run.choose(good, prices, 32));
  for (int i = 0; i < 2000; ++i) run.observe_pause(bad);
  EXPECT_GT(run.choose(bad, prices, 32), careful) << "what disagreed long ago is tried again";
}

TEST(RunLengthTest, PricesAreReadOffMeasuredSteps) {
  RunLength run;
  EXPECT_FALSE(run.measured_prices(1000).has_value());
  EXPECT_EQ(run.choose({}, std::nullopt, 32), 8);
  EXPECT_EQ(run.choose({}, std::nullopt, 5), 5);
  std::mt19937_64 random(5);
  for (int step = 0; step < 200; ++step) {
    const int dense = static_cast<int>(random() % 3);  // of 4 sequences
    run.observe_step(0.008 + 0.010 * dense, 4, 30000.0 * dense, 8.0 * dense);
  }
  const auto prices = run.measured_prices(30000);
  ASSERT_TRUE(prices.has_value());
  EXPECT_NEAR(prices->sparse, 0.002, 1e-4);
  EXPECT_NEAR(prices->dense, 0.012, 1e-4);
  EXPECT_EQ(prices->row, 0) << "runs of one length: their rows belong to the dense pass";
}

TEST(RunLengthTest, RowsOfRunsAreToldFromKeysWhereLengthsDiffer) {
  RunLength run;
  std::mt19937_64 random(5);
  for (int step = 0; step < 300; ++step) {
    const int dense = static_cast<int>(random() % 5);  // of 4 sequences
    const int rows = dense * static_cast<int>(random() % 9);
    run.observe_step(0.008 + 0.0005 * dense + 0.0004 * rows, 4, 8000.0 * dense, rows);
  }
  const auto prices = run.measured_prices(8000);
  ASSERT_TRUE(prices.has_value());
  EXPECT_NEAR(prices->sparse, 0.002, 1e-5);
  EXPECT_NEAR(prices->dense, 0.0025, 1e-5);
  EXPECT_NEAR(prices->row, 0.0004, 1e-6);
}

TEST(RunLengthTest, DearRowsMakeRunsShort) {
  int before = 65;
  for (const double row : {0.0, 0.1, 0.5, 5.0}) {
    const int length = RunLength::best(0.97, {.sparse = 1, .dense = 8, .row = row}, 2, 2, 64);
    EXPECT_LT(length, before) << row;
    before = length;
  }
  EXPECT_EQ(before, 0) << "nothing pays for such rows";
}

TEST(RunLengthTest, StepsThatAreAllAlikeSayNothing) {
  RunLength run;
  for (int step = 0; step < 50; ++step) run.observe_step(0.01, 4, 1000, 0);
  EXPECT_FALSE(run.measured_prices(1000).has_value());
}

}  // namespace
}  // namespace fastspec
