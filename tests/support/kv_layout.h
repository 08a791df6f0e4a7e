// Pools of keys and values for random problems.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/params.h"

namespace fastspec::testing {

/// Sets strides and base of `kv` (the rest is given) for a pool with gaps between slots, K and V, heads and pages:
/// strides must be followed, and what lies between is poison.
/// @return the pool: NaN everywhere, whatever the type.
inline std::vector<std::uint8_t> make_gapped_pool(KvView& kv, int num_pages) {
  kv.slot_stride = kv.head_dim + 8;
  kv.value_offset = (std::int64_t{1} << kv.page_shift) * kv.slot_stride + 16;
  kv.head_stride = 2 * kv.value_offset + 8;
  kv.page_stride = kv.num_kv_heads * kv.head_stride + 24;
  std::vector<std::uint8_t> pool(static_cast<std::size_t>(num_pages * kv.page_stride) * size_of(kv.dtype), 0xff);
  kv.base = pool.data();
  return pool;
}

}  // namespace fastspec::testing
