// See synthetic_drafter.h.
#include "engine/synthetic_drafter.h"

#include <algorithm>
#include <cmath>

namespace fastspec {
namespace {

constexpr TokenId kNeverDrawn = SyntheticDrafter::kDrawn + 1;
constexpr double kGoldenRatio = 0.6180339887498949;

}  // namespace

void SyntheticDrafter::draft(std::span<const DraftRequest> requests, std::span<TokenTree> trees) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const int round = rounds_[requests[i].seq]++;
    // Sequences are out of step with one another, so that a step of a batch costs much the same as the next.
    const double phase = std::fmod(kGoldenRatio * static_cast<double>(requests[i].seq), 1.0);
    const double before = std::floor(phase + acceptance_ * round);
    const int accepted = static_cast<int>(std::floor(phase + acceptance_ * (round + 1)) - before);
    const int rows = std::min(rows_, requests[i].max_drafted);
    for (int depth = 0; depth < rows; ++depth) trees[i].add(depth < accepted ? kDrawn : kNeverDrawn, depth);
  }
}

}  // namespace fastspec
