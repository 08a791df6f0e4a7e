// The numbers of rows that decoding passes are padded to, so that few shapes recur instead of many. Arithmetic only.
#pragma once

#include <algorithm>

namespace fastspec {

constexpr int kMaxRowTier = 512;

/// The smallest tier that holds `num_rows`: 1, 2, 4, ... 128, then multiples of 32 up to kMaxRowTier; at most `limit`.
/// 0 where `num_rows` is beyond both.
constexpr int row_tier(int num_rows, int limit) {
  if (num_rows > std::min(limit, kMaxRowTier)) return 0;
  int tier = 1;
  while (tier < num_rows) tier = tier < 128 ? 2 * tier : tier + 32;
  return std::min(tier, limit);
}

}  // namespace fastspec
