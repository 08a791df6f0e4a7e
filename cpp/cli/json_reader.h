// The one way JSON comes into the program: depth and numbers of members are bounded, since files come from strangers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fastspec::cli {

/// @tparam Json nlohmann::json, or nlohmann::ordered_json, whose objects search their members one by one and may
/// therefore have no more than a thousand.
/// @param what starts every message. @throws Error(kInvalidFile).
template <typename Json>
Json parse_json(std::string_view text, const std::string& what);

}  // namespace fastspec::cli
