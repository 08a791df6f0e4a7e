// Device memory in which draft trees grow: what operations write of one level for those of the next. No work.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/device.h"
#include "backend/params.h"
#include "draft/longspec/tree_shape.h"

namespace fastspec {

class GrownLevels {
 public:
  /// Of one level of all trees.
  struct Level {
    TokenId* tokens = nullptr;   // [rows]
    double* scores = nullptr;    // [rows]
    Slot* ancestors = nullptr;   // [rows, level - 1]
    TokenId* paths = nullptr;    // [rows, level]
    KvList* ancestry = nullptr;  // [rows] constant: each row's part of `ancestors`
  };
  struct Arrays {
    std::vector<Level> levels;            // that are computed; of the root's only `ancestry`
    TokenId* proposals = nullptr;         // [rows, top_k] of one level
    float* confidences = nullptr;         // [rows, top_k] of one level
    std::int32_t* row_numbers = nullptr;  // [rows + 1] constant: offsets of sequences of one row each
    NewMask* masks = nullptr;             // [rows] constant: of such sequences
  };

  /// For trees of up to that many, and no wider.
  GrownLevels(Device& device, const TreeShape& most);
  static std::size_t device_bytes(const TreeShape& most);

  const Arrays& arrays() const { return arrays_; }

 private:
  void write_constants(Device& device, const TreeShape& most) const;

  Buffer memory_;
  Arrays arrays_;
};

}  // namespace fastspec
