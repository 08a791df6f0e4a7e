// See attention_plan.h.
#include "backend/cpu/attention_plan.h"

#include <algorithm>

namespace fastspec::cpu {
namespace {

// What a tile costs beside its packed rows, in packed rows: reading keys and values.
constexpr int kTileOverhead = 6;

/// Keys that the rows [first, end) of a sequence may see at most: its list, then new rows.
int visible_keys(const AttentionParams& params, int sequence, int end_row) {
  const int cached = params.lists[sequence].length;
  const int begin = params.row_offsets[sequence];
  switch (params.masks[sequence]) {
    case NewMask::kCausal:
      return cached + (end_row - begin);
    case NewMask::kNone:
      return cached;
    case NewMask::kAncestor:
    case NewMask::kFull:
      break;
  }
  return cached + (params.row_offsets[sequence + 1] - begin);
}

/// Leaves out the tiles of a page list that lie before the window of every row and behind the sinks.
void hide_tiles(const AttentionParams& params, AttentionUnit& unit) {
  const KvList& list = params.lists[unit.sequence];
  if (params.window == 0 || !list.pages) return;
  const std::int32_t* positions = params.positions + unit.first_row;
  const int lowest = *std::min_element(positions, positions + unit.num_rows) - params.window + 1;
  const int first_seen = std::clamp(lowest, 0, list.length) / kTileKeys;
  unit.sink_tiles = std::min(first_seen, (std::min(params.sinks, list.length) + kTileKeys - 1) / kTileKeys);
  unit.hidden_tiles = first_seen - unit.sink_tiles;
  unit.num_tiles = std::max(0, unit.num_tiles - unit.hidden_tiles);
}

}  // namespace

void AttentionPlan::build(const AttentionParams& params, int max_rows) {
  units_.clear();
  starts_.assign(1, 0);
  tile_costs_.clear();
  for (int sequence = 0; sequence < params.num_sequences; ++sequence) add_units(params, sequence, max_rows);
}

void AttentionPlan::add_units(const AttentionParams& params, int sequence, int max_rows) {
  const int group_size = params.num_heads / params.kv.num_kv_heads;
  for (int kv_head = 0; kv_head < params.kv.num_kv_heads; ++kv_head) {
    for (int row = params.row_offsets[sequence]; row < params.row_offsets[sequence + 1]; row += max_rows) {
      AttentionUnit unit;
      unit.sequence = sequence;
      unit.kv_head = kv_head;
      unit.first_row = row;
      unit.num_rows = std::min(max_rows, params.row_offsets[sequence + 1] - row);
      unit.num_keys = visible_keys(params, sequence, row + unit.num_rows);
      unit.num_tiles = (unit.num_keys + kTileKeys - 1) / kTileKeys;
      hide_tiles(params, unit);
      units_.push_back(unit);
      tile_costs_.push_back(std::int64_t{unit.num_rows} * group_size + kTileOverhead);
      // A unit without tiles still has outputs to write.
      starts_.push_back(starts_.back() + std::max<std::int64_t>(1, tile_costs_.back() * unit.num_tiles));
    }
  }
}

int AttentionPlan::first_unit(std::int64_t cost) const {
  return std::max(0, static_cast<int>(std::upper_bound(starts_.begin(), starts_.end(), cost) - starts_.begin()) - 1);
}

AttentionPiece AttentionPlan::share_of_unit(int index, std::int64_t low, std::int64_t high) const {
  const AttentionUnit& unit = units_[static_cast<std::size_t>(index)];
  const std::int64_t start = starts_[static_cast<std::size_t>(index)];
  const std::int64_t tile_cost = tile_costs_[static_cast<std::size_t>(index)];
  // A tile belongs to the thread in whose range its cost begins.
  const auto tiles_before = [&](std::int64_t cost) {
    const std::int64_t tiles = cost <= start ? 0 : (cost - start + tile_cost - 1) / tile_cost;
    return static_cast<int>(std::min<std::int64_t>(unit.num_tiles, tiles));
  };
  AttentionPiece piece{index, tiles_before(low), tiles_before(high), false};
  piece.whole = piece.begin == 0 && piece.end == unit.num_tiles && start >= low;
  return piece;
}

}  // namespace fastspec::cpu
