// Rules, rows and trees of one acceptance as the arrays that kernels read. Pure host code: no device.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backend/cuda/device_rules.h"
#include "backend/params.h"
#include "sampling/sampling.h"

namespace fastspec::cuda {

/// Consecutive tasks that fit the workspace together; indices into SamplingArguments' arrays.
struct TaskSlice {
  int first_task = 0, num_tasks = 0;
  int first_adjusted = 0, num_adjusted = 0;
  int first_filtered = 0, num_filtered = 0;
};

struct SliceLimits {
  int max_tasks = 1;
  int max_adjusted = 1;
  int max_filtered = 1;
};

struct SamplingArguments {
  std::vector<RowTask> tasks;
  DeviceRules rules;
  std::vector<TokenId> path_tokens;
  std::vector<int> adjusted_tasks;
  std::vector<int> filtered_tasks;
  std::vector<TaskSlice> slices;
  // Nodes of all trees one after another, each a task.
  std::vector<DeviceTree> trees;
  std::vector<TokenId> node_tokens;
  std::vector<std::int32_t> node_parents;
  std::vector<std::int32_t> top_nodes;  // nodes of trees that want the most probable tokens
  std::vector<std::int32_t> top_node_trees;
  std::int64_t num_top_logprobs = 0;  // of all nodes together
  int max_top_logprobs = 0;
  int max_tree_nodes = 0;

  /// Empties every array and keeps its memory.
  void clear();
  /// @throws Error(kInternal) for malformed trees and tokens outside the vocabulary.
  void add_trees(const AcceptParams& params);
  /// Shares the tasks out in slices and numbers their adjusted and filtered rows. At least one task fits a slice.
  void make_slices(const SliceLimits& limits);

 private:
  void add_tree(const AcceptTree& tree, int index, const Matrix& logits);
  void add_task(const SamplingRule& rule, RowTask task, std::span<const TokenId> path, int depth, int vocab_size);

  std::vector<int> depths_;
  std::vector<TokenId> path_;
};

/// @throws Error(kInternal) for logits of another type or shape, Error(kUnsupported) for a vocabulary that is too
/// large.
void check_logits(const Matrix& logits, const char* name);

}  // namespace fastspec::cuda
