// The queries that the nodes of draft trees ask the target's keys with, kept until the next draft: where a level's go,
// which rows are whose, and how likely each is reached. Computes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "draft/drafter.h"
#include "draft/longspec/tree_batch.h"
#include "draft/longspec/tree_shape.h"

namespace fastspec {

class TreeLookahead {
 public:
  struct Limits {
    bool is_kept = false;  // false: no memory, no rows
    TreeShape most;        // trees that grow together
    int max_trees = 0;     // of one draft
    int num_heads = 0;
    int head_dim = 0;
  };
  TreeLookahead(Backend& backend, const Limits& limits, const KvView& target_kv);
  static std::size_t device_bytes(const Limits& limits, std::size_t element_size);

  /// Where the queries of a level go, the same place for all trees of a shape; null data where nothing is kept.
  Matrix level(const TreeShape& shape, int level) const;

  void begin();
  /// Notes the rows of tree `index` of a batch that was drafted, for request number `request`: its root, and the nodes
  /// that exist and have children to be, down to `max_depth`.
  void add(int request, const TreeBatch& batch, const TreeShape& shape, int index, int max_depth);
  /// Makes room for the next batch of the same draft, whose queries go where those of this one are.
  void put_aside();
  void end(int num_requests);

  const Lookahead* get() const { return limits_.is_kept ? &lookahead_ : nullptr; }

 private:
  static int batch_rows(const Limits& limits);
  static int num_batches(const Limits& limits);
  Matrix rows(int first, int count) const;
  void end_requests_before(int request);

  Backend& backend_;
  Limits limits_;
  Buffer queries_;  // [num_batches, batch_rows, num_heads * head_dim]: of the last batch, then of those before
  Lookahead lookahead_;
  std::size_t batch_begin_ = 0;  // the batch's first row in lookahead_
  int num_aside_ = 0;
};

}  // namespace fastspec
