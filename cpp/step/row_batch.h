// The rows of one pass on the host: tokens at positions, where their K/V goes, what they may see. Data only.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"
#include "step/slot_lists.h"

namespace fastspec {

struct RowBatch {
  std::vector<TokenId> tokens;               // [num_rows]
  std::vector<std::int32_t> positions;       // [num_rows]
  std::vector<Slot> slots;                   // [num_rows] where K and V are written
  std::vector<std::int32_t> row_offsets{0};  // [num_sequences + 1]
  std::vector<NewMask> masks;                // [num_sequences]
  std::vector<std::uint64_t> mask_bits;      // [num_rows, kMaskWords]
  std::vector<std::int32_t> logit_rows;      // rows whose logits are wanted, ascending
  SlotLists kv;

  int num_rows() const { return static_cast<int>(tokens.size()); }
  int num_sequences() const { return static_cast<int>(masks.size()); }

  /// Empties every array and keeps its memory: a step allocates nothing once it has seen its largest batch.
  void clear() {
    tokens.clear();
    positions.clear();
    slots.clear();
    row_offsets.assign(1, 0);
    masks.clear();
    mask_bits.clear();
    logit_rows.clear();
    kv.lists.clear();
    kv.entries.clear();
    kv.num_unwritten = 0;
    kv.tables.clear();
    kv.contexts.clear();
  }

  /// Ends the current sequence: every row added since the last call belongs to it.
  void end_sequence(NewMask mask) {
    row_offsets.push_back(num_rows());
    masks.push_back(mask);
    mask_bits.resize(tokens.size() * kMaskWords, 0);
  }
};

}  // namespace fastspec
