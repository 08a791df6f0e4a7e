// How the attention work of one step is cut into equal shares. Pure functions that run on the host and on the device;
// no CUDA header, no memory of their own.
//
// An item is one (sequence, K/V head, row tile). Its keys - the sequence's list, then its new rows - are one index, cut
// into units of 64. All items stand in one line (sequence by sequence, head by head, tile by tile), the line is cut
// into contiguous shares, and a piece is the part of one item within one share. Shares are equal to within a unit;
// where that costs little they are a fixed number of units and every item starts a share of its own
// (Line::share_units), so that no share holds parts of two items. Where every sequence has the same T > 1 row tiles,
// the line holds each (sequence, K/V head) once and T neighbouring CTAs take the same share, a tile each: K/V then come
// from L2 T - 1 times.
#pragma once

#include <cstdint>

#include "backend/params.h"
#include "common/host_device.h"

namespace fastspec::cuda {

constexpr int kUnitKeys = 64;
constexpr int kFewUnits = 16;        // a SM: below, one CTA an SM
constexpr int kShortestShare = 2;    // units; their loads are in flight together
constexpr int kFixedShareSlack = 2;  // units
constexpr int kWholeUnits = 10;      // of items that stay whole rather than be cut in two
constexpr int kMergedAtOnce = 16;    // parts; more are merged in two steps

/// What the plan needs to know of one sequence.
struct SequenceFacts {
  int row_begin = 0;
  int num_rows = 0;
  std::int64_t entries_offset = 0;
  int list_length = 0;
  bool pages = true;
  NewMask mask = NewMask::kCausal;
  int lowest_position = 0;  // of its rows; read with a window over pages only
};

/// One sequence: its part of the line of units, and all that its items need to know of it. One aligned read.
struct alignas(16) SequencePlan {
  std::int64_t start = 0;         // first unit
  std::int64_t end = 0;           // one past its last
  std::int32_t units = 0;         // of each item; at least 1 where there are rows, since their outputs must be written
  std::int32_t span = 0;          // of each item in the line: `units`, rounded up to whole shares where they are fixed
  std::int32_t row_tiles = 0;     // 0 without rows
  std::int32_t sink_units = 0;    // units before those that the window hides from every row
  std::int32_t hidden_units = 0;  // so many are left out
  std::int32_t row_begin = 0;
  std::int32_t num_rows = 0;
  std::int32_t list_length = 0;
  std::int64_t entries_offset = 0;  // of its list
  bool pages = true;
  NewMask mask = NewMask::kCausal;
};

/// The line as a whole.
struct Line {
  std::int64_t total = 0;        // units
  std::int32_t num_shares = 1;   // some may be empty
  std::int32_t share_units = 0;  // 0 = equal shares
  std::int32_t group_tiles = 1;  // CTAs of one share
};

FS_HOST_DEVICE inline int ceil_div(int value, int divisor) {
  return value / divisor + (value % divisor != 0);
}

/// Keys of one sequence: cached and new.
FS_HOST_DEVICE inline int num_keys(const SequenceFacts& facts) {
  return facts.list_length + (facts.mask == NewMask::kNone ? 0 : facts.num_rows);
}

/// All fields but `start` and `end`. `group_size` query heads share a K/V head; a tile holds `tile_rows` (row, head)
/// pairs.
FS_HOST_DEVICE inline SequencePlan plan_sequence(const SequenceFacts& facts, int group_size, int tile_rows, int window,
                                                 int sinks) {
  SequencePlan plan;
  if (facts.num_rows <= 0) return plan;
  plan.row_begin = facts.row_begin;
  plan.num_rows = facts.num_rows;
  plan.entries_offset = facts.entries_offset;
  plan.list_length = facts.list_length;
  plan.pages = facts.pages;
  plan.mask = facts.mask;
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
  plan.span = plan.units;
  return plan;
}

/// Units of all items of one sequence in a line of `group_tiles`.
FS_HOST_DEVICE inline std::int64_t total_units(const SequencePlan& plan, int num_kv_heads, int group_tiles) {
  const int tiles = group_tiles > 1 && plan.row_tiles > 0 ? 1 : plan.row_tiles;
  return static_cast<std::int64_t>(plan.span) * tiles * num_kv_heads;
}

/// Shares that all items of one sequence take, of `share_units` each.
FS_HOST_DEVICE inline std::int64_t shares_taken(const SequencePlan& plan, int num_kv_heads, int group_tiles,
                                                int share_units) {
  const int tiles = group_tiles > 1 && plan.row_tiles > 0 ? 1 : plan.row_tiles;
  return static_cast<std::int64_t>(ceil_div(plan.units, share_units)) * tiles * num_kv_heads;
}

/// CTAs worth starting: where there is little work, fewer parts to merge beat more loads in flight.
FS_HOST_DEVICE inline int shares_wanted(std::int64_t total, int num_ctas, int num_sms) {
  return total <= static_cast<std::int64_t>(num_sms) * kFewUnits ? num_sms : num_ctas;
}

/// Longest fixed share that may replace equal ones of `equal` units: the wait for the longest share costs less than a
/// second piece does.
FS_HOST_DEVICE inline int longest_fixed_share(int equal) {
  return equal + kFixedShareSlack;
}

/// Length of shares that hold an item each, where one CTA reads the keys of a short item (a list of slots, mostly) in
/// less time than two need to read half of them and merge; longer than that, or cut in more than two, items are shared.
FS_HOST_DEVICE inline int whole_share(int equal) {
  return 2 * equal < kWholeUnits ? 2 * equal : kWholeUnits;
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

/// Quotient of numbers >= 0; 64-bit division is a long loop on the device, so it is left to those who need it.
FS_HOST_DEVICE inline std::int64_t quotient(std::int64_t value, std::int64_t divisor) {
  if (((value | divisor) >> 32) == 0) return static_cast<std::uint32_t>(value) / static_cast<std::uint32_t>(divisor);
  return value / divisor;
}

/// Equal shares differ by one unit at most; the longer ones come first.
FS_HOST_DEVICE inline Share share_of(const Line& line, int index) {
  if (line.share_units > 0) {
    const std::int64_t low = static_cast<std::int64_t>(index) * line.share_units;
    const std::int64_t high = low + line.share_units;
    return {low < line.total ? low : line.total, high < line.total ? high : line.total};
  }
  const std::int64_t size = quotient(line.total, line.num_shares);
  const std::int64_t longer = line.total - size * line.num_shares;
  const std::int64_t low = index * size + (index < longer ? index : longer);
  return {low, low + size + (index < longer ? 1 : 0)};
}

/// The share that holds a unit: the reverse of share_of.
FS_HOST_DEVICE inline int share_holding(const Line& line, std::int64_t unit) {
  if (line.share_units > 0) return static_cast<int>(quotient(unit, line.share_units));
  const std::int64_t size = quotient(line.total, line.num_shares);
  const std::int64_t longer = line.total - size * line.num_shares;
  const std::int64_t border = longer * (size + 1);
  if (unit < border) return static_cast<int>(quotient(unit, size + 1));
  return static_cast<int>(longer + quotient(unit - border, size));
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
  const SequencePlan* sequences = nullptr;  // [num_sequences + 1], the last one empty
  std::int64_t at = 0;
  std::int64_t high = 0;
  int sequence = 0;   // any sequence with start <= at
  int row_tile = -1;  // of a CTA in a group; -1 where items of the line are single tiles
  SequencePlan plan;  // of `sequence`

  FS_HOST_DEVICE bool next(Piece& piece) {
    if (at >= high) return false;
    while (at >= plan.end) plan = sequences[++sequence];
    const std::int64_t within = at - plan.start;
    const int item = within < plan.span ? 0 : static_cast<int>(quotient(within, plan.span));
    piece.sequence = sequence;
    piece.item = row_tile < 0 ? item : item * plan.row_tiles + row_tile;
    piece.begin = static_cast<int>(within - static_cast<std::int64_t>(item) * plan.span);
    piece.units = plan.units;
    piece.item_start = at - piece.begin;
    const std::int64_t left = high - at;
    const bool last = left >= plan.units - piece.begin;
    piece.end = last ? plan.units : piece.begin + static_cast<int>(left);
    at = last ? piece.item_start + plan.span : high;
    return true;
  }
};

/// Place of a piece's partial result in the workspace: two for each CTA. `begin` may be any number that is 0 for the
/// first part of an item only.
FS_HOST_DEVICE inline int partial_slot(int cta, int begin) {
  return 2 * cta + (begin == 0 ? 1 : 0);
}

/// The parts of one item, in order: which CTA made each. Merged in two steps where there are many, so that no CTA reads
/// more than a few dozen: `group` parts that stand next to each other, then the groups.
struct ItemParts {
  int first_cta = 0;
  int stride = 1;  // from one part's CTA to the next one's
  int count = 1;
  bool leads = true;  // whether part 0 begins the item

  FS_HOST_DEVICE int cta(int part) const { return first_cta + part * stride; }
  FS_HOST_DEVICE int slot(int part) const { return partial_slot(cta(part), leads ? part : 1); }
  /// Parts of a group; `count` where one step does.
  FS_HOST_DEVICE int group() const {
    if (count <= kMergedAtOnce) return count;
    int size = 4;
    while (size * size < count) ++size;
    return size;
  }
  /// `size` parts from part `first` on, or those that are left.
  FS_HOST_DEVICE ItemParts neighbours(int first, int size) const {
    return {cta(first), stride, size < count - first ? size : count - first, first == 0};
  }
  /// The first part of every group.
  FS_HOST_DEVICE ItemParts groups() const { return {first_cta, stride * group(), ceil_div(count, group()), true}; }
};

FS_HOST_DEVICE inline ItemParts parts_of(const Line& line, const Piece& piece, int row_tile) {
  const int first = share_holding(line, piece.item_start);
  const int last = share_holding(line, piece.item_start + piece.units - 1);
  return {first * line.group_tiles + (row_tile < 0 ? 0 : row_tile), line.group_tiles, last - first + 1};
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
