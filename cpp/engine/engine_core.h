// The engine behind the facade: what was loaded, the queue that any thread may use, and the step that one thread runs.
#pragma once

#include <fastspec/engine.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "draft/drafter.h"
#include "draft/drafter_factory.h"
#include "engine/cost_cache.h"
#include "engine/cost_profile.h"
#include "engine/scheduler.h"
#include "engine/step_runner.h"
#include "memory/kv_pool.h"
#include "memory/memory_planner.h"
#include "memory/paged_kv_cache.h"
#include "model/model_config.h"
#include "model/transformer.h"
#include "sparse/kv_selector.h"
#include "sparse/selector_factory.h"

namespace fastspec {

/// What an engine is made of. Engine::create loads it from a directory; tests make it from small models and their own
/// drafters and operations.
struct EngineParts {
  Backend backend;
  DType dtype = DType::kFloat32;
  ModelConfig model;
  Weights weights;
  std::shared_ptr<const Tokenizer> tokenizer;  // may be null
  std::optional<DraftModel> draft_model;
  std::unique_ptr<Drafter> drafter;  // used instead of the configured one when set
  std::function<std::unique_ptr<Drafter>(std::unique_ptr<Drafter>)> wrap_drafter;  // puts another around it, when set
  std::optional<CostParameters> costs;        // used instead of measured ones when set
  std::unique_ptr<KvSelector> selector;       // used instead of the configured one when set
  std::optional<SelectorPlan> selector_plan;  // of the configured one, used instead of its manifest's when set
  /// Of target and draft model (fastspec/fingerprint.h), where a manifest of the configuration names some.
  std::string fingerprint, draft_fingerprint;
};

class EngineCore {
 public:
  static EngineParts load(const EngineConfig& config, const LoadProgressCallback& progress);
  /// @throws Error(kInvalidArgument, kOutOfMemory).
  EngineCore(const EngineConfig& config, EngineParts parts);
  ~EngineCore();

  // As in the facade.
  RequestId submit(const Request& request);
  void cancel(RequestId request);
  bool has_work() const { return num_unfinished_.load() > num_at_rest_.load(); }
  StepReport step();
  std::vector<Output> generate(const std::vector<Request>& requests, const OutputCallback& callback);
  EngineStats stats() const;
  void reset_stats();
  void start_trace();
  StepTrace stop_trace(int max_steps);
  CostProfile profile();
  void set_row_budget(const std::string& mode);
  const EngineInfo& info() const { return info_; }
  const EngineConfig& config() const { return config_; }
  std::shared_ptr<const Tokenizer> tokenizer() const { return parts_.tokenizer; }

  /// Starts every submitted request as if its prompt but the last token had been computed, on a KV cache that holds
  /// noise. For measuring decoding at a context. @throws Error(kOutOfMemory).
  void start_on_noise();
  /// Records every pass that decoding of up to `max_sequences` sequences can take, before any of them comes. Nothing to
  /// do on a device without graphs. @throws Error(kInternal) while a step is in flight.
  void record_graphs(int max_sequences);
  const Transformer& target() const { return *target_; }

  // For tests of invariants, between steps.
  StepRunner& runner() { return *runner_; }
  const Scheduler& scheduler() const { return *scheduler_; }
  PagedKvCache& kv() { return *kv_; }
  const KvPool& target_kv() const { return *target_kv_; }
  /// @throws Error(kInternal) when lengths, pages and queues disagree.
  void check_invariants() const;

 private:
  /// How many rows passes may have.
  struct RowLimits {
    int draft_rows = 0;  // of one step
    int logit_rows = 0;
    int provisional = 0;  // tokens of a sequence that a dense pass reads as a tree
    PassLimits pass;
  };
  void plan_memory_and_build();
  RowLimits row_limits() const;
  KvShape kv_shape(const ModelConfig& model) const {
    return {model.num_layers, model.num_kv_heads, model.head_dim, parts_.dtype};
  }
  WorkspaceLimits workspace_limits(const ModelConfig& model) const;
  /// Of the draft model, which is there.
  DraftNeeds draft_needs(const RowLimits& rows) const;
  /// What drafter and selector read of the target's passes.
  PassTaps pass_taps() const;
  DrafterLimits draft_limits(const RowLimits& rows) const;
  SelectorModels selector_models() const;
  SelectorLimits selector_limits(const RowLimits& rows) const;
  SelectorNeeds selector_needs(const RowLimits& rows) const;
  MemoryRequest memory_request(const RowLimits& rows) const;
  void build(const RowLimits& rows, const MemoryPlan& plan);
  /// Gives the row budget its costs: from the cache, else measured.
  void prepare_costs(const BudgetConfig& budget);
  CostProfile measure_costs();
  CostProfiler make_profiler();
  /// Passes that were only measured are no statistics.
  void forget_measurements();
  CostCache cost_cache() const;
  /// Says why sparse passes that are configured will not come, where that can be known.
  void warn_of_sparse(const RowLimits& rows) const;
  void fill_info(const MemoryRequest& request, const MemoryPlan& plan);
  std::shared_ptr<RequestState> make_request_state(const Request& request) const;
  std::vector<TokenId> prompt_tokens(const Request& request) const;
  void check_request(const RequestState& state, const Request& request) const;
  void check_alive() const;
  StepReport run_step();
  void take_inbox();
  void publish_stats();

  EngineConfig config_;
  EngineParts parts_;
  bool drafts_for_itself_;  // drafter "self_sparse": the sparse passes that its config became
  EngineInfo info_;
  std::optional<SelectorPlan> selector_plan_;  // where sparse passes are on and their selector is configured
  std::unique_ptr<Transformer> target_;
  std::unique_ptr<KvPool> target_kv_;
  std::unique_ptr<PagedKvCache> kv_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<StepRunner> runner_;
  double operation_seconds_ = 0;
  bool kv_is_noise_ = false;
  SeqId next_seq_ = 0;
  std::unordered_map<RequestId, int> unfinished_samples_;  // of requests that the scheduler knows
  std::vector<Output> undelivered_;                        // of cancelled requests, until a step succeeds
  std::atomic<bool> poisoned_ = false;
  mutable std::atomic<bool> said_no_sparse_ = false;
  std::atomic<bool> stepping_ = false;  // in step() or generate()
  int process_;                         // that made the engine: its threads do not follow a fork

  mutable std::mutex mutex_;  // guards what follows: the part that other threads touch
  std::vector<std::shared_ptr<const RequestState>> submitted_;
  std::vector<RequestId> cancelled_;
  RequestId next_request_ = 0;
  std::random_device entropy_;
  EngineStats published_;
  bool reset_requested_ = false;
  std::atomic<int> num_unfinished_ = 0;  // requests
  std::atomic<int> num_at_rest_ = 0;     // of them, held ones of which the last step found nothing to compute
};

}  // namespace fastspec
