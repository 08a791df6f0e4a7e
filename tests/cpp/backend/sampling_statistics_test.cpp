// Chi-square tests of what is drawn, with fixed seeds. Each statistic is compared with the quantile that a correct
// sampler exceeds with probability 1e-6; the seeds are fixed, so the tests do not flicker. A planted bias must be
// found.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "backend/cpu/sampling.h"
#include "cpp/backend/sampling_case.h"
#include "support/oracle_sampling.h"

namespace fastspec::test {
namespace {

/// Upper quantile of chi-square by Wilson and Hilferty's approximation; z of the false-alarm rate 1e-6.
double chi_square_limit(int degrees) {
  constexpr double kZ = 4.753424;
  const double ratio = 2.0 / (9.0 * degrees);
  return degrees * std::pow(1 - ratio + kZ * std::sqrt(ratio), 3);
}

class StatisticsTest : public ::testing::Test {
 protected:
  static constexpr int kDraws = 40000;

  /// Frequencies over kDraws draws that differ in one part of the noise key.
  enum class Vary { kSeed, kPosition, kSample };
  std::vector<int> frequencies(std::vector<float>& logits, SamplingRule rule, Vary vary) {
    std::vector<int> counts(logits.size(), 0);
    const int size = static_cast<int>(logits.size());
    for (int i = 0; i < kDraws; ++i) {
      TreeCase problem({0}, {-1}, rule);
      if (vary == Vary::kSeed) problem.tree.rule.seed = static_cast<std::uint64_t>(i) * 77 + 5;
      if (vary == Vary::kSample) problem.tree.rule.sample_index = static_cast<std::uint32_t>(i);
      if (vary == Vary::kPosition) problem.tree.root_position = i;
      sampler_.accept({{logits.data(), DType::kFloat32, 1, size, size}, &problem.tree, &problem.result, 1});
      counts[static_cast<std::size_t>(problem.sampled[0].token)] += 1;
    }
    return counts;
  }

  /// Chi-square over the tokens with an expectation above 5, the others pooled, minus its limit.
  static double excess(const std::vector<int>& counts, const std::vector<double>& probability) {
    double statistic = 0, rest_expected = 0, rest_counted = 0;
    int cells = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const double expected = probability[i] * kDraws;
      if (expected > 5) {
        statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
        ++cells;
      } else {
        rest_expected += expected;
        rest_counted += counts[i];
      }
    }
    if (rest_expected > 5) {
      statistic += (rest_counted - rest_expected) * (rest_counted - rest_expected) / rest_expected;
      ++cells;
    }
    return statistic - chi_square_limit(cells - 1);
  }

  static std::vector<double> target(const std::vector<float>& logits, const SamplingRule& rule) {
    std::vector<double> tempered = oracle::adjusted_logits(logits, rule, {});
    const std::vector<bool> left = oracle::filtered_set(tempered, rule);
    for (std::size_t i = 0; i < tempered.size(); ++i)
      tempered[i] = left[i] ? tempered[i] / rule.temperature : -HUGE_VAL;
    return oracle::probabilities(tempered);
  }

  cpu::ThreadPool pool_{1};
  cpu::Sampler sampler_{pool_};
};

TEST_F(StatisticsTest, DrawsFollowTheSoftmax) {
  std::mt19937_64 random(41);
  std::vector<float> logits = random_logits(60, 1.5f, random);
  SamplingRule rule;
  for (const Vary vary : {Vary::kSeed, Vary::kPosition, Vary::kSample}) {
    EXPECT_LT(excess(frequencies(logits, rule, vary), target(logits, rule)), 0) << static_cast<int>(vary);
  }
}

TEST_F(StatisticsTest, DrawsFollowTemperatureAndFilters) {
  std::mt19937_64 random(42);
  std::vector<float> logits = random_logits(80, 2.0f, random);
  SamplingRule rule;
  rule.temperature = 0.7f;
  EXPECT_LT(excess(frequencies(logits, rule, Vary::kSeed), target(logits, rule)), 0);
  rule.top_k = 20;
  EXPECT_LT(excess(frequencies(logits, rule, Vary::kSeed), target(logits, rule)), 0);
  rule.top_p = 0.9f;
  EXPECT_LT(excess(frequencies(logits, rule, Vary::kSeed), target(logits, rule)), 0);
  rule.top_k = 0;
  rule.top_p = 1;
  rule.min_p = 0.05f;
  EXPECT_LT(excess(frequencies(logits, rule, Vary::kSeed), target(logits, rule)), 0);
}

TEST_F(StatisticsTest, APlantedBiasIsFound) {
  std::mt19937_64 random(43);
  std::vector<float> logits = random_logits(60, 1.5f, random);
  const std::vector<double> honest = target(logits, {});
  logits[7] += 0.2f;
  EXPECT_GT(excess(frequencies(logits, {}, Vary::kSeed), target(logits, {})), -200);
  EXPECT_LT(excess(frequencies(logits, {}, Vary::kSeed), target(logits, {})), 0);
  std::vector<float>& biased = logits;
  const auto likely = std::max_element(biased.begin(), biased.end());
  *likely += 0.15f;  // fifteen per cent in the odds of the likeliest token
  EXPECT_GT(excess(frequencies(biased, {}, Vary::kSeed), honest), 0);
}

TEST_F(StatisticsTest, NeighbouringPositionsAreIndependent) {
  // Pairs of successive draws over 6 tokens: 36 cells against the product of the marginals.
  std::vector<float> logits = {0.1f, 0.5f, -0.3f, 0.9f, 0.0f, 0.4f};
  const std::vector<double> single = target(logits, {});
  std::vector<int> counts(36, 0);
  std::vector<double> expected;
  for (const double a : single) {
    for (const double b : single) expected.push_back(a * b);
  }
  for (int i = 0; i < kDraws; ++i) {
    TokenId pair[2];
    for (int step = 0; step < 2; ++step) {
      TreeCase problem({0}, {-1}, {});
      problem.tree.rule.seed = static_cast<std::uint64_t>(i);
      problem.tree.root_position = step;
      sampler_.accept({{logits.data(), DType::kFloat32, 1, 6, 6}, &problem.tree, &problem.result, 1});
      pair[step] = problem.sampled[0].token;
    }
    counts[static_cast<std::size_t>(pair[0] * 6 + pair[1])] += 1;
  }
  EXPECT_LT(excess(counts, expected), 0);
}

}  // namespace
}  // namespace fastspec::test
