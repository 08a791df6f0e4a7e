// Where keys lie: addressing of KvView and KvList and the visibility rules of AttentionParams, shared by the CPU paths.
#pragma once

#include <cstdint>

#include "backend/params.h"

namespace fastspec::cpu {

/// First element of K (which = 0) or V (which = 1) of one slot and head.
template <typename T>
T* kv_address(const KvView& kv, Slot slot, int kv_head, int which) {
  const Slot page = slot >> kv.page_shift;
  const Slot offset = slot & ((Slot{1} << kv.page_shift) - 1);
  return static_cast<T*>(kv.base) + page * kv.page_stride + kv_head * kv.head_stride + which * kv.value_offset +
         offset * kv.slot_stride;
}

/// Slot of key `index` of a list.
inline Slot list_slot(const KvView& kv, const KvList& list, const Slot* entries, std::int32_t index) {
  if (!list.pages) return entries[list.offset + index];
  const Slot page = entries[list.offset + (index >> kv.page_shift)];
  return (page << kv.page_shift) | (index & ((std::int32_t{1} << kv.page_shift) - 1));
}

/// Whether a row at `row_position` may see a key at `key_position` as far as window and sinks decide it.
inline bool in_window(const AttentionParams& params, std::int32_t row_position, std::int32_t key_position) {
  return params.window <= 0 || key_position > row_position - params.window || key_position < params.sinks;
}

/// Whether the mask of `sequence` lets row `row` see row `key_row` (both absolute, of that sequence). Window apart.
inline bool mask_allows(const AttentionParams& params, int sequence, int row, int key_row) {
  switch (params.masks[sequence]) {
    case NewMask::kCausal:
      return key_row <= row;
    case NewMask::kFull:
      return true;
    case NewMask::kNone:
      return false;
    case NewMask::kAncestor: {
      const int bit = key_row - params.row_offsets[sequence];
      return (params.mask_bits[std::int64_t{row} * kMaskWords + (bit >> 6)] >> (bit & 63)) & 1u;
    }
  }
  return false;
}

}  // namespace fastspec::cpu
