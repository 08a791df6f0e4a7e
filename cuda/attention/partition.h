// How the attention work of one step is cut into equal shares. Pure functions that run on the host and on the device;
// no CUDA header, no memory of their own.
//
// An item is one (sequence, K/V head, row tile). Its keys - the sequence's list, then its new rows - are one index, cut
// into units of 64. All items stand in one line (sequence by sequence, head by head, tile by tile); CTA c of n takes
// the c-th of n equal contiguous ranges of that line. A piece is the part of one item within one range.
#pragma once

#include <cstdint>

#include "backend/params.h"
#include "common/host_device.h"

namespace fastspec::cuda {

constexpr int kUnitKeys = 64;

/// What the plan needs to know of one sequence.
struct SequenceFacts {
  int num_rows = 0;
  int list_length = 0;
  bool pages = true;
  NewMask mask = NewMask::kCausal;
  int lowest_position = 0;  // of its rows; read with a window over pages only
};

/// One sequence's part of the line of units.
struct SequencePlan {
  std::int64_t start = 0;         // first unit
  std::int32_t units = 0;         // of each item; at least 1 where there are rows, since their outputs must be written
  std::int32_t row_tiles = 0;     // 0 without rows
  std::int32_t sink_units = 0;    // units before those that the window hides from every row
  std::int32_t hidden_units = 0;  // so many are left out
};

FS_HOST_DEVICE inline int ceil_div(int value, int divisor) {
  return value / divisor + (value % divisor != 0);
}

/// Keys of one sequence: cached and new.
FS_HOST_DEVICE inline int num_keys(const SequenceFacts& facts) {
  return facts.list_length + (facts.mask == NewMask::kNone ? 0 : facts.num_rows);
}

/// All fields but `start`. `group_size` query heads share a K/V head; a tile holds `tile_rows` (row, head) pairs.
FS_HOST_DEVICE inline SequencePlan plan_sequence(const SequenceFacts& facts, int group_size, int tile_rows, int window,
                                                 int sinks) {
  SequencePlan plan;
  if (facts.num_rows <= 0) return plan;
  plan.row_tiles = ceil_div(facts.num_rows * group_size, tile_rows);
  int units = ceil_div(num_keys(facts), kUnitKeys);
  if (window > 0 && facts.pages) {
    int lowest = facts.lowest_position - window + 1;  // first position that any row sees beside the sinks
    lowest = lowest < 0 ? 0 : lowest > facts.list_length ? facts.list_length : lowest;
    const int first_seen = lowest / kUnitKeys;
    const int sink_keys = sinks < facts.list_length ? sinks : facts.list_length;
    const int sink_units = ceil_div(sink_keys, kUnitKeys);
    plan.sink_units = sink_units < first_seen ? sink_units : first_seen;
    plan.hidden_units = first_seen - plan.sink_units;
    units -= plan.hidden_units;
  }
  plan.units = units > 0 ? units : 1;
  return plan;
}

/// Units of all items of one sequence.
FS_HOST_DEVICE inline std::int64_t total_units(const SequencePlan& plan, int num_kv_heads) {
  return static_cast<std::int64_t>(plan.units) * plan.row_tiles * num_kv_heads;
}

/// First key of a unit of an item. Keys at or past num_keys() do not exist and are seen by no row.
FS_HOST_DEVICE inline int first_key(int sink_units, int hidden_units, int unit) {
  return (unit < sink_units ? unit : unit + hidden_units) * kUnitKeys;
}

/// Units [low, high) of the line.
struct Share {
  std::int64_t low = 0;
  std::int64_t high = 0;
};

/// Shares differ by one unit at most; the longer ones come first.
FS_HOST_DEVICE inline Share share_of(std::int64_t total, int cta, int num_ctas) {
  const std::int64_t size = total / num_ctas;
  const std::int64_t longer = total % num_ctas;
  const std::int64_t low = cta * size + (cta < longer ? cta : longer);
  return {low, low + size + (cta < longer ? 1 : 0)};
}

/// The CTA whose share holds a unit: the reverse of share_of.
FS_HOST_DEVICE inline int cta_of(std::int64_t total, int num_ctas, std::int64_t unit) {
  const std::int64_t size = total / num_ctas;
  const std::int64_t longer = total % num_ctas;
  const std::int64_t border = longer * (size + 1);
  if (unit < border) return static_cast<int>(unit / (size + 1));
  return static_cast<int>(longer + (unit - border) / size);
}

/// Units [begin, end) of one item of one sequence.
struct Piece {
  int sequence = 0;
  int item = 0;  // within the sequence: kv_head * row_tiles + row_tile
  int begin = 0;
  int end = 0;
  int units = 0;                // of the whole item
  std::int64_t item_start = 0;  // in the line

  FS_HOST_DEVICE bool whole() const { return begin == 0 && end == units; }
};

/// Walks the pieces of one share in order. At most the first piece of a share has begin > 0 and at most the last has
/// end < units, so a CTA needs two places for partial results.
struct PieceWalk {
  const SequencePlan* sequences = nullptr;  // [num_sequences + 1], the last with start = total
  std::int64_t at = 0;
  std::int64_t high = 0;
  int sequence = 0;  // any sequence with start <= at

  FS_HOST_DEVICE bool next(Piece& piece) {
    if (at >= high) return false;
    while (at >= sequences[sequence + 1].start) ++sequence;
    const SequencePlan& plan = sequences[sequence];
    const std::int64_t within = at - plan.start;
    piece.sequence = sequence;
    piece.item = static_cast<int>(within / plan.units);
    piece.begin = static_cast<int>(within % plan.units);
    piece.units = plan.units;
    piece.item_start = at - piece.begin;
    const std::int64_t left = high - at;
    piece.end = left < plan.units - piece.begin ? piece.begin + static_cast<int>(left) : plan.units;
    at += piece.end - piece.begin;
    return true;
  }
};

/// Place of a piece's partial result in the workspace: two for each CTA.
FS_HOST_DEVICE inline int partial_slot(int cta, int begin) {
  return 2 * cta + (begin == 0 ? 1 : 0);
}

/// Sequence to start a walk at: the last one with start <= unit. `sequences` as in PieceWalk.
FS_HOST_DEVICE inline int sequence_of_unit(const SequencePlan* sequences, int num_sequences, std::int64_t unit) {
  int low = 0;
  int high = num_sequences;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (sequences[middle].start <= unit) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace fastspec::cuda
