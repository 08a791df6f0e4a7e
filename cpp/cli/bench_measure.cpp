// Steps an engine with a clock beside it.
#include "cli/bench_measure.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "cli/command.h"

namespace fastspec::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

BudgetStats difference(BudgetStats after, const BudgetStats& before) {
  for (RatioCount& count : after.ratios) {
    for (const RatioCount& earlier : before.ratios) {
      if (earlier.ratio == count.ratio) count.steps -= earlier.steps;
    }
  }
  after.steps_undrafted -= before.steps_undrafted;
  after.passes_undrafted -= before.passes_undrafted;
  after.probe_steps -= before.probe_steps;
  after.full_steps -= before.full_steps;
  after.predicted_steps -= before.predicted_steps;
  after.predicted_seconds -= before.predicted_seconds;
  after.measured_seconds -= before.measured_seconds;
  after.error_seconds -= before.error_seconds;
  return after;
}

SparseStats difference(SparseStats after, const SparseStats& before) {
  after.sparse_passes -= before.sparse_passes;
  after.dense_passes -= before.dense_passes;
  after.kv_bytes_read -= before.kv_bytes_read;
  after.kv_bytes_dense -= before.kv_bytes_dense;
  after.confirmed_tokens -= before.confirmed_tokens;
  after.taken_back_tokens -= before.taken_back_tokens;
  after.refreshes -= before.refreshes;
  after.mass_passes -= before.mass_passes;
  after.mass_sum -= before.mass_sum;
  return after;
}

/// after - before, for what a benchmark reads.
EngineStats difference(EngineStats after, const EngineStats& before) {
  after.steps -= before.steps;
  after.rows -= before.rows;
  after.prompt_rows -= before.prompt_rows;
  after.decoding_passes -= before.decoding_passes;
  after.decoding_tokens -= before.decoding_tokens;
  after.generated_tokens -= before.generated_tokens;
  after.budget = difference(std::move(after.budget), before.budget);
  after.sparse = difference(after.sparse, before.sparse);
  after.drafted_tokens -= before.drafted_tokens;
  after.verified_tokens -= before.verified_tokens;
  after.accepted_tokens -= before.accepted_tokens;
  after.preemptions -= before.preemptions;
  after.plan_seconds -= before.plan_seconds;
  after.draft_seconds -= before.draft_seconds;
  after.budget_seconds -= before.budget_seconds;
  after.select_seconds -= before.select_seconds;
  after.verify_seconds -= before.verify_seconds;
  after.accept_seconds -= before.accept_seconds;
  after.commit_seconds -= before.commit_seconds;
  after.emit_seconds -= before.emit_seconds;
  after.operation_seconds -= before.operation_seconds;
  after.step_seconds -= before.step_seconds;
  after.steps_ahead -= before.steps_ahead;
  after.turnaround_seconds -= before.turnaround_seconds;
  after.timed_steps -= before.timed_steps;
  after.device_idle_seconds -= before.device_idle_seconds;
  after.device_busy_seconds -= before.device_busy_seconds;
  after.graph_replays -= before.graph_replays;
  after.graph_captures -= before.graph_captures;
  after.graph_eager_passes -= before.graph_eager_passes;
  return after;
}

Request make_request(const std::vector<TokenId>& prompt, int max_tokens, bool speculative) {
  Request request;
  request.prompt_token_ids = prompt;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.speculation.enabled = speculative;
  if (!speculative) request.sparse = false;
  return request;
}

void finish_cancelled(Engine& engine, const std::vector<RequestId>& ids) {
  for (const RequestId id : ids) engine.cancel(id);
  while (engine.has_work()) engine.step();
}

}  // namespace

double BenchRun::prompt_tokens_per_second() const {
  return static_cast<double>(prompt_tokens) / std::max(prompt_seconds, 1e-9);
}
double BenchRun::decode_tokens_per_second() const {
  return static_cast<double>(decode_tokens) / std::max(decode_seconds, 1e-9);
}
double BenchRun::milliseconds_per_step() const {
  return 1e3 * decode_seconds / static_cast<double>(std::max<std::int64_t>(decode.steps, 1));
}
double BenchRun::overhead() const {
  return decode.step_seconds <= 0 ? 0 : 1 - decode.operation_seconds / decode.step_seconds;
}

BenchRun run_bench(Engine& engine, const std::vector<std::vector<TokenId>>& prompts, int max_tokens, bool speculative,
                   const std::function<void(int)>& on_decoding) {
  BenchRun run;
  std::vector<RequestId> ids;
  std::map<RequestId, std::size_t> index_of;
  run.outputs.resize(prompts.size());
  const auto start = Clock::now();
  for (const std::vector<TokenId>& prompt : prompts) {
    ids.push_back(engine.submit(make_request(prompt, max_tokens, speculative)));
    index_of[ids.back()] = ids.size() - 1;
    run.prompt_tokens += static_cast<std::int64_t>(prompt.size());
  }
  EngineStats before;
  auto decode_start = start;
  std::size_t without_token = prompts.size();
  int decoding_steps = 0;
  while (engine.has_work()) {
    if (interrupted()) {
      finish_cancelled(engine, ids);
      throw Interrupted();
    }
    StepReport report = engine.step();
    const bool decoding = without_token == 0;
    for (Output& delta : report.outputs) {
      Output& whole = run.outputs[index_of.at(delta.request)];
      if (delta.finish_reason == FinishReason::kError) throw Error(ErrorCode::kInternal, delta.error);
      if (whole.token_ids.empty() && !delta.token_ids.empty()) --without_token;
      if (decoding) run.decode_tokens += static_cast<std::int64_t>(delta.token_ids.size());
      whole.token_ids.insert(whole.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
      whole.min_margin = std::min(whole.min_margin, delta.min_margin);
    }
    if (!decoding && without_token == 0) {
      run.prompt_seconds = seconds_since(start);
      before = engine.stats();
      decode_start = Clock::now();
    }
    if (without_token == 0 && on_decoding) on_decoding(decoding_steps++);
  }
  run.decode_seconds = seconds_since(decode_start);
  run.decode = difference(engine.stats(), before);
  return run;
}

const BenchRun& median(std::vector<BenchRun>& runs) {
  std::sort(runs.begin(), runs.end(), [](const BenchRun& left, const BenchRun& right) {
    return left.decode_tokens_per_second() < right.decode_tokens_per_second();
  });
  return runs[(runs.size() - 1) / 2];
}

BenchDifference compare(const BenchRun& plain, const BenchRun& other) {
  BenchDifference difference;
  for (std::size_t i = 0; i < plain.outputs.size(); ++i) {
    const std::vector<TokenId>& left = plain.outputs[i].token_ids;
    const std::vector<TokenId>& right = other.outputs[i].token_ids;
    const auto place = std::mismatch(left.begin(), left.end(), right.begin(), right.end()).first - left.begin();
    if (left == right) continue;
    ++difference.sequences;
    if (difference.first_position < 0 || place < difference.first_position) {
      difference.first_position = static_cast<int>(place);
      difference.margin = plain.outputs[i].min_margin;
    }
  }
  return difference;
}

}  // namespace fastspec::cli
