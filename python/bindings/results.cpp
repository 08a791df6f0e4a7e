// What comes back: read-only.
#include <fastspec/engine.h>

#include "bind.h"
#include "record.h"

namespace py = pybind11;

namespace fastspec::python {
namespace {

void bind_output(py::module_& module) {
  Record<TokenLogprob> token(module, "TokenLogprob", "A token id and its log-probability.");
  token.readonly("token", &TokenLogprob::token).readonly("logprob", &TokenLogprob::logprob).finish_results();

  Record<PositionLogprobs> position(module, "PositionLogprobs",
                                    R"(Log-probabilities of one generated token under the target model.

logprob: of the chosen token
top: list of TokenLogprob, descending, as many as were asked for)");
  position.readonly("logprob", &PositionLogprobs::logprob).readonly("top", &PositionLogprobs::top).finish_results();

  Record<SparseStats> sparse(module, "SparseStats", R"(What sparse passes did; passes are decoding passes.

sparse_passes, dense_passes: how many of each
kv_bytes_read: cached keys and values that both read; kv_bytes_dense: what all of these passes would have read densely
confirmed_tokens, taken_back_tokens: provisional tokens that a dense pass drew too, and the others of their runs
refreshes: of keys and values that sparse passes had computed
mean_mass: share of the attention inside what sparse passes read, as far as their selector knows it (mass_passes))");
  sparse.readonly("sparse_passes", &SparseStats::sparse_passes)
      .readonly("dense_passes", &SparseStats::dense_passes)
      .readonly("kv_bytes_read", &SparseStats::kv_bytes_read)
      .readonly("kv_bytes_dense", &SparseStats::kv_bytes_dense)
      .readonly("confirmed_tokens", &SparseStats::confirmed_tokens)
      .readonly("taken_back_tokens", &SparseStats::taken_back_tokens)
      .readonly("refreshes", &SparseStats::refreshes)
      .readonly("mass_passes", &SparseStats::mass_passes)
      .readonly("mass_sum", &SparseStats::mass_sum)
      .computed("mean_mass", &SparseStats::mean_mass)
      .finish_results();

  Record<OutputStats> stats(module, "OutputStats", R"(What one sample cost.

acceptance_length: committed tokens per decoding pass, bonus token included, prompt passes excluded; where what sparse
    passes accept is provisional, shown tokens per dense pass
seconds: from submission to the end; seconds_to_first_token from submission too)");
  stats.readonly("prompt_tokens", &OutputStats::prompt_tokens)
      .readonly("completion_tokens", &OutputStats::completion_tokens)
      .readonly("decoding_passes", &OutputStats::decoding_passes)
      .readonly("decoding_tokens", &OutputStats::decoding_tokens)
      .readonly("drafted_tokens", &OutputStats::drafted_tokens)
      .readonly("accepted_tokens", &OutputStats::accepted_tokens)
      .computed("acceptance_length", &OutputStats::acceptance_length)
      .readonly("preemptions", &OutputStats::preemptions)
      .readonly("sparse", &OutputStats::sparse)
      .readonly("seconds_to_first_token", &OutputStats::seconds_to_first_token)
      .readonly("seconds", &OutputStats::seconds)
      .finish_results();

  Record<Output> output(module, "Output", R"(Progress or end of one sample.

A delta: text, token_ids and logprobs are what is new since the last Output of this (request, sample).)");
  output.readonly("request", &Output::request)
      .readonly("sample", &Output::sample)
      .readonly("text", &Output::text)
      .readonly("token_ids", &Output::token_ids)
      .readonly("logprobs", &Output::logprobs)
      .readonly("min_margin", &Output::min_margin)
      .readonly("finish_reason", &Output::finish_reason)
      .computed("finished", &Output::finished)
      .readonly("error", &Output::error)
      .readonly("seed", &Output::seed)
      .readonly("guarantee", &Output::guarantee)
      .readonly("stats", &Output::stats)
      .finish_results();

  Record<StepReport> report(module, "StepReport", R"(What one step did.

num_sequences: in the pass; 0 when there was nothing to do
num_rows: rows that the target computed)");
  report.readonly("outputs", &StepReport::outputs)
      .readonly("num_sequences", &StepReport::num_sequences)
      .readonly("num_rows", &StepReport::num_rows)
      .finish_results();
}

void bind_budget_stats(py::module_& module) {
  Record<ReliabilityBin> bin(module, "ReliabilityBin", R"(Predictions of about equal chance, and what came of them.

predicted: their mean chance; observed: the share that was accepted)");
  bin.readonly("predicted", &ReliabilityBin::predicted)
      .readonly("observed", &ReliabilityBin::observed)
      .readonly("count", &ReliabilityBin::count)
      .finish_results();

  Record<RatioCount> ratio(module, "RatioCount", "In how many steps the row budget kept this share of the rows.");
  ratio.readonly("ratio", &RatioCount::ratio).readonly("steps", &RatioCount::steps).finish_results();

  Record<BudgetStats> budget(module, "BudgetStats", R"(What the row budget did.

Rows offered, kept and accepted are drafted_tokens, verified_tokens and accepted_tokens of EngineStats.
ratios: list of RatioCount, over steps that had drafted rows
steps_undrafted, passes_undrafted: decoding steps, and passes of sequences, without a draft because it does not pay
predicted_seconds, measured_seconds, error_seconds: of predicted_steps: what the cost model said, what they took, and
    the sum of the differences' sizes
reliability, raw_reliability: chances of acceptance against what came, fitted and by the drafter's own confidence;
    calibration_error, raw_calibration_error: their expected calibration errors)");
  budget.readonly("ratios", &BudgetStats::ratios)
      .readonly("steps_undrafted", &BudgetStats::steps_undrafted)
      .readonly("passes_undrafted", &BudgetStats::passes_undrafted)
      .readonly("probe_steps", &BudgetStats::probe_steps)
      .readonly("full_steps", &BudgetStats::full_steps)
      .readonly("predicted_steps", &BudgetStats::predicted_steps)
      .readonly("predicted_seconds", &BudgetStats::predicted_seconds)
      .readonly("measured_seconds", &BudgetStats::measured_seconds)
      .readonly("error_seconds", &BudgetStats::error_seconds)
      .readonly("reliability", &BudgetStats::reliability)
      .readonly("raw_reliability", &BudgetStats::raw_reliability)
      .readonly("calibration_error", &BudgetStats::calibration_error)
      .readonly("raw_calibration_error", &BudgetStats::raw_calibration_error)
      .finish_results();
}

void bind_stats(py::module_& module) {
  Record<EngineStats> stats(module, "EngineStats", R"(Totals since the engine was made or reset_stats() was called.

acceptance_length: committed tokens per sequence and decoding pass, bonus token included, prompt passes excluded.
budget: BudgetStats, of the row budget.
*_seconds: time by verb; operation_seconds is the part inside backend operations.
graph*: passes that a GPU recorded and replays; graph_bytes is the GPU memory that the recordings take.
steps_ahead: steps launched on a GPU before the report of the one before was made; turnaround_seconds is the host's time
from the tokens of one to the launch of the next. timed_steps, device_idle_seconds and device_busy_seconds: the same by
the GPU's clock, its idle time between steps and its time for them.
str() gives a few lines for people.)");
  stats.readonly("steps", &EngineStats::steps)
      .readonly("rows", &EngineStats::rows)
      .readonly("prompt_rows", &EngineStats::prompt_rows)
      .readonly("decoding_passes", &EngineStats::decoding_passes)
      .readonly("decoding_tokens", &EngineStats::decoding_tokens)
      .readonly("generated_tokens", &EngineStats::generated_tokens)
      .readonly("drafted_tokens", &EngineStats::drafted_tokens)
      .readonly("verified_tokens", &EngineStats::verified_tokens)
      .readonly("accepted_tokens", &EngineStats::accepted_tokens)
      .readonly("offered_by_position", &EngineStats::offered_by_position)
      .readonly("accepted_by_position", &EngineStats::accepted_by_position)
      .computed("acceptance_length", &EngineStats::acceptance_length)
      .readonly("budget", &EngineStats::budget)
      .readonly("sparse", &EngineStats::sparse)
      .readonly("preemptions", &EngineStats::preemptions)
      .readonly("draft_failures", &EngineStats::draft_failures)
      .readonly("graph_replays", &EngineStats::graph_replays)
      .readonly("graph_captures", &EngineStats::graph_captures)
      .readonly("graph_eager_passes", &EngineStats::graph_eager_passes)
      .readonly("graphs", &EngineStats::graphs)
      .readonly("graph_bytes", &EngineStats::graph_bytes)
      .readonly("graph_capture_seconds", &EngineStats::graph_capture_seconds)
      .readonly("steps_ahead", &EngineStats::steps_ahead)
      .readonly("turnaround_seconds", &EngineStats::turnaround_seconds)
      .readonly("timed_steps", &EngineStats::timed_steps)
      .readonly("device_idle_seconds", &EngineStats::device_idle_seconds)
      .readonly("device_busy_seconds", &EngineStats::device_busy_seconds)
      .readonly("pages_total", &EngineStats::pages_total)
      .readonly("pages_used", &EngineStats::pages_used)
      .readonly("sequences_running", &EngineStats::sequences_running)
      .readonly("sequences_waiting", &EngineStats::sequences_waiting)
      .readonly("plan_seconds", &EngineStats::plan_seconds)
      .readonly("draft_seconds", &EngineStats::draft_seconds)
      .readonly("budget_seconds", &EngineStats::budget_seconds)
      .readonly("select_seconds", &EngineStats::select_seconds)
      .readonly("verify_seconds", &EngineStats::verify_seconds)
      .readonly("accept_seconds", &EngineStats::accept_seconds)
      .readonly("commit_seconds", &EngineStats::commit_seconds)
      .readonly("emit_seconds", &EngineStats::emit_seconds)
      .readonly("operation_seconds", &EngineStats::operation_seconds)
      .readonly("step_seconds", &EngineStats::step_seconds)
      .finish_results();
  stats.python_class().def("__str__", &EngineStats::to_string);
}

void bind_info(py::module_& module) {
  Record<EngineInfo> info(module, "EngineInfo", R"(What was loaded and how memory was divided.

Sizes in bytes; kv_bytes_per_token and kv_cache_bytes count target and draft model together, and kv_cache_bytes the
scratch slots of drafted rows too. device_bytes and memory_limit_bytes (what the engine may take of it) are a GPU's, 0 on
the CPU. str() gives a few lines for people.)");
  info.readonly("architecture", &EngineInfo::architecture)
      .readonly("device", &EngineInfo::device)
      .readonly("dtype", &EngineInfo::dtype)
      .readonly("num_parameters", &EngineInfo::num_parameters)
      .readonly("weight_bytes", &EngineInfo::weight_bytes)
      .readonly("draft_weight_bytes", &EngineInfo::draft_weight_bytes)
      .readonly("kv_bytes_per_token", &EngineInfo::kv_bytes_per_token)
      .readonly("kv_cache_bytes", &EngineInfo::kv_cache_bytes)
      .readonly("draft_kv_cache_bytes", &EngineInfo::draft_kv_cache_bytes)
      .readonly("draft_own_kv_bytes", &EngineInfo::draft_own_kv_bytes)
      .readonly("scratch_bytes", &EngineInfo::scratch_bytes)
      .readonly("activation_bytes", &EngineInfo::activation_bytes)
      .readonly("workspace_bytes", &EngineInfo::workspace_bytes)
      .readonly("graph_bytes", &EngineInfo::graph_bytes)
      .readonly("device_bytes", &EngineInfo::device_bytes)
      .readonly("memory_limit_bytes", &EngineInfo::memory_limit_bytes)
      .readonly("num_pages", &EngineInfo::num_pages)
      .readonly("page_size", &EngineInfo::page_size)
      .readonly("max_model_len", &EngineInfo::max_model_len)
      .readonly("vocab_size", &EngineInfo::vocab_size)
      .readonly("eos_token_ids", &EngineInfo::eos_token_ids)
      .readonly("drafter", &EngineInfo::drafter)
      .readonly("selector", &EngineInfo::selector)
      .readonly("kv_budget", &EngineInfo::kv_budget)
      .readonly("guarantee", &EngineInfo::guarantee)
      .readonly("prompt_attention", &EngineInfo::prompt_attention)
      .finish_results();
  info.python_class().def("__str__", &EngineInfo::to_string);
}

void bind_trace(py::module_& module) {
  Record<KernelTime> kernel(module, "KernelTime", R"(All launches of one kernel, or copies of one kind.

launches and milliseconds are those of a step; share is that of the step's time, 0 to 1.)");
  kernel.readonly("name", &KernelTime::name)
      .readonly("launches", &KernelTime::launches)
      .readonly("milliseconds", &KernelTime::milliseconds)
      .readonly("share", &KernelTime::share)
      .finish_results();

  Record<StepTrace> trace(module, "StepTrace", R"(Where the time of steps goes on a GPU, from a record of every kernel.

Means over whole steps. busy_milliseconds, idle_inside_milliseconds (between the kernels of a step) and
idle_between_milliseconds (from the end of a step to the next one's first kernel) add up to milliseconds. kernels: the
longest first. str() gives a table for people.)");
  trace.readonly("steps", &StepTrace::steps)
      .readonly("milliseconds", &StepTrace::milliseconds)
      .readonly("busy_milliseconds", &StepTrace::busy_milliseconds)
      .readonly("idle_inside_milliseconds", &StepTrace::idle_inside_milliseconds)
      .readonly("idle_between_milliseconds", &StepTrace::idle_between_milliseconds)
      .readonly("kernels", &StepTrace::kernels)
      .finish_results();
  trace.python_class().def("__str__", &StepTrace::to_string);
}

}  // namespace

void bind_results(py::module_& module) {
  bind_trace(module);
  bind_output(module);
  bind_budget_stats(module);
  bind_stats(module);
  bind_info(module);
}

}  // namespace fastspec::python
