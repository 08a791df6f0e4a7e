// Draft trees on their way to the device, all levels at once. A node's place in its level decides its position, its
// slot and its window, so the host lays all of that out before anything is drafted, in one copy; tokens, scores,
// ancestors and paths of the levels below the root are the device's (GrownLevels).
#pragma once

#include <span>
#include <vector>

#include "backend/device.h"
#include "backend/params.h"
#include "draft/longspec/grown_levels.h"
#include "draft/longspec/longspec_block.h"
#include "draft/longspec/tree_shape.h"
#include "model/pass.h"
#include "step/row_batch.h"

namespace fastspec {

class TreeBatch {
 public:
  struct Limits {
    TreeShape most;                    // trees, and widths of their levels
    int window = 0;                    // positions before its own that a node sees
    PassLimits::Tables page_tables;    // of the target's cached keys
    std::int64_t max_cross_slots = 0;  // of all trees together, where slots stand for pages
  };
  TreeBatch(Device& device, const Limits& limits);
  static std::size_t device_bytes(const Limits& limits);

  struct Tree {
    TokenId root = 0;
    int root_position = 0;
    std::span<const Slot> nodes;        // slots of the nodes that are computed, level by level, the root's first
    std::span<const Slot> window;       // of positions window_begin(root_position) .. root_position
    PageTable cross_pages;              // of the target's keys before the root, or
    std::span<const Slot> cross_slots;  // those of them that are read
  };
  /// Starts a batch of up to `shape.num_trees` trees. Those that are not added are padding: nobody reads what becomes
  /// of them, and their K and V go to `padding_slot`.
  void begin(const TreeShape& shape, Slot padding_slot);
  void add(const Tree& tree);
  int window_begin(int root_position) const { return std::max(0, root_position - limits_.window); }

  /// Lays the batch out for copy_staged(), which can be recorded. The device must be done with the batch before.
  void stage();
  void copy_staged() { buffers_.copy_staged(); }
  /// See PassBuffers::forget_tables.
  void forget_tables() { buffers_.forget_tables(); }

  // What operations on a level are given, the same for all batches of a shape while generation() is.
  LevelPass level(int level) const;
  ProposeParams proposals(int level, const Matrix& logits) const;
  /// @param top_k of the proposals; children take the level below.
  GrowBeamParams growth(int level, int top_k) const;
  /// Nodes of a level below the root, which the device has written once it was waited for.
  std::span<const BeamNode> nodes(int tree, int level) const;

  /// Grows when an array moves (PassBuffers::generation).
  int generation() const { return buffers_.generation(); }

 private:
  static PassLimits pass_limits(const Limits& limits);
  void add_window(int tree, const Tree& added);
  void add_cross(int tree, const Tree& added);
  BeamNode* level_nodes(int level) const;

  Limits limits_;
  PassBuffers buffers_;
  GrownLevels grown_;
  Buffer nodes_;  // BeamNode [levels below the root, trees, width], of the host
  TreeShape shape_;
  RowBatch rows_;
  Pass pass_;
  int num_added_ = 0;
};

}  // namespace fastspec
