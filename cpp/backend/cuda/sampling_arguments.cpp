// See sampling_arguments.h.
#include "backend/cuda/sampling_arguments.h"

#include <algorithm>

#include "base/check.h"

namespace fastspec::cuda {
namespace {

void check_tree(const AcceptTree& tree, int index, const Matrix& logits) {
  FS_CHECK(tree.num_nodes > 0, "accept: tree ", index, " has ", tree.num_nodes, " nodes");
  if (tree.num_nodes > kMaxTreeNodes) {
    fail(ErrorCode::kUnsupported, "accept: tree ", index, " has ", tree.num_nodes, " nodes; at most ", kMaxTreeNodes,
         " on the GPU");
  }
  FS_CHECK(tree.num_top_logprobs >= 0 && tree.num_top_logprobs <= logits.cols, "accept: ", tree.num_top_logprobs,
           " top logprobs of a vocabulary of ", logits.cols);
  for (int node = 0; node < tree.num_nodes; ++node) {
    FS_CHECK(node == 0 ? tree.parents[node] == -1 : tree.parents[node] >= 0 && tree.parents[node] < node,
             "accept: tree ", index, " node ", node, " has parent ", tree.parents[node]);
    FS_CHECK(tree.logit_rows[node] >= 0 && tree.logit_rows[node] < logits.rows, "accept: tree ", index, " node ", node,
             " has logit row ", tree.logit_rows[node], " of ", logits.rows);
  }
}

}  // namespace

void check_logits(const Matrix& logits, const char* name) {
  FS_CHECK(logits.dtype == DType::kFloat32, name, ": logits are float32, got ", to_string(logits.dtype));
  FS_CHECK(logits.rows >= 0 && logits.cols > 0 && logits.stride >= logits.cols, name, ": logits [", logits.rows, ", ",
           logits.cols, "], stride ", logits.stride);
  if (logits.cols > kMaxChunks * kMaxChunkSize) {
    fail(ErrorCode::kUnsupported, name, ": a vocabulary of ", logits.cols, " tokens; at most ",
         kMaxChunks * kMaxChunkSize, " on the GPU");
  }
}

void SamplingArguments::clear() {
  tasks.clear();
  rules.clear();
  path_tokens.clear();
  adjusted_tasks.clear();
  filtered_tasks.clear();
  slices.clear();
  trees.clear();
  node_tokens.clear();
  node_parents.clear();
  top_nodes.clear();
  top_node_trees.clear();
  num_top_logprobs = 0;
  max_top_logprobs = 0;
  max_tree_nodes = 0;
}

/// @param path tokens drawn after the committed ones; read only where a penalty is on.
/// @param depth their number.
void SamplingArguments::add_task(const SamplingRule& rule, RowTask task, std::span<const TokenId> path, int depth,
                                 int vocab_size) {
  task.forbids = rule.num_forbidden > 0 && std::int64_t{rule.num_generated} + depth < rule.min_tokens;
  task.penalises = rules.rules()[static_cast<std::size_t>(task.rule)].penalises && (rule.num_counts > 0 || depth > 0);
  if (task.penalises) {
    if (path.size() > static_cast<std::size_t>(kMaxPath)) {
      fail(ErrorCode::kUnsupported, "sampling: a path of ", path.size(), " tokens; at most ", kMaxPath, " on the GPU");
    }
    for (const TokenId token : path) check_token(token, vocab_size, "path");
    task.first_path = static_cast<int>(path_tokens.size());
    task.path_length = static_cast<int>(path.size());
    path_tokens.insert(path_tokens.end(), path.begin(), path.end());
  }
  tasks.push_back(task);
}

void SamplingArguments::add_trees(const AcceptParams& params) {
  check_logits(params.logits, "accept");
  for (int i = 0; i < params.num_trees; ++i) add_tree(params.trees[i], i, params.logits);
}

void SamplingArguments::add_tree(const AcceptTree& tree, int index, const Matrix& logits) {
  check_tree(tree, index, logits);
  const int first_node = static_cast<int>(tasks.size());
  const int rule = rules.add(tree.rule, logits.cols);
  const bool penalises = rules.rules().back().penalises;
  depths_.resize(static_cast<std::size_t>(tree.num_nodes));
  for (int node = 0; node < tree.num_nodes; ++node) {
    const auto at = static_cast<std::size_t>(node);
    depths_[at] = node == 0 ? 0 : depths_[static_cast<std::size_t>(tree.parents[node])] + 1;
    path_.clear();
    if (penalises) {
      for (int passed = node; passed > 0; passed = tree.parents[passed]) path_.push_back(tree.tokens[passed]);
      std::reverse(path_.begin(), path_.end());
    }
    RowTask task{};
    task.logits_row = tree.logit_rows[node];
    task.rule = rule;
    task.position = static_cast<std::uint32_t>(tree.root_position + 1 + depths_[at]);
    task.wants_logprob = tree.wants_logprob || tree.num_top_logprobs > 0;
    add_task(tree.rule, task, path_, depths_[at], logits.cols);
    if (tree.num_top_logprobs > 0) {
      top_nodes.push_back(first_node + node);
      top_node_trees.push_back(index);
    }
  }
  trees.push_back({first_node, tree.num_nodes, tree.num_top_logprobs, num_top_logprobs});
  node_tokens.insert(node_tokens.end(), tree.tokens, tree.tokens + tree.num_nodes);
  node_parents.insert(node_parents.end(), tree.parents, tree.parents + tree.num_nodes);
  num_top_logprobs += std::int64_t{tree.num_nodes} * tree.num_top_logprobs;
  max_top_logprobs = std::max(max_top_logprobs, tree.num_top_logprobs);
  max_tree_nodes = std::max(max_tree_nodes, tree.num_nodes);
}

void SamplingArguments::make_slices(const SliceLimits& limits) {
  TaskSlice slice;
  for (int i = 0; i < static_cast<int>(tasks.size()); ++i) {
    RowTask& task = tasks[static_cast<std::size_t>(i)];
    const DeviceRule& rule = rules.rules()[static_cast<std::size_t>(task.rule)];
    const bool adjusts = task.forbids || task.penalises || rule.num_bias > 0;
    const bool filtered = rule.filters;
    const bool full = slice.num_tasks == limits.max_tasks || (adjusts && slice.num_adjusted == limits.max_adjusted) ||
                      (filtered && slice.num_filtered == limits.max_filtered);
    if (full) {
      slices.push_back(slice);
      slice = TaskSlice{.first_task = i,
                        .first_adjusted = static_cast<int>(adjusted_tasks.size()),
                        .first_filtered = static_cast<int>(filtered_tasks.size())};
    }
    task.adjusted_row = adjusts ? slice.num_adjusted++ : -1;
    task.filter_row = filtered ? slice.num_filtered++ : -1;
    if (adjusts) adjusted_tasks.push_back(i);
    if (filtered) filtered_tasks.push_back(i);
    ++slice.num_tasks;
  }
  if (slice.num_tasks > 0) slices.push_back(slice);
}

}  // namespace fastspec::cuda
