// The part of EngineCore that knows what steps cost: from the cache, or measured.
#include <fastspec/version.h>

#include <sstream>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "engine/engine_core.h"

namespace fastspec {

CostCache EngineCore::cost_cache() const {
  const ModelConfig& model = parts_.model;
  const DraftShape shape = parts_.drafter->shape();
  std::ostringstream key;
  key << "fastspec " << version() << "; " << config_.device.substr(0, config_.device.find(':')) << " "
      << (config_.device == "cpu:reference" ? "reference " : "") << parts_.backend.device->model_name();
  if (!parts_.backend.device->has_graphs()) {
    const int threads = config_.num_threads > 0 ? config_.num_threads : int(std::thread::hardware_concurrency());
    key << ", " << threads << " threads";
  }
  key << "; " << model.architecture << " " << to_string(parts_.dtype) << ", layers " << model.num_layers << ", hidden "
      << model.hidden_size << ", intermediate " << model.intermediate_size << ", heads " << model.num_heads << "/"
      << model.num_kv_heads << " x " << model.head_dim << ", vocabulary " << model.vocab_size << "; drafter "
      << parts_.drafter->name() << " of " << info_.draft_weight_bytes << " bytes, " << shape.max_nodes
      << " nodes, depth " << shape.max_depth << "; sequences " << config_.max_num_seqs << ", rows "
      << config_.max_batch_rows << ", length " << config_.max_model_len << ", page " << config_.page_size;
  return CostCache(CostCache::default_directory(), key.str());
}

CostProfiler EngineCore::make_profiler() {
  return CostProfiler(parts_.backend, parts_.model, runner_->passes(), *target_kv_, *kv_, *parts_.drafter,
                      {.max_num_seqs = config_.max_num_seqs,
                       .max_batch_rows = config_.max_batch_rows,
                       .max_model_len = config_.max_model_len});
}

void EngineCore::prepare_costs(const BudgetConfig& budget) {
  if (parts_.drafter == nullptr || budget.mode != RowBudgetMode::kAuto) return;
  if (!runner_->budget().cost().parameters().linear.counts.empty()) return;  // known, and corrected since
  std::optional<CostParameters> costs = parts_.costs;
  if (!costs) {
    const CostCache cache = cost_cache();
    costs = cache.load();
    if (!costs) {
      if (scheduler_->has_work()) {
        fail(ErrorCode::kInvalidArgument, "row budget auto measures what steps cost, on all pages: set it once while ",
             "no prompt is held");
      }
      const double seconds = budget.profile_seconds;
      log(LogLevel::kInfo, "measuring what steps cost, ", seconds, " s at most; kept in ",
          cache.path().empty() ? "no file" : cache.path().string());
      costs = make_profiler().measure(seconds);
      cache.store(*costs);
      forget_measurements();
    }
  }
  runner_->budget().set_costs(*costs);
}

CostProfile EngineCore::measure_costs() {
  const Clock::time_point start = Clock::now();
  const double seconds = config_.speculation.budget.profile_seconds;
  CostProfiler profiler = make_profiler();
  const CostCache cache = cost_cache();
  CostProfile profile{.key = cache.key(), .costs = profiler.measure(seconds)};
  profile.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (cache.store(profile.costs)) profile.cache_file = cache.path().string();
  const CostModel model(profile.costs);
  profile.checks = profiler.check(model, seconds / 2);
  runner_->budget().set_costs(profile.costs);
  forget_measurements();
  return profile;
}

void EngineCore::forget_measurements() {
  runner_->reset_stats();
  operation_seconds_ = 0;
  publish_stats();
}

}  // namespace fastspec
