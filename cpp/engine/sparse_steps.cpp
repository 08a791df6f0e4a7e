// See sparse_steps.h.
#include "engine/sparse_steps.h"

#include <algorithm>

namespace fastspec {

int SparseSteps::longest_run(const EngineConfig& config, int max_nodes) {
  const SparseConfig& sparse = config.sparse;
  if (!sparse.enabled() || sparse.guarantee != Guarantee::kExact) return 0;
  constexpr int kLongestRun = 32;  // behind which a dense pass costs more by its rows
  const int wanted = sparse.refresh_interval > 0 ? sparse.refresh_interval : kLongestRun;
  // All sequences may have their dense pass at once, and a tree has a mask's width of rows.
  return std::min({wanted, config.max_batch_rows / config.max_num_seqs - 1, 64 * kMaskWords - 1 - max_nodes});
}

void SparseSteps::decide(std::span<const std::unique_ptr<Sequence>> running, const PagedKvCache& kv,
                         const CostModel& cost) const {
  if (selector_ == nullptr) return;
  const auto num_running = static_cast<int>(
      std::count_if(running.begin(), running.end(), [](const auto& sequence) { return !sequence->request().hold; }));
  for (const auto& sequence : running) {
    SparseRecord& record = sequence->sparse;
    const SeqId seq = sequence->id();
    const int keys = kv.kv_len(seq);
    record.next = KvMode::kDense;
    record.refreshes = record.refreshes && sequence->len() - keys > 1;  // in chunks
    const bool decodes = sequence->len() - keys == 1 && sequence->num_generated() > 0;
    if (!decodes || !sequence->request().wants_sparse) continue;
    if (bypass_ && keys <= config_.kv_budget) continue;
    const int unrefreshed = keys - kv.dense_len(seq);
    const bool refreshes = sequence->request().guarantee == Guarantee::kSparse && config_.refresh_interval > 0;
    if (refreshes && unrefreshed >= config_.refresh_interval) {
      record.refreshes = true;
    } else if (!is_dense_due(*sequence, keys, num_running, cost)) {
      record.next = KvMode::kSparse;
    }
  }
}

bool SparseSteps::is_dense_due(const Sequence& sequence, int keys, int num_running, const CostModel& cost) const {
  if (sequence.sparse.dense_is_due || !selector_->is_ready(sequence.id())) return true;
  if (sequence.request().guarantee == Guarantee::kSparse) return false;
  int run = std::min(config_.refresh_interval, max_provisional_);
  if (config_.refresh_interval == 0) {
    const bool has_costs = !cost.parameters().linear.counts.empty();
    const auto prices = has_costs ? prices_of(keys, num_running, cost) : run_.measured_prices(keys);
    run = run_.choose(sequence.sparse.agreement, prices, max_provisional_);
  }
  return sequence.num_provisional() >= run;
}

PassPrices SparseSteps::prices_of(int keys, int num_running, const CostModel& cost) const {
  StepLoad sparse;
  for (int i = 0; i < num_running; ++i) cost.add_sequence(1, std::min(keys, config_.kv_budget), sparse);
  StepLoad dense = sparse;
  cost.add_sequence(1, keys, dense);
  const double whole = cost.pass_milliseconds(sparse);
  const double share = whole / num_running;
  // Rows of runs, which end together where they began together.
  constexpr int kRun = 8;
  StepLoad longer;
  for (int i = 0; i < num_running; ++i) cost.add_sequence(1 + kRun, std::min(keys, config_.kv_budget), longer);
  const double row = std::max(0.0, cost.pass_milliseconds(longer) - whole) / (kRun * num_running);
  // What a sequence more that reads all its keys adds, but never less than a sparse one's share.
  return {.sparse = share, .dense = std::max(share, cost.pass_milliseconds(dense) - whole), .row = row};
}

void SparseSteps::observe(const Step& step) {
  if (selector_ == nullptr) return;
  double dense_keys = 0, provisional_rows = 0;
  bool decodes = true;
  for (int i = 0; i < step.size(); ++i) {
    const SequencePlan& planned = step.plan.sequences[i];
    const bool is_sparse = planned.kv_mode == KvMode::kSparse;
    decodes = decodes && planned.is_decoding;
    if (!is_sparse) dense_keys += planned.first_position;
    provisional_rows += planned.num_provisional;
    Sequence* sequence = step.sequences[i];
    if (sequence == nullptr) continue;
    // A mass that is not known is not too small.
    sequence->sparse.dense_is_due = is_sparse && (step.acceptances[i].needs_dense || step.masses[i] < config_.min_mass);
    if (planned.is_decoding && sequence->request().wants_sparse) {
      observe_sequence(planned, step.acceptances[i], sequence->sparse);
    }
  }
  if (decodes && step.seconds > 0 && !step.warms_up) {
    run_.observe_step(step.seconds, step.size(), dense_keys, provisional_rows);
  }
}

void SparseSteps::observe_sequence(const SequencePlan& planned, const Acceptance& acceptance, SparseRecord& record) {
  const int tokens = static_cast<int>(acceptance.tokens.size());
  if (planned.kv_mode == KvMode::kSparse) {
    run_.observe_sparse_pass(tokens);
    return;
  }
  const int confirmed = std::min(acceptance.num_drafts_accepted, planned.num_provisional);
  const bool parted = confirmed < planned.num_provisional && acceptance.finish == FinishReason::kNone;
  if (planned.num_provisional > 0) {
    run_.observe_run(confirmed, parted, record.agreement);
  } else if (planned.first_position > config_.kv_budget) {
    run_.observe_pause(record.agreement);
  }
  if (!parted) run_.observe_dense_pass(tokens - confirmed);
}

}  // namespace fastspec
