// Which thread attends to which keys: units of work, their cost, and an equal split of them over threads. Pure
// functions of the arguments; touches no keys.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/params.h"

namespace fastspec::cpu {

/// A block of rows of one sequence against the keys of one K/V head. The sequence's keys are one index: its list, then
/// the new rows; tile i of the unit holds kTileKeys of them from tile_start(i).
struct AttentionUnit {
  int sequence = 0;
  int kv_head = 0;
  int first_row = 0;  // absolute
  int num_rows = 0;
  int num_keys = 0;  // list and new rows that any row of the block may see
  int num_tiles = 0;
  int sink_tiles = 0;  // tiles before those that the window hides
  int hidden_tiles = 0;

  int tile_start(int tile) const { return (tile < sink_tiles ? tile : tile + hidden_tiles) * kTileKeys; }
};

/// Tiles [begin, end) of a unit, for one thread.
struct AttentionPiece {
  int unit = 0;
  int begin = 0;
  int end = 0;
  bool whole = false;  // all tiles of the unit, which may be none
};

class AttentionPlan {
 public:
  /// @param max_rows rows (not packed) a unit may have at most.
  void build(const AttentionParams& params, int max_rows);

  const std::vector<AttentionUnit>& units() const { return units_; }
  /// Cost of all units: about the number of packed rows times tiles.
  std::int64_t cost() const { return starts_.back(); }
  /// Calls visit(piece) for the share of one of `num_threads` threads, in order. At most the first and the last piece
  /// of a thread are not whole.
  template <typename Visit>
  void visit_share(int thread, int num_threads, Visit&& visit) const {
    const std::int64_t low = cost() * thread / num_threads;
    const std::int64_t high = cost() * (thread + 1) / num_threads;
    for (int unit = first_unit(low); unit < static_cast<int>(units_.size()); ++unit) {
      if (starts_[static_cast<std::size_t>(unit)] >= high) return;
      const AttentionPiece piece = share_of_unit(unit, low, high);
      if (piece.begin < piece.end || piece.whole) visit(piece);
    }
  }

 private:
  void add_units(const AttentionParams& params, int sequence, int max_rows);
  int first_unit(std::int64_t cost) const;
  AttentionPiece share_of_unit(int unit, std::int64_t low, std::int64_t high) const;

  std::vector<AttentionUnit> units_;
  std::vector<std::int64_t> starts_;      // [units + 1] running cost
  std::vector<std::int64_t> tile_costs_;  // [units]
};

}  // namespace fastspec::cpu
