// See tree_lookahead.h. Queries of a batch lie level by level, as its rows do.
#include "draft/longspec/tree_lookahead.h"

#include <vector>

#include "base/check.h"

namespace fastspec {

int TreeLookahead::batch_rows(const Limits& limits) {
  return limits.most.num_trees * limits.most.nodes_above(limits.most.depth());
}

int TreeLookahead::num_batches(const Limits& limits) {
  return (limits.max_trees + limits.most.num_trees - 1) / limits.most.num_trees;
}

std::size_t TreeLookahead::device_bytes(const Limits& limits, std::size_t element_size) {
  if (!limits.is_kept) return 0;
  return static_cast<std::size_t>(batch_rows(limits)) * static_cast<std::size_t>(num_batches(limits)) *
         static_cast<std::size_t>(limits.num_heads * limits.head_dim) * element_size;
}

TreeLookahead::TreeLookahead(Backend& backend, const Limits& limits, const KvView& target_kv)
    : backend_(backend), limits_(limits) {
  if (!limits.is_kept) return;
  queries_ = backend.device->allocate(device_bytes(limits, size_of(backend.ops->activation_dtype())),
                                      "queries of draft trees");
  lookahead_.layers = {{rows(0, batch_rows(limits) * num_batches(limits)), target_kv}};
  lookahead_.num_heads = limits.num_heads;
}

Matrix TreeLookahead::rows(int first, int count) const {
  const int cols = limits_.num_heads * limits_.head_dim;
  const DType dtype = backend_.ops->activation_dtype();
  const std::size_t offset = static_cast<std::size_t>(first) * static_cast<std::size_t>(cols) * size_of(dtype);
  return {queries_.as<std::byte>() + offset, dtype, count, cols, cols};
}

Matrix TreeLookahead::level(const TreeShape& shape, int level) const {
  if (!limits_.is_kept) return {};
  return rows(shape.num_trees * shape.nodes_above(level), shape.num_rows(level));
}

void TreeLookahead::begin() {
  lookahead_.clear();
  batch_begin_ = 0;
  num_aside_ = 0;
}

void TreeLookahead::end_requests_before(int request) {
  while (static_cast<int>(lookahead_.row_offsets.size()) <= request) lookahead_.end_request();
}

void TreeLookahead::add(int request, const TreeBatch& batch, const TreeShape& shape, int index, int max_depth) {
  if (!limits_.is_kept) return;
  end_requests_before(request);
  std::vector<float> above, survival{1.0f};
  for (int level = 0; level < shape.depth() && level <= max_depth; ++level) {
    const int first = shape.num_trees * shape.nodes_above(level) + index * shape.width(level);
    if (level > 0) {
      above = std::move(survival);
      survival.clear();
      for (const BeamNode& node : batch.nodes(index, level)) {
        survival.push_back(above[static_cast<std::size_t>(node.parent)] * node.confidence);
      }
    }
    for (std::size_t i = 0; i < survival.size(); ++i) {
      if (survival[i] <= 0) continue;  // there is no such node
      lookahead_.rows.push_back(first + static_cast<std::int32_t>(i));
      lookahead_.weights.push_back(survival[i]);
    }
  }
}

void TreeLookahead::put_aside() {
  if (!limits_.is_kept) return;
  FS_CHECK(++num_aside_ < num_batches(limits_), num_aside_, " batches of trees, limit ", num_batches(limits_));
  const int place = num_aside_ * batch_rows(limits_);
  backend_.ops->copy_rows({.input = rows(0, batch_rows(limits_)), .output = rows(place, batch_rows(limits_))});
  for (; batch_begin_ < lookahead_.rows.size(); ++batch_begin_) lookahead_.rows[batch_begin_] += place;
}

void TreeLookahead::end(int num_requests) {
  if (limits_.is_kept) end_requests_before(num_requests);
}

}  // namespace fastspec
