// The one facade of the library: load a model, submit requests, step, read outputs. Free of torch and CUDA.
#pragma once

#include <fastspec/config.h>
#include <fastspec/cost_profile.h>
#include <fastspec/error.h>
#include <fastspec/request.h>
#include <fastspec/step_trace.h>
#include <fastspec/tokenizer.h>
#include <fastspec/version.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fastspec {

/// Predictions of about equal chance, and what came of them.
struct ReliabilityBin {
  double predicted = 0;  // mean chance
  double observed = 0;   // share accepted
  std::int64_t count = 0;
};

/// How often the row budget kept this share of the rows.
struct RatioCount {
  double ratio = 0;
  std::int64_t steps = 0;
};

/// What the row budget did. Rows offered, kept and accepted are drafted_tokens, verified_tokens and accepted_tokens of
/// the engine.
struct BudgetStats {
  std::vector<RatioCount> ratios;     // of steps that had drafted rows
  std::int64_t steps_undrafted = 0;   // decoding steps in which the budget let nobody draft
  std::int64_t passes_undrafted = 0;  // decoding passes of sequences that it did not let draft
  std::int64_t probe_steps = 0;       // steps in which all drafted, to see whether it pays again
  std::int64_t full_steps = 0;        // verified in full, for calibration
  /// Of decoding steps: what the cost model said, what they took, and the sum of the differences' sizes.
  std::int64_t predicted_steps = 0;
  double predicted_seconds = 0, measured_seconds = 0, error_seconds = 0;
  /// Chances of acceptance against what came: fitted, and the drafter's confidence as it is. Over the latest tokens.
  std::vector<ReliabilityBin> reliability, raw_reliability;
  double calibration_error = 0, raw_calibration_error = 0;  // expected, 15 bins of equal mass
};

/// Totals since the engine was made. tau = committed tokens per sequence and decoding pass, bonus included.
struct EngineStats {
  std::int64_t steps = 0;
  std::int64_t rows = 0;              // target rows computed
  std::int64_t prompt_rows = 0;       // of these, rows of prompts (and of recomputation after preemption)
  std::int64_t decoding_passes = 0;   // summed over sequences; sparse ones whose tokens are provisional not counted
  std::int64_t decoding_tokens = 0;   // tokens committed by them
  std::int64_t generated_tokens = 0;  // all tokens generated, those of prompt passes included
  std::int64_t drafted_tokens = 0;
  std::int64_t verified_tokens = 0;  // drafted tokens that the target computed
  std::int64_t accepted_tokens = 0;
  std::vector<std::int64_t> offered_by_position;   // [depth] decoding passes that verified a draft at this depth
  std::vector<std::int64_t> accepted_by_position;  // [depth] of these, accepted
  BudgetStats budget;
  SparseStats sparse;
  std::int64_t preemptions = 0;
  std::int64_t draft_failures = 0;  // sequences whose drafter state went stale and ran plain until rebuilt
  /// Passes of the target on a device that records them: replayed, recorded and then run, and launched operation by
  /// operation (those with prompt rows, and the first of each shape). All 0 on a device that does not.
  std::int64_t graph_replays = 0, graph_captures = 0, graph_eager_passes = 0;
  std::int64_t graphs = 0;           // kept now, those of a draft model included
  std::size_t graph_bytes = 0;       // of device memory that they take
  double graph_capture_seconds = 0;  // spent on recording since the engine was made
  int pages_total = 0;
  int pages_used = 0;
  int sequences_running = 0;
  int sequences_waiting = 0;
  /// Seconds by verb: plan, draft, budget, select, verify, accept, commit, emit (text, stops, outputs).
  double plan_seconds = 0, draft_seconds = 0, budget_seconds = 0, select_seconds = 0, verify_seconds = 0,
         accept_seconds = 0, commit_seconds = 0, emit_seconds = 0;
  double operation_seconds = 0;  // of these, inside backend operations
  double step_seconds = 0;
  /// On an asynchronous device: steps launched before the report of the one before was made, and the host's seconds
  /// from the earlier step's tokens to the launch of the later one's pass.
  std::int64_t steps_ahead = 0;
  double turnaround_seconds = 0;
  /// On a device with a clock, of replayed steps launched ahead: their number, the device's seconds from the end of the
  /// draws before to their first work, and from there to the end of their draws.
  std::int64_t timed_steps = 0;
  double device_idle_seconds = 0, device_busy_seconds = 0;

  double acceptance_length() const {
    return decoding_passes == 0 ? 0.0 : static_cast<double>(decoding_tokens) / static_cast<double>(decoding_passes);
  }
  /// A few lines for people.
  std::string to_string() const;
};

