// See level_batch.h.
#include "draft/longspec/level_batch.h"

#include <algorithm>

namespace fastspec {

namespace {

PassLimits pass_limits(const LevelBatch::Limits& limits) {
  return {.max_rows = std::max(limits.max_rows, limits.max_projected_rows),
          // Of all three groups, and two for their arrays of offsets, which have an entry more than sequences.
          .max_sequences = 2 * limits.max_trees + limits.max_rows + 2,
          .max_list_entries = limits.max_list_entries,
          .page_tables = false};
}

}  // namespace

LevelBatch::LevelBatch(Device& device, const Limits& limits) : limits_(limits), buffers_(device, pass_limits(limits)) {}

std::size_t LevelBatch::device_bytes(const Limits& limits) {
  return PassBuffers::device_bytes(pass_limits(limits));
}

void LevelBatch::clear() {
  rows_.clear();
  tree_offsets_.assign(1, 0);
  window_.clear();
  ancestry_.clear();
  cross_.clear();
  num_tree_rows_ = 0;
}

KvList LevelBatch::append(std::span<const Slot> slots) {
  const KvList list{.offset = static_cast<std::int64_t>(rows_.kv.entries.size()),
                    .length = static_cast<std::int32_t>(slots.size()),
                    .pages = false};
  rows_.kv.entries.insert(rows_.kv.entries.end(), slots.begin(), slots.end());
  return list;
}

void LevelBatch::add_row(TokenId token, int position, Slot slot, std::span<const Slot> ancestors) {
  rows_.tokens.push_back(token);
  rows_.positions.push_back(position);
  rows_.slots.push_back(slot);
  ancestry_.push_back(append(ancestors));
}

void LevelBatch::close_tree(std::span<const Slot> window, KvList cross) {
  num_tree_rows_ = num_rows();
  tree_offsets_.push_back(num_tree_rows_);
  cross_.push_back(cross);
  window_.push_back(append(window));
}

void LevelBatch::end_tree(std::span<const Slot> window, std::span<const Slot> cross_slots) {
  close_tree(window, append(cross_slots));
}

void LevelBatch::end_tree(std::span<const Slot> window, std::span<const PageId> cross_pages, int cross_length) {
  const KvList cross{
      .offset = static_cast<std::int64_t>(rows_.kv.entries.size()), .length = cross_length, .pages = true};
  rows_.kv.entries.insert(rows_.kv.entries.end(), cross_pages.begin(), cross_pages.end());
  close_tree(window, cross);
}

int LevelBatch::max_rows_per_tree() const {
  int most = 1;
  for (std::size_t tree = 0; tree + 1 < tree_offsets_.size(); ++tree) {
    most = std::max(most, tree_offsets_[tree + 1] - tree_offsets_[tree]);
  }
  return most;
}

void LevelBatch::pad(int num_rows, Slot padding_slot) {
  const auto trees = static_cast<std::size_t>(limits_.max_trees);
  tree_offsets_.resize(trees + 1, num_tree_rows_);
  window_.resize(trees, {.pages = false});
  cross_.resize(trees, {.pages = false});
  while (rows_.num_rows() < num_rows) add_row(0, 0, padding_slot, {});
}

/// Arrays of the three groups one after another, each as attention expects its own.
void LevelBatch::assemble() {
  rows_.row_offsets = tree_offsets_;
  for (int row = 0; row <= num_rows(); ++row) rows_.row_offsets.push_back(std::min(row, num_tree_rows_));
  rows_.row_offsets.insert(rows_.row_offsets.end(), tree_offsets_.begin(), tree_offsets_.end());
  rows_.kv.lists = window_;
  rows_.kv.lists.insert(rows_.kv.lists.end(), ancestry_.begin(), ancestry_.end());
  rows_.kv.lists.insert(rows_.kv.lists.end(), cross_.begin(), cross_.end());
  rows_.masks.assign(window_.size(), NewMask::kNone);
  rows_.masks.insert(rows_.masks.end(), ancestry_.size(), NewMask::kCausal);
  rows_.masks.insert(rows_.masks.end(), cross_.size(), NewMask::kNone);
}

LevelPass LevelBatch::upload(int max_rows_per_tree) {
  assemble();
  const Pass pass = buffers_.upload(rows_);
  const int trees = static_cast<int>(window_.size());
  const auto group = [&](int first_offset, int first_list, int count, int most) {
    return RowGroup{count, most, pass.row_offsets + first_offset, pass.lists + first_list, pass.masks + first_list};
  };
  return {.pass = pass,
          .window = group(0, 0, trees, max_rows_per_tree),
          .ancestry = group(trees + 1, trees, num_rows(), 1),
          .cross = group(trees + num_rows() + 2, trees + num_rows(), trees, max_rows_per_tree)};
}

Pass LevelBatch::upload_rows() {
  rows_.row_offsets.assign(1, 0);
  rows_.masks.clear();
  rows_.kv.lists.clear();
  return buffers_.upload(rows_);
}

}  // namespace fastspec
