// See calibration.h.
#include "budget/calibration.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace fastspec {

namespace {

constexpr int kWarmUpLabels = 64;
constexpr int kWindow = 2048;
constexpr double kPriorOfAll = 2;
constexpr double kPriorOfDepth = 4;
constexpr int kBins = 15;
constexpr int kPredictions = 8192;  // kept for the reliability

using Weights = ChanceFit::Weights;

constexpr float kLeast = 1e-4f;  // confidences nearer to 0 or 1 count as this
constexpr std::uint32_t kFirstPlace = std::bit_cast<std::uint32_t>(0x1p-14f);  // below kLeast
constexpr int kCellBits = 20;                                                  // of 23: eight cells a power of two

Weights features(float confidence) {
  if (std::isnan(confidence)) return {1, 0, 0};
  const auto c = static_cast<double>(std::clamp(confidence, kLeast, 1 - kLeast));
  return {1, std::log(c), -std::log1p(-c)};
}

double dot(const Weights& a, const Weights& b) {
  return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

/// log(1 + exp(x))
double softplus(double x) {
  return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
}

/// Solves a symmetric positive definite system by elimination.
Weights solve(std::array<Weights, 3> matrix, Weights right) {
  for (int i = 0; i < 3; ++i) {
    for (int row = i + 1; row < 3; ++row) {
      const double factor = matrix[row][i] / matrix[i][i];
      for (int column = i; column < 3; ++column) matrix[row][column] -= factor * matrix[i][column];
      right[row] -= factor * right[i];
    }
  }
  Weights result{};
  for (int i = 2; i >= 0; --i) {
    double value = right[i];
    for (int column = i + 1; column < 3; ++column) value -= matrix[i][column] * result[column];
    result[i] = value / matrix[i][i];
  }
  return result;
}

}  // namespace

std::vector<ReliabilityBin> reliability(std::span<const Prediction> predictions, int num_bins) {
  std::vector<Prediction> sorted(predictions.begin(), predictions.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.chance < b.chance; });
  std::vector<ReliabilityBin> bins;
  const std::size_t count = sorted.size();
  const auto wanted = std::min(static_cast<std::size_t>(num_bins), count);
  for (std::size_t bin = 0; bin < wanted; ++bin) {
    const std::size_t begin = bin * count / wanted;
    const std::size_t end = (bin + 1) * count / wanted;
    ReliabilityBin& result = bins.emplace_back();
    result.count = static_cast<std::int64_t>(end - begin);
    for (std::size_t i = begin; i < end; ++i) {
      result.predicted += static_cast<double>(sorted[i].chance) / static_cast<double>(result.count);
      result.observed += (sorted[i].accepted ? 1.0 : 0.0) / static_cast<double>(result.count);
    }
  }
  return bins;
}

double calibration_error(std::span<const ReliabilityBin> bins) {
  double error = 0;
  double mass = 0;
  for (const ReliabilityBin& bin : bins) {
    error += static_cast<double>(bin.count) * std::abs(bin.predicted - bin.observed);
    mass += static_cast<double>(bin.count);
  }
  return mass > 0 ? error / mass : 0;
}

ChanceFit::ChanceFit(int window, double prior_strength) : window_(window), prior_strength_(prior_strength) {
  draw_curve();
}

void ChanceFit::draw_curve() {
  for (int i = 0; i <= Curve::kCells; ++i) {
    // Places are dense near 0, and mirrored near 1, where the curve is steep.
    const float place = std::bit_cast<float>(kFirstPlace + (static_cast<std::uint32_t>(i) << kCellBits));
    curve_.low[i] = static_cast<float>(sigmoid(dot(weights_, features(place))));
    curve_.high[i] = static_cast<float>(sigmoid(dot(weights_, features(1 - place))));
  }
  curve_.unknown = static_cast<float>(sigmoid(weights_[0]));
}

float ChanceFit::chance(float confidence) const {
  if (std::isnan(confidence)) return curve_.unknown;
  const float within = std::clamp(confidence, kLeast, 1 - kLeast);
  const bool is_high = within > 0.5f;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(is_high ? 1 - within : within) - kFirstPlace;
  const std::uint32_t cell = std::min<std::uint32_t>(bits >> kCellBits, Curve::kCells - 1);
  const float beyond = static_cast<float>(bits - (cell << kCellBits)) / (1u << kCellBits);
  const auto& curve = is_high ? curve_.high : curve_.low;
  return curve[cell] + beyond * (curve[cell + 1] - curve[cell]);
}

void ChanceFit::add(float confidence, bool accepted) {
  if (num_labels() < window_) {
    labels_.push_back({features(confidence), accepted});
  } else {
    labels_[next_] = {features(confidence), accepted};
    next_ = (next_ + 1) % labels_.size();
  }
  ++num_new_;
}

