// See step_count.h.
#include "engine/step_count.h"

#include <algorithm>

namespace fastspec {

namespace {

void count_by_position(const TokenTree& tree, std::int64_t num_accepted, EngineStats& stats) {
  const std::vector<int> depths = tree.depths();
  const std::size_t depth = *std::max_element(depths.begin(), depths.end());
  if (stats.offered_by_position.size() < depth) {
    stats.offered_by_position.resize(depth, 0);
    stats.accepted_by_position.resize(depth, 0);
  }
  for (std::size_t d = 0; d < depth; ++d) ++stats.offered_by_position[d];
  for (std::int64_t d = 0; d < num_accepted; ++d) ++stats.accepted_by_position[d];
}

}  // namespace

void count(const Step& step, EngineStats& stats) {
  ++stats.steps;
  stats.rows += step.num_rows;
  stats.drafted_tokens += step.num_drafted;
  for (int i = 0; i < step.size(); ++i) {
    if (step.sequences[i] == nullptr) continue;
    const SequencePlan& planned = step.plan.sequences[i];
    OutputStats& own = step.sequences[i]->stats;
    const auto committed = static_cast<std::int64_t>(step.acceptances[i].tokens.size());
    stats.generated_tokens += committed;
    if (!planned.is_decoding) {
      stats.prompt_rows += planned.num_known_rows;
      continue;
    }
    const int num_drafted = step.trees[i].num_drafted();
    const std::int64_t num_accepted = step.acceptances[i].num_drafts_accepted;
    ++own.decoding_passes;
    ++stats.decoding_passes;
    own.decoding_tokens += committed;
    stats.decoding_tokens += committed;
    own.drafted_tokens += num_drafted;
    stats.verified_tokens += num_drafted;
    own.accepted_tokens += num_accepted;
    stats.accepted_tokens += num_accepted;
    if (num_drafted > 0) count_by_position(step.trees[i], num_accepted, stats);
  }
}

}  // namespace fastspec
