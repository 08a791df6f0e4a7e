// Validation of options and their JSON form.
#include <fastspec/config.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"

namespace fastspec {

namespace {

constexpr int kMaxDraftTokens = 255;  // with the root 256 rows, the width of an ancestor mask

constexpr const char* kSelectors = "none, streaming, history, history:MANIFEST, quest or dustin:MANIFEST";

constexpr const char* kDrafters = "none, ngram, standalone:DIR, longspec:DIR, dflash:DIR or self_sparse";

constexpr const char* kSelfSparse = "self_sparse";

bool has_model(const std::string& kind) {
  return kind == "standalone" || kind == "longspec" || kind == "dflash";
}

void check_range(const char* option, std::int64_t value, std::int64_t lowest, std::int64_t highest) {
  if (value < lowest || value > highest) {
    fail(ErrorCode::kInvalidArgument, option, " is ", value, ", expected ", lowest, " to ", highest);
  }
}

template <typename T>
T get(const nlohmann::json& value, const std::string& option) {
  try {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      if (!value.is_number_integer()) throw std::invalid_argument("not an integer");
      const bool fits = value.is_number_unsigned() ? std::in_range<T>(value.get<std::uint64_t>())
                                                   : std::in_range<T>(value.get<std::int64_t>());
      if (!fits) throw std::out_of_range("would wrap");
    } else if constexpr (std::is_floating_point_v<T>) {
      if (!value.is_number()) throw std::invalid_argument("not a number");
    }
    return value.get<T>();
  } catch (const std::out_of_range&) {
    fail(ErrorCode::kInvalidArgument, "option ", option, ": ", value.dump(), " is out of range");
  } catch (const std::exception&) {
    fail(ErrorCode::kInvalidArgument, "option ", option, ": ", value.dump(), " is of the wrong type");
  }
}

}  // namespace

DrafterConfig DrafterConfig::parse(const std::string& text) {
  DrafterConfig config;
  if (text.empty() || text == "none") return config;
  const std::size_t colon = text.find(':');
  config.kind = text.substr(0, colon);
  if (colon != std::string::npos) config.model = text.substr(colon + 1);
  const bool is_known = config.kind == "ngram" || config.kind == kSelfSparse || has_model(config.kind);
  if (!is_known || has_model(config.kind) == (colon == std::string::npos)) {
    fail(ErrorCode::kInvalidArgument, "drafter \"", text, "\": expected ", kDrafters);
  }
  if (has_model(config.kind) && config.model.empty()) {
    fail(ErrorCode::kInvalidArgument, "drafter \"", text, "\": name the directory of the draft model, ", config.kind,
         ":DIR");
  }
  return config;
}

std::string DrafterConfig::to_string() const {
  if (kind.empty()) return "none";
  return model.empty() ? kind : kind + ":" + model;
}

void BudgetConfig::set_mode(const std::string& text) {
  constexpr std::string_view kFixed = "fixed:";
  if (text == "off" || text == "auto") {
    mode = text == "off" ? RowBudgetMode::kOff : RowBudgetMode::kAuto;
    return;
  }
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = text.starts_with(kFixed) ? std::from_chars(text.data() + kFixed.size(), end, value)
                                                      : std::from_chars_result{text.data(), std::errc()};
  if (!text.starts_with(kFixed) || error != std::errc() || stop != end || !(value > 0 && value <= 1)) {
    fail(ErrorCode::kInvalidArgument, "row budget \"", text,
         "\": expected off, auto or fixed:RHO with RHO more than 0 and at most 1");
  }
  mode = RowBudgetMode::kFixed;
  ratio = value;
}

std::string BudgetConfig::mode_text() const {
  if (mode != RowBudgetMode::kFixed) return mode == RowBudgetMode::kOff ? "off" : "auto";
  char digits[32];
  const auto [end, error] = std::to_chars(digits, digits + sizeof(digits), ratio);
  return "fixed:" + std::string(digits, error == std::errc() ? end : digits);
}

void BudgetConfig::set_objective(const std::string& text) {
  if (text != "throughput" && text != "paper") {
    fail(ErrorCode::kInvalidArgument, "row budget objective \"", text, "\": expected throughput or paper");
  }
  objective = text == "paper" ? BudgetObjective::kPaper : BudgetObjective::kThroughput;
}

std::string BudgetConfig::objective_text() const {
  return objective == BudgetObjective::kPaper ? "paper" : "throughput";
}

