// Writes the fields one by one; computes nothing.
#include "cli/output_json.h"

namespace fastspec::cli {

using Json = nlohmann::ordered_json;

Json to_json(const SparseStats& stats) {
  return {{"sparse_passes", stats.sparse_passes},
          {"dense_passes", stats.dense_passes},
          {"kv_bytes_read", stats.kv_bytes_read},
          {"kv_bytes_dense", stats.kv_bytes_dense},
          {"confirmed_tokens", stats.confirmed_tokens},
          {"taken_back_tokens", stats.taken_back_tokens},
          {"refreshes", stats.refreshes},
          {"mean_mass", stats.mass_passes > 0 ? Json(stats.mean_mass()) : Json()}};
}

Json to_json(const OutputStats& stats) {
  return {{"prompt_tokens", stats.prompt_tokens},
          {"completion_tokens", stats.completion_tokens},
          {"acceptance_length", stats.acceptance_length()},
          {"decoding_passes", stats.decoding_passes},
          {"decoding_tokens", stats.decoding_tokens},
          {"drafted_tokens", stats.drafted_tokens},
          {"accepted_tokens", stats.accepted_tokens},
          {"preemptions", stats.preemptions},
          {"sparse", to_json(stats.sparse)},
          {"seconds_to_first_token", stats.seconds_to_first_token},
          {"seconds", stats.seconds}};
}

Json to_json(const Output& output) {
  Json result = {{"text", output.text},
                 {"token_ids", output.token_ids},
                 {"finish_reason", to_string(output.finish_reason)},
                 {"seed", output.seed},
                 {"guarantee", to_string(output.guarantee)},
                 {"min_margin", output.min_margin},
                 {"stats", to_json(output.stats)}};
  if (!output.error.empty()) result["error"] = output.error;
  if (!output.logprobs.empty()) {
    Json& positions = result["logprobs"] = Json::array();
    for (const PositionLogprobs& position : output.logprobs) {
      Json top = Json::array();
      for (const TokenLogprob& entry : position.top) {
        top.push_back({{"token", entry.token}, {"logprob", entry.logprob}});
      }
      positions.push_back({{"logprob", position.logprob}, {"top", std::move(top)}});
    }
  }
  return result;
}

Json to_json(const EngineInfo& info) {
  return {{"architecture", info.architecture},
          {"device", info.device},
          {"dtype", to_string(info.dtype)},
          {"num_parameters", info.num_parameters},
          {"weight_bytes", info.weight_bytes},
          {"draft_weight_bytes", info.draft_weight_bytes},
          {"kv_bytes_per_token", info.kv_bytes_per_token},
          {"kv_cache_bytes", info.kv_cache_bytes},
          {"draft_kv_cache_bytes", info.draft_kv_cache_bytes},
          {"draft_own_kv_bytes", info.draft_own_kv_bytes},
          {"scratch_bytes", info.scratch_bytes},
          {"activation_bytes", info.activation_bytes},
          {"workspace_bytes", info.workspace_bytes},
          {"graph_bytes", info.graph_bytes},
          {"device_bytes", info.device_bytes},
          {"memory_limit_bytes", info.memory_limit_bytes},
          {"num_pages", info.num_pages},
          {"page_size", info.page_size},
          {"max_model_len", info.max_model_len},
          {"vocab_size", info.vocab_size},
          {"eos_token_ids", info.eos_token_ids},
          {"drafter", info.drafter},
          {"selector", info.selector},
          {"kv_budget", info.kv_budget},
          {"guarantee", to_string(info.guarantee)},
          {"prompt_attention", info.prompt_attention}};
}

namespace {

Json to_json(const std::vector<ReliabilityBin>& bins) {
  Json result = Json::array();
  for (const ReliabilityBin& bin : bins) {
    result.push_back({{"predicted", bin.predicted}, {"observed", bin.observed}, {"count", bin.count}});
  }
  return result;
}

Json to_json(const CostTable& table) {
  return {{"counts", table.counts}, {"milliseconds", table.milliseconds}};
}

}  // namespace

Json row_budget_json(const EngineStats& stats) {
  const BudgetStats& budget = stats.budget;
  Json ratios = Json::array();
  for (const RatioCount& count : budget.ratios) ratios.push_back({{"ratio", count.ratio}, {"steps", count.steps}});
  return {{"rows_offered", stats.drafted_tokens},
          {"rows_kept", stats.verified_tokens},
          {"rows_accepted", stats.accepted_tokens},
          {"ratios", std::move(ratios)},
          {"steps_undrafted", budget.steps_undrafted},
          {"passes_undrafted", budget.passes_undrafted},
          {"probe_steps", budget.probe_steps},
          {"full_steps", budget.full_steps},
          {"predicted_steps", budget.predicted_steps},
          {"predicted_seconds", budget.predicted_seconds},
          {"measured_seconds", budget.measured_seconds},
          {"error_seconds", budget.error_seconds},
          {"calibration_error", budget.calibration_error},
          {"raw_calibration_error", budget.raw_calibration_error},
          {"reliability", to_json(budget.reliability)},
          {"raw_reliability", to_json(budget.raw_reliability)}};
}

Json to_json(const CostProfile& profile) {
  const CostParameters& costs = profile.costs;
  Json checks = Json::array();
  for (const CostCheck& check : profile.checks) {
    checks.push_back({{"num_sequences", check.num_sequences},
                      {"num_rows", check.num_rows},
                      {"keys_each", check.keys_each},
                      {"measured_milliseconds", check.measured_milliseconds},
                      {"predicted_milliseconds", check.predicted_milliseconds}});
  }
  return {{"key", profile.key},
          {"seconds", profile.seconds},
          {"cache_file", profile.cache_file},
          {"rows_per_tile", costs.rows_per_tile},
          {"linear", to_json(costs.linear)},
          {"per_tile_key", costs.per_tile_key},
          {"per_key", costs.per_key},
          {"per_sequence", costs.per_sequence},
          {"draft", to_json(costs.draft)},
          {"draft_per_key", costs.draft_per_key},
          {"checks", std::move(checks)}};
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace fastspec::cli
