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

/// The pages of a sequence, which a device may hold from an earlier pass.
struct PageTable {
  const PageId* pages = nullptr;
  int num_pages = 0;
  int num_lasting = 0;        // of these, the first ones: a table of the same version has them too
  std::uint64_t version = 0;  // see PagedKvCache::version; 0 = unknown, nothing lasts
};

struct SlotLists {
  std::vector<KvList> lists;       // [num_sequences]
  std::vector<Slot> entries;       // page ids or slots, sequences one after another
  std::int64_t num_unwritten = 0;  // entries behind these, which operations of the device write
  std::vector<PageTable> tables;   // of the first lists: where a list is one of pages, they stand for its entries
  std::vector<KvList> contexts;    // [num_sequences] all cached keys of those that choose some of them; may be empty
};

/// K and V of a token going from one slot to another.
struct SlotMove {
  Slot source = 0;
  Slot destination = 0;
};

}  // namespace fastspec