namespace {

void check_budget(const BudgetConfig& budget) {
  const auto check_ratio = [](const char* option, double ratio) {
    if (!(ratio > 0 && ratio <= 1)) {
      fail(ErrorCode::kInvalidArgument, option, " ", ratio, ": expected more than 0 and at most 1");
    }
  };
  if (budget.mode == RowBudgetMode::kFixed) check_ratio("speculation.row_budget fixed:", budget.ratio);
  if (budget.ratios.empty()) {
    fail(ErrorCode::kInvalidArgument, "speculation.row_budget_ratios is empty, expected shares of the rows");
  }
  for (std::size_t i = 0; i < budget.ratios.size(); ++i) {
    check_ratio("speculation.row_budget_ratios:", budget.ratios[i]);
    if (i > 0 && budget.ratios[i] <= budget.ratios[i - 1]) {
      fail(ErrorCode::kInvalidArgument, "speculation.row_budget_ratios: ", budget.ratios[i], " after ",
           budget.ratios[i - 1], ", expected ascending shares");
    }
  }
  if (!(budget.min_saving >= 0 && budget.min_saving < 1)) {
    fail(ErrorCode::kInvalidArgument, "speculation.row_budget_min_saving is ", budget.min_saving,
         ", expected at least 0 and less than 1");
  }
  if (!(budget.profile_seconds > 0 && budget.profile_seconds <= 3600)) {
    fail(ErrorCode::kInvalidArgument, "speculation.profile_seconds is ", budget.profile_seconds,
         ", expected more than 0 and at most 3600");
  }
}

void check_tree_widths(const std::vector<int>& widths) {
  constexpr const char* kOption = "speculation.drafter.tree_widths";
  if (widths.empty()) fail(ErrorCode::kInvalidArgument, kOption, " is empty, expected the nodes of each level");
  std::int64_t nodes = 0;
  for (const int width : widths) {
    check_range(kOption, width, 1, kMaxDraftTokens);
    nodes += width;
  }
  if (nodes > kMaxDraftTokens) {
    fail(ErrorCode::kInvalidArgument, kOption, " make a tree of ", nodes, " nodes, at most ", kMaxDraftTokens,
         " are possible");
  }
}

void check_context(const DrafterConfig& drafter) {
  constexpr int kMost = 1 << 24;
  check_range("speculation.drafter.window", drafter.window, 0, kMost);
  check_range("speculation.drafter.sinks", drafter.sinks, 0, kMost);
  if (drafter.sinks > 0 && drafter.window == 0) {
    fail(ErrorCode::kInvalidArgument,
         "speculation.drafter.sinks are seen beside a window, and speculation.drafter.window is 0");
  }
  if (drafter.rebase_positions && drafter.sinks == 0) {
    fail(ErrorCode::kInvalidArgument, "speculation.drafter.rebase_positions moves sinks, and sinks is 0");
  }
}

void check_speculation(const SpeculationConfig& speculation) {
  constexpr std::int64_t kMany = std::numeric_limits<int>::max();
  check_budget(speculation.budget);
  if (speculation.max_draft_tokens) {
    check_range("speculation.max_draft_tokens", *speculation.max_draft_tokens, 1, kMaxDraftTokens);
  }
  const DrafterConfig& drafter = speculation.drafter;
  if (drafter.kind == "ngram") {
    check_range("speculation.drafter.ngram_min", drafter.ngram_min, 1, kMany);
    check_range("speculation.drafter.ngram_max", drafter.ngram_max, drafter.ngram_min, kMany);
  } else if (drafter.kind != kSelfSparse && !has_model(drafter.kind)) {
    fail(ErrorCode::kInvalidArgument, "drafter \"", drafter.kind, "\": expected ", kDrafters);
  }
  if (drafter.kind == "longspec") check_tree_widths(drafter.tree_widths);
  if (drafter.kind == "dflash") check_context(drafter);
  if (has_model(drafter.kind) == drafter.model.empty()) {
    fail(ErrorCode::kInvalidArgument, "drafter \"", drafter.kind, "\" with model \"", drafter.model,
         "\": standalone, longspec and dflash have one, ngram and self_sparse none");
  }
}

}  // namespace

