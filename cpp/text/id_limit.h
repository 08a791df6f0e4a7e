// How large a token id may be. A file that claims huge ids must not make us allocate tables of that size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace fastspec::text {

/// Exclusive bound of ids for a file that lists `num_tokens` tokens; real files leave gaps of a few hundred at most.
inline std::int64_t id_limit(std::size_t num_tokens) {
  constexpr std::int64_t kAllowedGaps = 65536;
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  return std::min(static_cast<std::int64_t>(num_tokens) + kAllowedGaps, kLargest);
}

}  // namespace fastspec::text
