// See synthetic_drafter.h.
#include "engine/synthetic_drafter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace fastspec {
namespace {

constexpr TokenId kNeverDrawn = SyntheticDrafter::kDrawn + 1;
constexpr double kGoldenRatio = 0.6180339887498949;

/// The place below which a standard normal variable lies with this probability.
double normal_quantile(double probability) {
  double low = -10, high = 10;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::numbers::sqrt2) / 2 < probability ? low : high) = middle;
  }
  return low;
}

}  // namespace

SyntheticDrafter::SyntheticDrafter(const Options& options, std::unique_ptr<Drafter> inner)
    : options_(options), inner_(std::move(inner)) {
  if (options.ranking_power > 0) separation_ = std::numbers::sqrt2 * normal_quantile(options.ranking_power);
}

std::string SyntheticDrafter::name() const {
  return inner_ ? "synthetic behind " + inner_->name() : "synthetic";
}

float SyntheticDrafter::confidence(bool is_accepted) {
  if (options_.ranking_power == 0) return std::numeric_limits<float>::quiet_NaN();
  // Scores are normal around 0 where a token is refused, around the separation where it is accepted. The chance is
  // Bayes' of the score, with the odds of all tokens that get a verdict: `acceptance` yes to one no in a step.
  const double score = std::normal_distribution<double>(is_accepted ? separation_ : 0, 1)(random_);
  const double odds = std::max(options_.acceptance, 1e-3) * std::exp(separation_ * (score - separation_ / 2));
  return static_cast<float>(odds / (1 + odds));
}

void SyntheticDrafter::draft(std::span<const DraftRequest> requests, std::span<TokenTree> trees) {
  if (inner_) {
    discarded_.assign(trees.begin(), trees.end());
    inner_->draft(requests, discarded_);
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const int round = rounds_[requests[i].seq]++;
    // Sequences are out of step with one another, so that a step of a batch costs much the same as the next.
    const double phase = std::fmod(kGoldenRatio * static_cast<double>(std::abs(requests[i].seq)), 1.0);
    const double before = std::floor(phase + options_.acceptance * round);
    const int accepted = static_cast<int>(std::floor(phase + options_.acceptance * (round + 1)) - before);
    const int rows = std::min({options_.rows, requests[i].max_drafted, requests[i].max_depth});
    for (int depth = 0; depth < rows; ++depth) {
      // Behind the first refused token there is no verdict: such tokens look like any.
      const bool looks_good =
          depth < accepted ||
          (depth > accepted && random_() % 1024 < 1024 * options_.acceptance / (1 + options_.acceptance));
      trees[i].add(depth < accepted ? kDrawn : kNeverDrawn, depth, confidence(looks_good));
    }
  }
}

void SyntheticDrafter::observe(std::span<const Observation> observations) {
  if (inner_) inner_->observe(observations);
}

void SyntheticDrafter::truncate(SeqId seq, int length) {
  if (inner_) inner_->truncate(seq, length);
}

void SyntheticDrafter::forget(SeqId seq) noexcept {
  rounds_.erase(seq);
  if (inner_) inner_->forget(seq);
}

void SyntheticDrafter::share(SeqId from, SeqId to, int length) {
  if (inner_) inner_->share(from, to, length);
}

void SyntheticDrafter::start_on_noise(SeqId seq, int length) {
  if (inner_) inner_->start_on_noise(seq, length);
}

void SyntheticDrafter::record_graphs(int max_sequences) {
  if (inner_) inner_->record_graphs(max_sequences);
}

}  // namespace fastspec