void SparseConfig::set_selector(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  const bool has_manifest = colon != std::string::npos;
  const bool is_known =
      kind.empty() || kind == "none" || kind == "streaming" || kind == "history" || kind == "quest" || kind == "dustin";
  const bool takes_manifest = kind == "dustin" || kind == "history";
  if (!is_known || (has_manifest && !takes_manifest) || (kind == "dustin" && !has_manifest)) {
    fail(ErrorCode::kInvalidArgument, "sparse \"", text, "\": expected ", kSelectors);
  }
  if (has_manifest && colon + 1 == text.size()) {
    fail(ErrorCode::kInvalidArgument, "sparse \"", text, "\": name the manifest, ", kind, ":MANIFEST");
  }
  selector = kind == "none" ? "" : kind;
  manifest = has_manifest ? text.substr(colon + 1) : "";
}

std::string SparseConfig::selector_text() const {
  if (selector.empty()) return "none";
  return manifest.empty() ? selector : selector + ":" + manifest;
}

void SparseConfig::set_guarantee(const std::string& text) {
  guarantee = parse_guarantee(text);
}

namespace {

void check_sparse(const SparseConfig& sparse) {
  constexpr int kMost = 1 << 24;
  if (sparse.selector != "oracle") SparseConfig().set_selector(sparse.selector_text());
  check_range("sparse.kv_budget", sparse.kv_budget, 1, kMost);
  check_range("sparse.sinks", sparse.sinks, 0, kMost);
  check_range("sparse.recent", sparse.recent, 0, kMost);
  if (sparse.sinks + sparse.recent > sparse.kv_budget) {
    fail(ErrorCode::kInvalidArgument, "sparse.sinks are ", sparse.sinks, " and sparse.recent ", sparse.recent,
         ", but sparse.kv_budget is ", sparse.kv_budget, ": both are part of it");
  }
  const bool exact = sparse.guarantee == Guarantee::kExact;
  check_range("sparse.refresh_interval", sparse.refresh_interval, 0, exact ? kMaxRefreshInterval : kMost);
  if (!(sparse.min_mass >= 0 && sparse.min_mass < 1)) {
    fail(ErrorCode::kInvalidArgument, "sparse.min_mass is ", sparse.min_mass, ", expected at least 0 and less than 1");
  }
  if (!(sparse.min_margin >= 0 && std::isfinite(sparse.min_margin))) {
    fail(ErrorCode::kInvalidArgument, "sparse.min_margin is ", sparse.min_margin, ", expected 0 or more");
  }
}

/// What the target drafts in sparse passes is confirmed by dense ones, and there are no rows of a drafter to share out.
void check_self_sparse(const EngineConfig& config) {
  if (config.sparse.guarantee != Guarantee::kExact) {
    fail(ErrorCode::kInvalidArgument,
         "drafter self_sparse is confirmed by dense passes, but sparse.guarantee is sparse: leave the drafter out");
  }
  if (config.speculation.budget.mode != RowBudgetMode::kOff) {
    fail(ErrorCode::kInvalidArgument, "speculation.row_budget is ", config.speculation.budget.mode_text(),
         ", but drafter self_sparse has no rows to share out: its runs are as long as pays, or max_draft_tokens");
  }
  if (!config.speculation.max_draft_tokens) return;
  check_range("speculation.max_draft_tokens", *config.speculation.max_draft_tokens, 1, kMaxRefreshInterval);
  if (config.sparse.refresh_interval != 0) {
    fail(ErrorCode::kInvalidArgument,
         "with drafter self_sparse max_draft_tokens and sparse.refresh_interval are the same: give one");
  }
}

}  // namespace

void EngineConfig::validate() const {
  if (model.empty()) fail(ErrorCode::kInvalidArgument, "model is empty: name a model directory");
  if (device != "cpu" && device != "cpu:reference" && !device.starts_with("cuda")) {
    fail(ErrorCode::kInvalidArgument, "device is \"", device, "\", expected cpu, cpu:reference or cuda:N");
  }
  check_range("max_model_len", max_model_len, 0, 1 << 24);
  check_range("max_num_seqs", max_num_seqs, 1, 4096);
  check_range("max_batch_rows", max_batch_rows, 1, 1 << 16);
  check_range("page_size", page_size, 1, 1024);
  if (!(gpu_memory_utilization > 0 && gpu_memory_utilization <= 1)) {
    fail(ErrorCode::kInvalidArgument, "gpu_memory_utilization is ", gpu_memory_utilization,
         ", expected more than 0 and at most 1");
  }
  check_range("kv_cache_bytes", kv_cache_bytes, 0, std::numeric_limits<std::int64_t>::max());
  check_range("num_threads", num_threads, 0, 1024);
  if (!std::has_single_bit(static_cast<unsigned>(page_size))) {
    fail(ErrorCode::kInvalidArgument, "page_size is ", page_size, ", expected a power of two");
  }
  if (max_batch_rows < max_num_seqs) {
    fail(ErrorCode::kInvalidArgument, "max_batch_rows is ", max_batch_rows, ", but max_num_seqs is ", max_num_seqs,
         ": every running sequence needs a row");
  }
  if (speculation.enabled()) check_speculation(speculation);
  if (sparse.enabled() || speculation.drafter.kind == kSelfSparse) check_sparse(sparse);
  if (speculation.drafter.kind == kSelfSparse) check_self_sparse(*this);
}

