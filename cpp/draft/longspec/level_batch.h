// The rows of one level of several trees on their way to the device. The three calls of attention of a level see the
// rows in different sequences with different lists; all of it lies in one RowBatch, so that one upload carries it.
#pragma once

#include <span>
#include <vector>

#include "backend/device.h"
#include "draft/longspec/longspec_block.h"
#include "model/pass.h"
#include "step/row_batch.h"

namespace fastspec {

class LevelBatch {
 public:
  struct Limits {
    int max_trees = 0;
    int max_rows = 0;                   // of a level
    int max_projected_rows = 0;         // of upload_rows()
    std::int64_t max_list_entries = 0;  // of all lists together
  };
  LevelBatch(Device& device, const Limits& limits);
  static std::size_t device_bytes(const Limits& limits);

  void clear();
  /// A row of the current tree. `ancestors` are slots of the drafter's pool, itself not among them.
  void add_row(TokenId token, int position, Slot slot, std::span<const Slot> ancestors);
  /// Ends a tree: its rows are those added since the last one. `window` are slots of the drafter's pool; `cross` are
  /// pages or slots of the target's, of `cross_length` keys.
  void end_tree(std::span<const Slot> window, std::span<const Slot> cross_slots);
  void end_tree(std::span<const Slot> window, std::span<const PageId> cross_pages, int cross_length);

  int num_rows() const { return rows_.num_rows(); }
  int max_rows_per_tree() const;
  /// Brings the batch to `num_rows` and the most trees: by rows of token 0 that belong to no tree and write to
  /// `padding_slot`, and by empty trees.
  void pad(int num_rows, Slot padding_slot);
  LevelPass upload(int max_rows_per_tree);
  /// The rows alone, for a pass without attention.
  Pass upload_rows();

  /// Grows when an array moves (PassBuffers::generation).
  int generation() const { return buffers_.generation(); }

 private:
  KvList append(std::span<const Slot> slots);
  void close_tree(std::span<const Slot> window, KvList cross);
  void assemble();

  Limits limits_;
  PassBuffers buffers_;
  RowBatch rows_;
  std::vector<std::int32_t> tree_offsets_{0};  // [num_trees + 1]
  std::vector<KvList> window_;                 // [num_trees]
  std::vector<KvList> ancestry_;               // [num_rows]
  std::vector<KvList> cross_;                  // [num_trees]
  int num_tree_rows_ = 0;                      // without padding
};

}  // namespace fastspec
