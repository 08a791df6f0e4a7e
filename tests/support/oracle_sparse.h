// Double-precision oracles of the operations of sparse passes, written from the comments of backend/params.h alone: see
// oracle.h. They read the results of nothing and write nothing.
#pragma once

#include <vector>

#include "backend/params.h"

namespace fastspec::oracle {

/// [num_sequences, score_stride]; entries that are not written are NaN. Reads scores before the call where it
/// accumulates.
std::vector<double> score_keys(const ScoreKeysParams& params);
std::vector<double> score_pages(const ScorePagesParams& params);

/// [num_pages, num_kv_heads, 2, head_dim] of the pages in params.pages, in their order; NaN for those with 0 slots.
std::vector<double> page_bounds(const PageBoundsParams& params);

struct Selection {
  std::vector<std::vector<Slot>> slots;  // of each sequence, in order
  std::vector<double> mass;              // [num_sequences, 2]
};
Selection select_slots(const SelectSlotsParams& params);

}  // namespace fastspec::oracle
