// The KV slots that a pass reads and moves: one list a sequence, dense (pages) or chosen (slots). Data only.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace fastspec {

/// Which of a sequence's own new rows a new row may see.
enum class NewMask : std::uint8_t {
  kCausal,    // itself and the rows before it
  kAncestor,  // the rows set in its bitmask (256 bits, itself included)
  kFull,      // all rows of the sequence
  kNone,      // no new row: only the prefix
};

constexpr int kMaskWords = 4;  // 64-bit words of an ancestor mask: at most 256 new rows under kAncestor

/// The cached keys of one sequence.
struct KvList {
  std::int64_t offset = 0;  // first entry in the array of entries
  std::int32_t length = 0;  // keys
  bool pages = true;        // entries are page ids, key j lies in entry j / page_size; false: one slot a key
};

struct SlotLists {
  std::vector<KvList> lists;  // [num_sequences]
  std::vector<Slot> entries;  // page ids or slots, sequences one after another
};

/// K and V of a token going from one slot to another.
struct SlotMove {
  Slot source = 0;
  Slot destination = 0;
};

}  // namespace fastspec
