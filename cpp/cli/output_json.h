// Outputs and statistics as JSON objects, under the names of the C++ fields.
#pragma once

#include <fastspec/engine.h>

#include <nlohmann/json.hpp>
#include <string>

namespace fastspec::cli {

nlohmann::ordered_json to_json(const Output& output);
nlohmann::ordered_json to_json(const OutputStats& stats);
nlohmann::ordered_json to_json(const EngineInfo& info);
nlohmann::ordered_json to_json(const CostProfile& profile);
/// What the row budget did, for an engine with a drafter.
nlohmann::ordered_json row_budget_json(const EngineStats& stats);
nlohmann::ordered_json to_json(const SparseStats& stats);

/// Text of a JSON value. Bytes that are no UTF-8 become U+FFFD.
std::string dump(const nlohmann::ordered_json& value);

}  // namespace fastspec::cli
