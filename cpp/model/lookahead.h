// What the rows of a draft asked of the cached context: their queries, and whose keys these are for. Drafters fill it,
// selectors score the whole context by it. Data only.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/params.h"

namespace fastspec {

/// Of the last draft of one drafter.
struct Lookahead {
  struct Layer {
    Matrix queries;  // [rows, num_heads * head_dim] rotated, in device memory, always at the same place
    KvView kv;       // in the target's slots
  };
  std::vector<Layer> layers;  // as they were asked for when the drafter was made
  int num_heads = 0;
  // Of the requests of the last draft(), in their order.
  std::vector<std::int32_t> row_offsets{0};  // [requests + 1]
  std::vector<std::int32_t> rows;            // of `queries`; those of a request that was not drafted for are none
  std::vector<float> weights;  // [rows] chance that it is reached: product of the confidences on its path, 1 for roots

  void clear() {
    row_offsets.assign(1, 0);
    rows.clear();
    weights.clear();
  }
  void end_request() { row_offsets.push_back(static_cast<std::int32_t>(rows.size())); }
};

}  // namespace fastspec
