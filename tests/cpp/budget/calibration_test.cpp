// Confidence as a chance: the fit, which tokens carry a label, and how well a drafter that is miscalibrated on purpose
// is corrected.
#include "budget/calibration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <random>

namespace fastspec::test {
namespace {

constexpr int kDepth = 8;

/// Proposes chains; what it says of a token and how often the target takes it are two things.
class Miscalibrated {
 public:
  explicit Miscalibrated(unsigned seed) : random_(seed) {}

  /// Drafts a chain and lets the target walk it. The calibration learns what came, or, where predictions are asked for,
  /// they are appended and it learns nothing.
  void step(Calibration& calibration, std::vector<Prediction>* fitted = nullptr,
            std::vector<Prediction>* raw = nullptr) {
    TokenTree tree(0);
    std::vector<int> path;
    for (int depth = 1; depth <= kDepth; ++depth) {
      const double chance = std::pow(uniform(), 0.7);
      // Overconfident, and more so near the root.
      tree.add(depth, depth - 1, static_cast<float>(std::pow(chance, depth < 4 ? 0.4 : 0.7)));
      if (static_cast<int>(path.size()) == depth - 1 && uniform() < chance) path.push_back(depth);
    }
    std::vector<float> chances;
    calibration.chances(tree, false, chances);
    const int num_known = std::min(kDepth, static_cast<int>(path.size()) + 1);
    for (int node = 1; node <= num_known && fitted != nullptr; ++node) {
      const bool accepted = node <= static_cast<int>(path.size());
      fitted->push_back({chances[static_cast<std::size_t>(node)], accepted});
      raw->push_back({tree.confidence[static_cast<std::size_t>(node)], accepted});
    }
    num_labels += num_known;
    if (fitted == nullptr) calibration.observe(tree, path, false);
  }
  int num_labels = 0;

