// See tree_batch.h. In rows_, positions and slots are those of all levels, level by level; row_offsets [levels,
// num_trees + 1] share out each level's rows; lists are the trees' of cross-attention, then each level's windows.
#include "draft/longspec/tree_batch.h"

#include <algorithm>

#include "base/check.h"

namespace fastspec {

PassLimits TreeBatch::pass_limits(const Limits& limits) {
  const TreeShape& most = limits.most;
  return {.max_rows = most.num_trees * most.nodes_above(most.depth()),
          .max_sequences = most.depth() * (most.num_trees + 1) + most.num_trees,
          .max_list_entries = std::int64_t{most.num_trees} * (limits.window + 1) + limits.max_cross_slots,
          .tables = limits.page_tables};
}

TreeBatch::TreeBatch(Device& device, const Limits& limits)
    : limits_(limits),
      buffers_(device, pass_limits(limits)),
      grown_(device, limits.most),
      nodes_(device.allocate_host(sizeof(BeamNode) * static_cast<std::size_t>(limits.most.num_trees) *
                                      static_cast<std::size_t>(limits.most.nodes_above(limits.most.depth() + 1)),
                                  "drafted nodes")) {
  // Memory for every window now: were it to move later, what was recorded before would be lost.
  rows_.kv.entries.resize(static_cast<std::size_t>(limits.most.num_trees) *
                          static_cast<std::size_t>(limits.window + 1));
  buffers_.upload(rows_);
}

std::size_t TreeBatch::device_bytes(const Limits& limits) {
  return PassBuffers::device_bytes(pass_limits(limits)) + GrownLevels::device_bytes(limits.most);
}

void TreeBatch::begin(const TreeShape& shape, Slot padding_slot) {
  FS_CHECK(shape.num_trees <= limits_.most.num_trees && shape.depth() <= limits_.most.depth(), shape.num_trees,
           " trees of depth ", shape.depth(), ", limits ", limits_.most.num_trees, " and ", limits_.most.depth());
  shape_ = shape;
  num_added_ = 0;
  const auto trees = static_cast<std::size_t>(shape.num_trees);
  const std::size_t rows = trees * static_cast<std::size_t>(shape.nodes_above(shape.depth()));
  rows_.clear();
  rows_.tokens.assign(trees, 0);
  rows_.positions.assign(rows, 0);
  rows_.slots.assign(rows, padding_slot);
  rows_.masks.assign(trees, NewMask::kNone);
  rows_.kv.lists.assign(trees * static_cast<std::size_t>(1 + shape.depth()), {.pages = false});
  rows_.kv.tables.assign(trees, {});
}

void TreeBatch::add(const Tree& added) {
  FS_CHECK(num_added_ < shape_.num_trees && std::ssize(added.nodes) == shape_.nodes_above(shape_.depth()),
           added.nodes.size(), " slots for tree ", num_added_, " of ", shape_.num_trees, " with ",
           shape_.nodes_above(shape_.depth()), " computed nodes");
  const int tree = num_added_++;
  rows_.tokens[static_cast<std::size_t>(tree)] = added.root;
  for (int level = 0; level < shape_.depth(); ++level) {
    const int first = shape_.num_trees * shape_.nodes_above(level) + tree * shape_.width(level);
    std::fill_n(rows_.positions.begin() + first, shape_.width(level), added.root_position + level);
    std::copy_n(added.nodes.begin() + shape_.nodes_above(level), shape_.width(level), rows_.slots.begin() + first);
  }
  add_window(tree, added);
  add_cross(tree, added);
}

void TreeBatch::add_window(int tree, const Tree& added) {
  const int first = window_begin(added.root_position);
  const auto offset = std::ssize(rows_.kv.entries);
  rows_.kv.entries.insert(rows_.kv.entries.end(), added.window.begin(), added.window.end());
  for (int level = 0; level < shape_.depth(); ++level) {
    // Below the root's level its K/V is a cached key like those before it.
    const int end = added.root_position + (level > 0 ? 1 : 0);
    const int begin = std::min(window_begin(added.root_position + level), end);
    rows_.kv.lists[static_cast<std::size_t>(shape_.num_trees * (1 + level) + tree)] = {
        .offset = offset + begin - first, .length = end - begin, .pages = false};
  }
}

void TreeBatch::add_cross(int tree, const Tree& added) {
  KvList& list = rows_.kv.lists[static_cast<std::size_t>(tree)];
  if (added.cross_slots.empty()) {
    list = {.length = added.root_position, .pages = true};
    rows_.kv.tables[static_cast<std::size_t>(tree)] = added.cross_pages;
    return;
  }
  list = {.offset = std::ssize(rows_.kv.entries),
          .length = static_cast<std::int32_t>(added.cross_slots.size()),
          .pages = false};
  rows_.kv.entries.insert(rows_.kv.entries.end(), added.cross_slots.begin(), added.cross_slots.end());
}

void TreeBatch::stage() {
  rows_.row_offsets.clear();
  for (int level = 0; level < shape_.depth(); ++level) {
    for (int tree = 0; tree <= shape_.num_trees; ++tree) {
      rows_.row_offsets.push_back(std::min(tree, num_added_) * shape_.width(level));
    }
  }
  pass_ = buffers_.stage(rows_);
}

LevelPass TreeBatch::level(int level) const {
  const int trees = shape_.num_trees, width = shape_.width(level), rows = shape_.num_rows(level);
  const int first_row = trees * shape_.nodes_above(level);
  const GrownLevels::Arrays& arrays = grown_.arrays();
  const GrownLevels::Level& own = arrays.levels[static_cast<std::size_t>(level)];
  const std::int32_t* offsets = pass_.row_offsets + level * (trees + 1);
  return {.num_rows = rows,
          .tokens = level == 0 ? pass_.tokens : own.tokens,
          .positions = pass_.positions + first_row,
          .slots = pass_.slots + first_row,
          .window = {trees, width, offsets, pass_.lists + trees * (1 + level), pass_.entries, pass_.masks},
          .ancestry = {rows, 1, arrays.row_numbers, own.ancestry, own.ancestors, arrays.masks},
          .cross = {trees, width, offsets, pass_.lists, pass_.entries, pass_.masks}};
}

ProposeParams TreeBatch::proposals(int level, const Matrix& logits) const {
  const GrownLevels::Arrays& arrays = grown_.arrays();
  return {.logits = logits,
          .rows_per_rule = shape_.width(level),
          .positions = pass_.positions + shape_.num_trees * shape_.nodes_above(level),
          .paths = arrays.levels[static_cast<std::size_t>(level)].paths,
          .path_length = level,
          .top_k = std::min(shape_.width(level + 1), logits.cols),
          .tokens = arrays.proposals,
          .confidences = arrays.confidences};
}

BeamNode* TreeBatch::level_nodes(int level) const {
  return nodes_.as<BeamNode>() + shape_.num_trees * shape_.nodes_above(level);
}

GrowBeamParams TreeBatch::growth(int level, int top_k) const {
  const GrownLevels::Arrays& arrays = grown_.arrays();
  const GrownLevels::Level& parents = arrays.levels[static_cast<std::size_t>(level)];
  GrowBeamParams params{.num_trees = shape_.num_trees,
                        .num_parents = shape_.width(level),
                        .width = shape_.width(level + 1),
                        .top_k = top_k,
                        .depth = level,
                        .proposals = arrays.proposals,
                        .confidences = arrays.confidences,
                        .scores = parents.scores,
                        .slots = pass_.slots + shape_.num_trees * shape_.nodes_above(level),
                        .ancestors = parents.ancestors,
                        .paths = parents.paths,
                        .nodes = level_nodes(level + 1)};
  if (level + 1 < shape_.depth()) {
    const GrownLevels::Level& children = arrays.levels[static_cast<std::size_t>(level + 1)];
    params.child_tokens = children.tokens;
    params.child_scores = children.scores;
    params.child_ancestors = children.ancestors;
    params.child_paths = children.paths;
  }
  return params;
}

std::span<const BeamNode> TreeBatch::nodes(int tree, int level) const {
  const int width = shape_.width(level);
  return {level_nodes(level) + tree * width, static_cast<std::size_t>(width)};
}

}  // namespace fastspec