void ChanceFit::refit_when_due(const Weights& prior) {
  constexpr int kLeastNew = 32;
  // A full window is fitted anew when all of it is new: a large batch fills a quarter in every step.
  const int due = num_labels() < window_ ? num_labels() / 4 : window_;
  if (num_new_ < std::max(kLeastNew, due)) return;
  num_new_ = 0;
  is_fitted_ = true;
  constexpr int kSteps = 12;
  for (int step = 0; step < kSteps && improve(prior); ++step) continue;
  draw_curve();
}

double ChanceFit::loss(const Weights& weights, const Weights& prior) const {
  double loss = 0;
  for (int i = 0; i < 3; ++i) loss += 0.5 * prior_strength_ * (weights[i] - prior[i]) * (weights[i] - prior[i]);
  for (const Label& label : labels_) {
    const double score = dot(weights, label.features);
    loss += softplus(label.accepted ? -score : score);
  }
  return loss;
}

bool ChanceFit::improve(const Weights& prior) {
  std::array<Weights, 3> curvature{};
  Weights slope{};
  for (int i = 0; i < 3; ++i) {
    curvature[i][i] = prior_strength_;
    slope[i] = prior_strength_ * (weights_[i] - prior[i]);
  }
  for (const Label& label : labels_) {
    const Weights& x = label.features;
    const double p = sigmoid(dot(weights_, x));
    for (int i = 0; i < 3; ++i) {
      slope[i] += (p - (label.accepted ? 1.0 : 0.0)) * x[i];
      for (int k = 0; k < 3; ++k) curvature[i][k] += p * (1 - p) * x[i] * x[k];
    }
  }
  const Weights step = solve(curvature, slope);
  const double before = loss(weights_, prior);
  constexpr double kEnough = 1e-4;
  for (double length = 1; length > 1e-3; length /= 2) {
    Weights next = weights_;
    for (int i = 0; i < 3; ++i) next[i] -= length * step[i];
    const double after = loss(next, prior);
    if (!(after < before)) continue;  // too far for the curvature to hold
    weights_ = next;
    return before - after > kEnough * before;
  }
  return false;
}

Calibration::Calibration()
    : fits_{Fits{ChanceFit(kWindow, kPriorOfAll), std::vector<ChanceFit>(kDepths, {kWindow, kPriorOfDepth})},
            Fits{ChanceFit(kWindow, kPriorOfAll), std::vector<ChanceFit>(kDepths, {kWindow, kPriorOfDepth})}} {}

bool Calibration::is_fitted(bool sampled) const {
  return fits_[sampled].all.num_labels() >= kWarmUpLabels;
}

float Calibration::chance(const Fits& fits, float confidence, int depth) const {
  const ChanceFit& own = fits.by_depth[std::min(depth, kDepths) - 1];
  return (own.is_fitted() ? own : fits.all).chance(confidence);
}

void Calibration::chances(const TokenTree& tree, bool sampled, std::vector<float>& result) const {
  result = tree.confidence;
  if (!is_fitted(sampled)) return;
  const std::vector<int> depths = tree.depths();
  for (int node = 1; node < tree.num_nodes(); ++node) {
    result[node] = chance(fits_[sampled], tree.confidence[node], depths[node]);
  }
}

void Calibration::observe(const TokenTree& tree, std::span<const int> path, bool sampled) {
  if (tree.num_drafted() == 0) return;
  const bool was_fitted = is_fitted(sampled);
  Fits& fits = fits_[sampled];
  const std::vector<int> depths = tree.depths();
  const auto accepted_at = [&](int depth) {
    return depth == 0 ? 0 : depth <= static_cast<int>(path.size()) ? path[depth - 1] : -1;
  };
  for (int node = 1; node < tree.num_nodes(); ++node) {
    const int depth = depths[node];
    if (accepted_at(depth - 1) != tree.parents[node]) continue;  // its path was not accepted: no label
    const float confidence = tree.confidence[node];
    const bool accepted = accepted_at(depth) == node;
    if (was_fitted) note(chance(fits, confidence, depth), confidence, accepted);
    fits.all.add(confidence, accepted);
    ChanceFit& own = fits.by_depth[std::min(depth, kDepths) - 1];
    own.add(confidence, accepted);
    own.refit_when_due(fits.all.weights());
  }
  fits.all.refit_when_due(ChanceFit::kIdentity);
}

void Calibration::note(float fitted, float raw, bool accepted) {
  const Prediction fitted_now{fitted, accepted};
  const Prediction raw_now{std::isnan(raw) ? 1.0f : std::clamp(raw, 0.0f, 1.0f), accepted};
  if (fitted_.size() < kPredictions) {
    fitted_.push_back(fitted_now);
    raw_.push_back(raw_now);
  } else {
    fitted_[next_] = fitted_now;
    raw_[next_] = raw_now;
    next_ = (next_ + 1) % kPredictions;
  }
  if (++num_noted_ < bins_due_) return;
  bins_due_ = num_noted_ + std::min(num_noted_, kPredictions);  // sorting them takes a millisecond
  fitted_bins_ = reliability(fitted_, kBins);
  raw_bins_ = reliability(raw_, kBins);
}

}  // namespace fastspec