 private:
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  std::mt19937_64 random_;
};

TEST(CalibrationTest, TwoThousandTokensAreEnough) {
  for (unsigned seed = 1; seed <= 5; ++seed) {
    Calibration calibration;
    Miscalibrated drafter(seed);
    while (drafter.num_labels < 2000) drafter.step(calibration);
    std::vector<Prediction> fitted, raw;
    while (fitted.size() < 20000) drafter.step(calibration, &fitted, &raw);
    EXPECT_LE(calibration_error(reliability(fitted, 15)), 0.03) << "seed " << seed;
    EXPECT_GE(calibration_error(reliability(raw, 15)), 0.12) << "the drafter is miscalibrated";
  }
}

TEST(CalibrationTest, OnlyChildrenOfAcceptedTokensCarryALabel) {
  Calibration calibration;
  TokenTree tree(0);
  tree.add(1, 0, 0.9f);
  tree.add(2, 0, 0.1f);
  tree.add(3, 2, 0.9f);
  tree.add(4, 1, 0.9f);  // below a token that was refused: no label
  const int path[] = {2};
  // Sixty-four labels are needed; a step gives three: nodes 1, 2 and 3.
  for (int i = 0; i < 21; ++i) calibration.observe(tree, path, true);
  EXPECT_FALSE(calibration.is_fitted(true));
  calibration.observe(tree, path, true);
  EXPECT_TRUE(calibration.is_fitted(true));
  EXPECT_FALSE(calibration.is_fitted(false)) << "a temperature class has its own fit";
  std::vector<float> chances;
  calibration.chances(tree, true, chances);
  EXPECT_LT(chances[1], 0.2f);
  EXPECT_GT(chances[2], 0.8f);
  EXPECT_LT(chances[3], 0.2f) << "another depth: the same confidence was refused there";
  calibration.chances(tree, false, chances);
  EXPECT_EQ(chances, tree.confidence) << "as long as nothing is known the drafter's word counts";
}

TEST(CalibrationTest, AMissingConfidenceLearnsTheShareOfItsDepth) {
  Calibration calibration;
  TokenTree tree(0);
  tree.add(1, 0);
  tree.add(2, 1);
  const std::vector<int> both = {1, 2}, one = {1};
  for (int i = 0; i < 400; ++i) calibration.observe(tree, i % 4 == 0 ? both : one, false);
  std::vector<float> chances;
  calibration.chances(tree, false, chances);
  EXPECT_NEAR(chances[1], 1.0f, 0.05f);
  EXPECT_NEAR(chances[2], 0.25f, 0.05f);
}

TEST(CalibrationTest, AFitForgetsWhatIsLongPast) {
  ChanceFit fit(500, 2);
  for (int i = 0; i < 1000; ++i) {
    fit.add(0.8f, true);
    fit.refit_when_due(ChanceFit::kIdentity);
  }
  EXPECT_GT(fit.chance(0.8f), 0.95f);
  for (int i = 0; i < 1000; ++i) {
    fit.add(0.8f, false);
    fit.refit_when_due(ChanceFit::kIdentity);
  }
  EXPECT_LT(fit.chance(0.8f), 0.05f);
  EXPECT_EQ(fit.num_labels(), 500);
}

TEST(CalibrationTest, TheCurveIsTheLogistic) {
  ChanceFit fit(2000, 2);
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(0, 1);
  for (int i = 0; i < 2000; ++i) {
    const float confidence = std::pow(uniform(random), 3.0f);
    fit.add(confidence, uniform(random) < std::sqrt(confidence) * 0.9f);
    fit.refit_when_due(ChanceFit::kIdentity);
  }
  const ChanceFit::Weights& weights = fit.weights();
  EXPECT_NE(weights, ChanceFit::kIdentity);
  float before = 0;
  for (int i = 0; i <= 100000; ++i) {
    const float confidence = static_cast<float>(i) * 1e-5f;
    const double inside = std::clamp(static_cast<double>(confidence), 1e-4, 1 - 1e-4);
    const double score = weights[0] + weights[1] * std::log(inside) - weights[2] * std::log1p(-inside);
    const float chance = fit.chance(confidence);
    ASSERT_NEAR(chance, 1 / (1 + std::exp(-score)), 2e-3) << confidence;
    ASSERT_GE(chance, before) << confidence;
    before = chance;
  }
}

TEST(CalibrationTest, ExtremeConfidencesStayChances) {
  ChanceFit fit(100, 2);
  std::mt19937 random(3);
  const float extremes[] = {
      0.0f, 1.0f, -1.0f, 2.0f, 1e-30f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()};
  for (int i = 0; i < 300; ++i) {
    fit.add(extremes[random() % std::size(extremes)], random() % 2 == 0);
    fit.refit_when_due(ChanceFit::kIdentity);
    for (const float confidence : extremes) {
      EXPECT_GE(fit.chance(confidence), 0.0f);
      EXPECT_LE(fit.chance(confidence), 1.0f);
    }
  }
}

TEST(ReliabilityTest, BinsAreOfEqualMassAndTheErrorIsTheirDistance) {
  std::vector<Prediction> predictions;
  for (int i = 0; i < 100; ++i) predictions.push_back({i < 50 ? 0.25f : 0.75f, i % 2 == 0});
  const std::vector<ReliabilityBin> bins = reliability(predictions, 2);
  ASSERT_EQ(bins.size(), 2u);
  EXPECT_EQ(bins[0].count, 50);
  EXPECT_DOUBLE_EQ(bins[0].predicted, 0.25);
  EXPECT_NEAR(bins[1].observed, 0.5, 1e-12);
  EXPECT_NEAR(calibration_error(bins), 0.25, 1e-12);
  EXPECT_EQ(reliability(std::span(predictions).first(3), 15).size(), 3u);
  EXPECT_TRUE(reliability({}, 15).empty());
  EXPECT_EQ(calibration_error({}), 0.0);
}

}  // namespace
}  // namespace fastspec::test
