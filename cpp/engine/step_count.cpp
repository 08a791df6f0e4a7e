// See step_count.h.
#include "engine/step_count.h"

#include <algorithm>
#include <cmath>

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

void count_sparse(const SequencePlan& planned, int confirmed, float mass, std::int64_t kv_bytes_per_token,
                  SparseStats& stats) {
  const bool is_sparse = planned.kv_mode == KvMode::kSparse;
  ++(is_sparse ? stats.sparse_passes : stats.dense_passes);
  stats.refreshes += planned.refreshes && planned.samples ? 1 : 0;  // the last chunk
  stats.kv_bytes_read += (is_sparse ? planned.num_slots : planned.first_position) * kv_bytes_per_token;
  stats.kv_bytes_dense += planned.first_position * kv_bytes_per_token;
  stats.confirmed_tokens += confirmed;
  stats.taken_back_tokens += planned.num_provisional - confirmed;
  if (std::isnan(mass)) return;
  ++stats.mass_passes;
  stats.mass_sum += mass;
}

}  // namespace

void count(const Step& step, std::size_t kv_bytes_per_token, EngineStats& stats) {
  ++stats.steps;
  stats.rows += step.num_rows;
  stats.drafted_tokens += step.num_drafted;
  for (int i = 0; i < step.size(); ++i) {
    if (step.sequences[i] == nullptr) continue;
    const SequencePlan& planned = step.plan.sequences[i];
    OutputStats& own = step.sequences[i]->stats;
    const bool is_shown =
        planned.kv_mode == KvMode::kDense || step.sequences[i]->request().guarantee == Guarantee::kSparse;
    const auto committed = is_shown ? static_cast<std::int64_t>(step.acceptances[i].tokens.size()) : 0;
    stats.generated_tokens += committed;
    // A refresh is what decoding by sparse passes costs.
    if (!planned.is_decoding && !planned.refreshes) {
      stats.prompt_rows += planned.num_known_rows;
      continue;
    }
    const int confirmed = std::min(step.acceptances[i].num_drafts_accepted, planned.num_provisional);
    for (SparseStats* sparse : {&own.sparse, &stats.sparse}) {
      count_sparse(planned, confirmed, step.masses[i], static_cast<std::int64_t>(kv_bytes_per_token), *sparse);
    }
    const int num_drafted = step.trees[i].num_drafted() - planned.num_provisional;
    const std::int64_t num_accepted = step.acceptances[i].num_drafts_accepted - confirmed;
    own.decoding_passes += is_shown ? 1 : 0;
    stats.decoding_passes += is_shown ? 1 : 0;
    own.decoding_tokens += committed;
    stats.decoding_tokens += committed;
    own.drafted_tokens += num_drafted;
    stats.verified_tokens += num_drafted;
    own.accepted_tokens += num_accepted;
    stats.accepted_tokens += num_accepted;
    // Behind provisional tokens a draft may not have been reached.
    if (num_drafted > 0 && planned.num_provisional == 0) count_by_position(step.trees[i], num_accepted, stats);
  }
}

}  // namespace fastspec
