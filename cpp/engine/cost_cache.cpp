// See cost_cache.h.
#include "engine/cost_cache.h"

#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/log.h"
#include "io/json.h"

namespace fastspec {

namespace {

constexpr int kMaxCount = 1 << 20;
constexpr JsonLimits kLimits{.max_bytes = std::size_t{1} << 20, .max_depth = 8};

nlohmann::ordered_json table_json(const CostTable& table) {
  return {{"counts", table.counts}, {"milliseconds", table.milliseconds}};
}

double read_milliseconds(const JsonView& value) {
  const double milliseconds = value.as_number();
  if (!std::isfinite(milliseconds) || milliseconds < 0) {
    value.refuse(ErrorCode::kInvalidFile, milliseconds, " is no time");
  }
  return milliseconds;
}

CostTable read_table(const JsonView& value) {
  CostTable table;
  for (const JsonView& count : value.at("counts").elements()) {
    const std::int64_t lowest = table.counts.empty() ? 1 : table.counts.back() + 1;
    table.counts.push_back(static_cast<int>(count.as_integer(lowest, kMaxCount)));
  }
  for (const JsonView& time : value.at("milliseconds").elements())
    table.milliseconds.push_back(read_milliseconds(time));
  if (table.counts.empty() || table.counts.size() != table.milliseconds.size()) {
    value.refuse(ErrorCode::kInvalidFile, table.counts.size(), " counts, ", table.milliseconds.size(), " times");
  }
  return table;
}

nlohmann::ordered_json to_json(const CostParameters& costs) {
  return {{"rows_per_tile", costs.rows_per_tile}, {"linear", table_json(costs.linear)},
          {"per_tile_key", costs.per_tile_key},   {"per_key", costs.per_key},
          {"per_sequence", costs.per_sequence},   {"draft", table_json(costs.draft)},
          {"draft_per_key", costs.draft_per_key}};
}

CostParameters read_costs(const JsonView& json) {
  return {.rows_per_tile = static_cast<int>(json.at("rows_per_tile").as_integer(1, kMaxCount)),
          .linear = read_table(json.at("linear")),
          .per_tile_key = read_milliseconds(json.at("per_tile_key")),
          .per_key = read_milliseconds(json.at("per_key")),
          .per_sequence = read_milliseconds(json.at("per_sequence")),
          .draft = read_table(json.at("draft")),
          .draft_per_key = read_milliseconds(json.at("draft_per_key"))};
}

/// FNV-1a: names a file, and the key inside it is compared.
std::uint64_t hash(const std::string& text) {
  std::uint64_t value = 0xCBF29CE484222325u;
  for (const char byte : text) value = (value ^ static_cast<unsigned char>(byte)) * 0x100000001B3u;
  return value;
}

std::filesystem::path absolute_of(const char* variable) {
  const char* value = std::getenv(variable);
  const std::filesystem::path path = value == nullptr ? "" : value;
  return path.is_absolute() ? path : std::filesystem::path();  // the rule for XDG variables
}

}  // namespace

CostCache::CostCache(std::filesystem::path directory, std::string key) : key_(std::move(key)) {
  if (directory.empty()) return;
  std::ostringstream name;
  name << "cost-" << std::hex << std::setw(16) << std::setfill('0') << hash(key_) << ".json";
  path_ = std::move(directory) / name.str();
}

std::filesystem::path CostCache::default_directory() {
  if (const char* chosen = std::getenv("FASTSPEC_CACHE"); chosen != nullptr && *chosen != 0) {
    std::error_code error;
    const std::filesystem::path whole = std::filesystem::absolute(chosen, error);  // from here, wherever we go later
    return error ? std::filesystem::path(chosen) : whole;
  }
  if (const auto cache = absolute_of("XDG_CACHE_HOME"); !cache.empty()) return cache / "fastspec";
  if (const auto home = absolute_of("HOME"); !home.empty()) return home / ".cache" / "fastspec";
  return {};
}

std::optional<CostParameters> CostCache::load() const {
  if (path_.empty()) return std::nullopt;
  try {
    const Json json = parse_json_file(path_, kLimits);
    const JsonView view(json, path_.string());
    if (view.at("key").as_string() != key_) {
      log(LogLevel::kWarning, path_.string(), " holds the costs of something else; they are measured anew");
      return std::nullopt;
    }
    return read_costs(view.at("costs"));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) {
      log(LogLevel::kWarning, error.what(), "; the costs are measured anew");
    }
    return std::nullopt;
  }
}

bool CostCache::store(const CostParameters& parameters) const {
  // Sequences are too short for any draft: measured in no time, and no file holds an empty table.
  const bool is_empty = parameters.linear.counts.empty() || parameters.draft.counts.empty();
  if (path_.empty() || is_empty) return false;
  std::error_code error;
  std::filesystem::create_directories(path_.parent_path(), error);
  std::filesystem::path draft = path_;
  draft += "." + std::to_string(getpid());
  {
    std::ofstream file(draft, std::ios::trunc);
    const nlohmann::ordered_json json = {{"key", key_}, {"costs", to_json(parameters)}};
    file << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
    file.close();
    if (file) std::filesystem::rename(draft, path_, error);
    if (file && !error) return true;
  }
  log(LogLevel::kWarning, "the measured costs cannot be kept in ", path_.string(),
      "; the next start measures them again");
  std::filesystem::remove(draft, error);
  return false;
}

}  // namespace fastspec
