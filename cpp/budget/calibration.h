// A drafter's confidence as a chance: P(token accepted | its path before was accepted), learned from what the target
// accepted. One fit for each depth of the draft and temperature class (greedy, sampled); a drafter has its own object.
#pragma once

#include <fastspec/engine.h>

#include <array>
#include <span>
#include <vector>

#include "step/token_tree.h"

namespace fastspec {

/// One drafted token whose fate is known.
struct Prediction {
  float chance = 0;
  bool accepted = false;
};

/// Bins of equal mass, by chance. At most `num_bins`; fewer where there are fewer predictions.
std::vector<ReliabilityBin> reliability(std::span<const Prediction> predictions, int num_bins);
/// Expected calibration error: mean distance between what bins predicted and what was observed, by mass.
double calibration_error(std::span<const ReliabilityBin> bins);

/// Logistic on the logarithms of a confidence and of what it lacks to 1 (beta calibration: Kull et al., AISTATS 2017),
/// with a Gaussian prior. Its family holds the identity.
class ChanceFit {
 public:
  using Weights = std::array<double, 3>;  // of 1, log c, -log(1 - c)
  static constexpr Weights kIdentity = {0, 1, 1};

  /// @param window labels kept, the latest; `prior_strength` as if that many labels of unit weight spoke for the prior.
  ChanceFit(int window, double prior_strength);

  /// NaN is a confidence that the drafter does not have: its chance is that of all tokens alike.
  float chance(float confidence) const;
  void add(float confidence, bool accepted);
  /// Fits again where enough has come since the last time.
  void refit_when_due(const Weights& prior);
  const Weights& weights() const { return weights_; }
  int num_labels() const { return static_cast<int>(labels_.size()); }
  /// Whether the weights have been fitted to anything.
  bool is_fitted() const { return is_fitted_; }

 private:
  struct Label {
    Weights features;
    bool accepted;
  };
  /// Values of the fitted curve, which chance() draws lines between: a step asks for thousands.
  struct Curve {
    static constexpr int kCells = 104;  // of each half of 0 to 1, eight to each power of two
    std::array<float, kCells + 1> low{}, high{};
    float unknown = 0;
  };
  void draw_curve();
  double loss(const Weights& weights, const Weights& prior) const;
  /// A Newton step from the current weights; false when it gains nothing.
  bool improve(const Weights& prior);

  int window_;
  double prior_strength_;
  std::vector<Label> labels_;  // a ring, once it is full
  std::size_t next_ = 0;
  int num_new_ = 0;
  bool is_fitted_ = false;
  Weights weights_ = kIdentity;
  Curve curve_;
};

class Calibration {
 public:
  Calibration();
  /// Chances of a tree's nodes, [num_nodes]; the drafter's own confidences as long as nothing is fitted.
  void chances(const TokenTree& tree, bool sampled, std::vector<float>& result) const;
  /// True when enough labels of this temperature class have come. Until then every row should be verified.
  bool is_fitted(bool sampled) const;
  /// Learns the fate of a verified tree: of the children of accepted nodes. @param path accepted nodes in order.
  void observe(const TokenTree& tree, std::span<const int> path, bool sampled);

  /// Of the latest verified tokens: by chance as it was predicted then, and by the drafter's confidence.
  const std::vector<ReliabilityBin>& fitted_reliability() const { return fitted_bins_; }
  const std::vector<ReliabilityBin>& raw_reliability() const { return raw_bins_; }

 private:
  static constexpr int kDepths = 16;  // deeper tokens share the last one's fit
  struct Fits {
    ChanceFit all;  // of every depth; the prior of the depths' own
    std::vector<ChanceFit> by_depth;
  };
  float chance(const Fits& fits, float confidence, int depth) const;
  void note(float fitted, float raw, bool accepted);

  std::array<Fits, 2> fits_;  // greedy, sampled
  std::vector<Prediction> fitted_, raw_;
  std::size_t next_ = 0;
  int num_noted_ = 0;
  int bins_due_ = 64;  // at this many
  std::vector<ReliabilityBin> fitted_bins_, raw_bins_;
};

}  // namespace fastspec