EngineConfig EngineConfig::resolved() const {
  validate();
  EngineConfig config = *this;
  if (speculation.drafter.kind != kSelfSparse) return config;
  if (!sparse.enabled()) config.sparse.selector = "streaming";
  config.sparse.refresh_interval = speculation.max_draft_tokens.value_or(sparse.refresh_interval);
  config.speculation = {};
  return config;
}

std::string EngineConfig::to_json() const {
  nlohmann::ordered_json json;
  json["model"] = model;
  json["device"] = device;
  json["dtype"] = dtype ? nlohmann::ordered_json(fastspec::to_string(*dtype)) : nlohmann::ordered_json("auto");
  json["max_model_len"] = max_model_len;
  json["max_num_seqs"] = max_num_seqs;
  json["max_batch_rows"] = max_batch_rows;
  json["page_size"] = page_size;
  json["gpu_memory_utilization"] = gpu_memory_utilization;
  json["kv_cache_bytes"] = kv_cache_bytes;
  json["num_threads"] = num_threads;
  json["speculation"] = {
      {"drafter", speculation.drafter.to_string()},
      {"ngram_min", speculation.drafter.ngram_min},
      {"ngram_max", speculation.drafter.ngram_max},
      {"tree_widths", speculation.drafter.tree_widths},
      {"coupled", speculation.drafter.coupled},
      {"window", speculation.drafter.window},
      {"sinks", speculation.drafter.sinks},
      {"rebase_positions", speculation.drafter.rebase_positions},
      {"row_budget", speculation.budget.mode_text()},
      {"row_budget_objective", speculation.budget.objective_text()},
      {"row_budget_ratios", speculation.budget.ratios},
      {"row_budget_min_saving", speculation.budget.min_saving},
      {"profile_seconds", speculation.budget.profile_seconds},
      {"max_draft_tokens", speculation.max_draft_tokens ? nlohmann::ordered_json(*speculation.max_draft_tokens)
                                                        : nlohmann::ordered_json("auto")}};
  json["sparse"] = {{"selector", sparse.selector_text()},
                    {"kv_budget", sparse.kv_budget},
                    {"sinks", sparse.sinks},
                    {"recent", sparse.recent},
                    {"guarantee", fastspec::to_string(sparse.guarantee)},
                    {"refresh_interval", sparse.refresh_interval},
                    {"min_mass", sparse.min_mass},
                    {"min_margin", sparse.min_margin}};
  // A path need not be UTF-8; a form that can be printed is worth more than an exception.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

EngineConfig EngineConfig::from_json(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) fail(ErrorCode::kInvalidArgument, "engine options: expected a JSON object");
  EngineConfig config;
  using Setter = std::function<void(const nlohmann::json&, const std::string&)>;
  const auto integer = [](int& field) -> Setter {
    return [&](const auto& v, const auto& o) { field = get<int>(v, o); };
  };
  const auto string = [](std::string& field) -> Setter {
    return [&](const auto& v, const auto& o) { field = get<std::string>(v, o); };
  };
  DrafterConfig parsed;
  BudgetConfig& budget = config.speculation.budget;
  const std::vector<std::pair<std::string, Setter>> speculation = {
      {"drafter", [&](const auto& v, const auto& o) { parsed = DrafterConfig::parse(get<std::string>(v, o)); }},
      {"ngram_min", integer(config.speculation.drafter.ngram_min)},
      {"ngram_max", integer(config.speculation.drafter.ngram_max)},
      {"window", integer(config.speculation.drafter.window)},
      {"sinks", integer(config.speculation.drafter.sinks)},
      {"rebase_positions",
       [&](const auto& v, const auto& o) { config.speculation.drafter.rebase_positions = get<bool>(v, o); }},
      {"tree_widths",
       [&](const auto& v, const auto& o) {
         if (!v.is_array()) fail(ErrorCode::kInvalidArgument, "option ", o, ": ", v.dump(), " is of the wrong type");
         std::vector<int> widths;
         for (const auto& width : v) widths.push_back(get<int>(width, o));
         config.speculation.drafter.tree_widths = std::move(widths);
       }},
      {"coupled", [&](const auto& v, const auto& o) { config.speculation.drafter.coupled = get<bool>(v, o); }},
      {"row_budget", [&](const auto& v, const auto& o) { budget.set_mode(get<std::string>(v, o)); }},
      {"row_budget_objective", [&](const auto& v, const auto& o) { budget.set_objective(get<std::string>(v, o)); }},
      {"row_budget_ratios",
       [&](const auto& v, const auto& o) {
         if (!v.is_array()) fail(ErrorCode::kInvalidArgument, "option ", o, ": ", v.dump(), " is of the wrong type");
         std::vector<double> ratios;
         for (const auto& ratio : v) ratios.push_back(get<double>(ratio, o));
         budget.ratios = std::move(ratios);
       }},
      {"row_budget_min_saving", [&](const auto& v, const auto& o) { budget.min_saving = get<double>(v, o); }},
      {"profile_seconds", [&](const auto& v, const auto& o) { budget.profile_seconds = get<double>(v, o); }},
      {"max_draft_tokens", [&](const auto& v, const auto& o) {
         if (v != "auto") config.speculation.max_draft_tokens = get<int>(v, o);
       }}};
  SparseConfig& sparse = config.sparse;
  const std::vector<std::pair<std::string, Setter>> sparse_options = {
      {"selector", [&](const auto& v, const auto& o) { sparse.set_selector(get<std::string>(v, o)); }},
      {"kv_budget", integer(sparse.kv_budget)},
      {"sinks", integer(sparse.sinks)},
      {"recent", integer(sparse.recent)},
      {"guarantee", [&](const auto& v, const auto& o) { sparse.set_guarantee(get<std::string>(v, o)); }},
      {"refresh_interval", integer(sparse.refresh_interval)},
      {"min_mass", [&](const auto& v, const auto& o) { sparse.min_mass = get<double>(v, o); }},
      {"min_margin", [&](const auto& v, const auto& o) { sparse.min_margin = get<double>(v, o); }}};
  const auto apply = [](const nlohmann::json& object, const std::string& prefix, const auto& setters) {
    for (const auto& [key, value] : object.items()) {
      const auto found = std::find_if(setters.begin(), setters.end(), [&](const auto& s) { return s.first == key; });
      if (found == setters.end()) fail(ErrorCode::kInvalidArgument, "unknown engine option ", prefix, key);
      found->second(value, prefix + key);
    }
  };
  const std::vector<std::pair<std::string, Setter>> options = {
      {"model", string(config.model)},
      {"device", string(config.device)},
      {"dtype",
       [&](const auto& v, const auto& o) {
         const auto name = get<std::string>(v, o);
         if (name != "auto") config.dtype = parse_dtype(name);
       }},
      {"max_model_len", integer(config.max_model_len)},
      {"max_num_seqs", integer(config.max_num_seqs)},
      {"max_batch_rows", integer(config.max_batch_rows)},
      {"page_size", integer(config.page_size)},
      {"gpu_memory_utilization",
       [&](const auto& v, const auto& o) { config.gpu_memory_utilization = get<double>(v, o); }},
      {"kv_cache_bytes", [&](const auto& v, const auto& o) { config.kv_cache_bytes = get<std::int64_t>(v, o); }},
      {"num_threads", integer(config.num_threads)},
      {"speculation",
       [&](const auto& v, const auto& o) {
         if (!v.is_object()) fail(ErrorCode::kInvalidArgument, "option ", o, ": expected an object");
         apply(v, "speculation.", speculation);
       }},
      {"sparse", [&](const auto& v, const auto& o) {
         if (!v.is_object()) fail(ErrorCode::kInvalidArgument, "option ", o, ": expected an object");
         apply(v, "sparse.", sparse_options);
       }}};
  apply(json, "", options);
  config.speculation.drafter.kind = parsed.kind;
  config.speculation.drafter.model = parsed.model;
  return config;
}

}  // namespace fastspec
