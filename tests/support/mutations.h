// Deterministic faults for files: what a hostile or broken writer could produce. Uses nothing of the code under test.
#pragma once

#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace fastspec::test {

using Random = std::mt19937;

/// One fault in the bytes: flipped bits, overwritten, removed, inserted or repeated runs, a cut at a random place.
std::string mutate_bytes(std::string bytes, Random& random);

/// One fault in the document, which stays well-formed JSON unless a name is doubled: a value replaced by a hostile one,
/// a member removed, renamed, added or doubled.
std::string mutate_json(const nlohmann::json& document, Random& random);

}  // namespace fastspec::test
