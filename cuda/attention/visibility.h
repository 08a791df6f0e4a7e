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

/// The `count` lowest of 64 bits; any number is allowed.
FS_HOST_DEVICE inline std::uint64_t low_bits(int count) {
  return count <= 0 ? 0 : count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

/// mask_allows() for new keys [from, from + 64) of a sequence of `num_rows` new rows; from >= 0.
FS_HOST_DEVICE inline std::uint64_t mask_bits_from(NewMask mask, const std::uint64_t* words, int row, int num_rows,
                                                   int from) {
  switch (mask) {
    case NewMask::kCausal:
      return low_bits(row + 1 - from);
    case NewMask::kAncestor: {
      const int word = from / 64;
      const int shift = from % 64;
      std::uint64_t bits = word < kMaskWords ? words[word] >> shift : 0;
      if (shift > 0 && word + 1 < kMaskWords) bits |= words[word + 1] << (64 - shift);
      return bits & low_bits(num_rows - from);
    }
    case NewMask::kFull:
      return low_bits(num_rows - from);
    case NewMask::kNone:
      return 0;
  }
  return 0;
}

/// Which of keys [first, first + 64) of a sequence a row sees where there is no window: `list_length` cached keys, then
/// its new rows.
FS_HOST_DEVICE inline std::uint64_t seen_bits(NewMask mask, const std::uint64_t* words, int row, int num_rows,
                                              int list_length, int first) {
  const int cached = list_length - first;
  if (cached >= 64) return ~std::uint64_t{0};
  if (cached <= 0) return mask_bits_from(mask, words, row, num_rows, -cached);
  return low_bits(cached) | mask_bits_from(mask, words, row, num_rows, 0) << cached;
}

}  // namespace fastspec::cuda
