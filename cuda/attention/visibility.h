// Which keys a row sees: the rules of AttentionParams as pure functions for host and device.
#pragma once

#include <cstdint>

#include "backend/params.h"
#include "common/host_device.h"

namespace fastspec::cuda {

/// Whether window and sinks let a row see a key; both by position. window = 0: no window.
FS_HOST_DEVICE inline bool in_window(int window, int sinks, int row_position, int key_position) {
  return window <= 0 || key_position > row_position - window || key_position < sinks;
}

/// Whether new row `row` of a sequence sees new row `key` of it (both counted from the sequence's first row).
/// @param words [kMaskWords] ancestor bits of `row`; read under kAncestor only.
FS_HOST_DEVICE inline bool mask_allows(NewMask mask, const std::uint64_t* words, int row, int key) {
  switch (mask) {
    case NewMask::kCausal:
      return key <= row;
    case NewMask::kAncestor:
      return key < 64 * kMaskWords && ((words[key >> 6] >> (key & 63)) & 1u) != 0;
    case NewMask::kFull:
      return true;
    case NewMask::kNone:
      return false;
  }
  return false;
}

}  // namespace fastspec::cuda