/// What was loaded and how memory was divided.
struct EngineInfo {
  std::string architecture;
  std::string device;
  DType dtype = DType::kFloat32;
  std::int64_t num_parameters = 0;
  std::size_t weight_bytes = 0;
  std::size_t draft_weight_bytes = 0;
  std::size_t kv_bytes_per_token = 0;    // target and draft together
  std::size_t kv_cache_bytes = 0;        // the pools: sequences, scratch rows, and a draft model's K/V
  std::size_t draft_kv_cache_bytes = 0;  // of these, a draft model's
  std::size_t draft_own_kv_bytes = 0;    // K/V that a drafter keeps beside them: the same for any context
  std::size_t scratch_bytes = 0;         // of these, slots of drafted rows
  std::size_t activation_bytes = 0;      // arrays and logits of the largest pass
  std::size_t workspace_bytes = 0;       // of operations, at most
  std::size_t graph_bytes = 0;           // recorded passes, at most
  std::size_t device_bytes = 0;          // memory of the GPU; 0 on the CPU
  std::size_t memory_limit_bytes = 0;    // of it, what the engine may take: gpu_memory_utilization; 0 on the CPU
  int num_pages = 0;
  int page_size = 0;
  int max_model_len = 0;
  int vocab_size = 0;
  std::vector<TokenId> eos_token_ids;
  std::string drafter;
  std::string selector;  // of sparse passes; "none" without
  int kv_budget = 0;     // of theirs: cached keys that one reads of a sequence
  Guarantee guarantee = Guarantee::kExact;
  std::string prompt_attention;  // what answers attention of long prompt chunks

  std::string to_string() const;
  /// "none", or selector, keys and guarantee.
  std::string sparse_text() const;
  /// The part of to_string() that says who takes how much memory.
  std::string memory_text() const;
};

/// Called while weights load.
using LoadProgressCallback = std::function<void(std::size_t bytes_done, std::size_t bytes_total)>;
/// Called for every Output of generate(); return false to cancel that request.
using OutputCallback = std::function<bool(const Output&)>;

class EngineCore;

class Engine {
 public:
  /// Loads the model, plans memory. @throws Error naming the file, option or sizes at fault.
  static std::unique_ptr<Engine> create(const EngineConfig& config, const LoadProgressCallback& progress = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Queues a request. Safe from any thread. @throws Error(kInvalidArgument) for a request that can never run: bad
  /// parameters, unknown token ids, a prompt longer than max_model_len or than the whole cache. Nothing is queued then.
  RequestId submit(const Request& request);
  /// Ends a request at the next step; its samples finish with kCancelled. Unknown or finished ids are ignored. Safe
  /// from any thread.
  void cancel(RequestId request);
  /// True while a request waits or runs; a held prompt does until a step finds nothing to compute of it. Safe from any
  /// thread.
  bool has_work() const;

  /// One pass over the running sequences. Returns at once when there is nothing to do. On an asynchronous device (a
  /// GPU) the next pass runs already when this returns: what is submitted or cancelled then takes effect one pass
  /// later.
  /// @throws Error; kInvalidArgument when step() or generate() is running already (in another thread, or around the
  /// callback that calls this) or the engine was made before a fork. The engine stays usable and the step can be
  /// repeated, except after kDeviceFailure.
  StepReport step();

  /// Submits all, steps until they are done, returns one whole (not delta) Output a sample, in request and sample
  /// order. Must not be mixed with step() on another thread. The callback sees the deltas as they come.
  std::vector<Output> generate(const std::vector<Request>& requests, const OutputCallback& callback = {});

  /// Measures what steps cost, puts the result into the cache and lets the row budget go by it. Between requests.
  /// @throws Error(kInvalidArgument) without a drafter or while requests run.
  CostProfile profile();

  /// Changes the row budget to "off", "auto" or "fixed:RHO". What was learned stays. Between requests; prompts may be
  /// held, but not where costs have still to be measured for "auto".
  /// @throws Error(kInvalidArgument) without a drafter, while requests run or for another text.
  void set_row_budget(const std::string& mode);

  EngineStats stats() const;  // safe from any thread
  void reset_stats();
  /// From here to stop_trace() every kernel that the GPU runs is recorded; for one engine of a process at a time.
  /// @throws Error(kUnsupported) saying why there can be no record: a CPU, no CUPTI.
  void start_trace();
  /// What the last `max_steps` whole steps since start_trace() cost; the first better count not: the device waited
  /// while the record started. @throws Error(kUnsupported) where no whole step was seen.
  StepTrace stop_trace(int max_steps);
  const EngineInfo& info() const;
  const EngineConfig& config() const;
  std::shared_ptr<const Tokenizer> tokenizer() const;  // nullptr when the directory has no tokenizer.json

 private:
  explicit Engine(std::unique_ptr<EngineCore> core);
  std::unique_ptr<EngineCore> core_;
};

}  // namespace fastspec
