// Drawing tokens on the device: what cpp/backend/cpu/sampling_row.h does for a row, for many rows at once. A call is a
// sequence of launches over one SamplingBatch; cpp/backend/cuda/sampler.cpp packs it and owns the memory.
//
//   launch_adjustments  proposals only: penalties, bias and forbidden tokens, in place
//   launch_statistics   largest logits, NaN, sum of exponentials; acceptance: what rules change, into a copy
//   launch_filters      the cutoff of top-k and top-p, where a row has them
//   launch_scores       the best tokens of every chunk of a row
//   launch_draws or launch_proposals
//   launch_walk, launch_top_logprobs for acceptance
//   launch_grow_beam behind proposals, for the next level of draft trees
//
// Acceptance names every task; proposals are recorded, and read on the device what makes a task of a row.
//
// A row of logits is shared out in chunks, one block each; partial results meet in the next launch. Every result is a
// pure function of its row and rule: sums are integers or have a fixed order. Plain structs; all pointers are device
// pointers unless said otherwise. No allocation, no synchronisation, no host read of device data.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/params.h"

namespace fastspec::cuda {

constexpr int kMaxChunks = 128;       // of a row
constexpr int kMaxChunkSize = 8192;   // logits of a chunk: their scores fit in shared memory
constexpr int kChunkMultiple = 1024;  // a chunk's size is a multiple
constexpr int kBins = 2048;           // of a filtered row's histogram
constexpr int kMaxGathered = 2048;   // tokens of the bins with the cutoff that are sorted; more are searched bit by bit
constexpr int kMaxTreeNodes = 2048;  // nodes of a tree: it lies in shared memory
constexpr int kMaxPath = 2048;       // tokens of a path

/// A SamplingRule on the device.
struct DeviceRule {
  float temperature;
  int top_k;  // 0 = off
  float top_p;
  float min_p_offset;  // temperature * log(min_p); -inf = off
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  std::uint32_t sample_index;
  std::uint64_t seed;
  const TokenCount* counts;
  const LogitBias* bias;  // sorted by token
  const TokenId* forbidden;
  int num_counts, num_bias, num_forbidden;
  int num_forbidding;  // drafted tokens before the first with which the forbidden ones may be drawn
  bool penalises;
  bool filters;  // the cutoff has to be searched for: top-k or top-p
  bool is_used;  // false: behind the last rule of a call
};

/// One row to draw at.
struct RowTask {
  int logits_row;
  int rule;
  std::uint32_t position;
  int first_path, path_length;  // in SamplingBatch::tokens
  int adjusted_row;             // of SamplingBatch::adjusted; -1 where the logits stay as they are
  int filter_row;               // of the filter arrays; -1 without top-k and top-p
  bool penalises;
  bool forbids;
  bool wants_logprob;
  bool proposes;  // lists its best tokens and sums its scores, whether noise decides or not
};

/// Statistics of one chunk, or of a row.
struct RowStatistics {
  float top;     // largest
  float second;  // next largest; equal to top where two tokens share it
  float lowest;  // smallest above -inf
  float sum;     // of exp(logit - top); where top is +inf the number of such logits
  int token;     // lowest id with the largest logit
  bool has_nan;
};

/// How far the cutoff of a filtered row is known.
struct FilterState {
  std::uint64_t cutoff;       // sort key (keys.cuh) of the last token kept; 0 = all are kept
  float bin_scale;            // bins per unit of logit below the largest
  bool by_count;              // top-k leaves tokens out
  int first_bin, last_bin;    // the cutoff lies in these; none if first > last
  int num_tokens;             // in them
  int num_gathered;           // gathered so far; 0 between calls
  std::int64_t count_before;  // tokens in the bins before
  std::uint64_t mass_before;
  std::uint64_t mass_target;  // of top-p without top-k: the cutoff is the first token to reach it
};

/// Sum of exp(score - best) over a chunk.
struct ChunkSum {
  float best;
  float sum;
};

/// A row's result.
struct Draw {
  SampledToken sampled;
  bool failed;
};

struct SamplingBatch {
  Matrix logits;
  int chunk_size, num_chunks;
  const RowTask* tasks;       // [num_tasks] of the call; null for proposals, whose rows are the tasks
  int first_task, num_tasks;  // the slice that a launch works on
  const DeviceRule* rules;
  const TokenId* tokens;  // of paths

  // Proposals: as in ProposeParams.
  const std::int32_t* positions;
  int rows_per_rule;
  int path_length;
  const TokenId* token_ids;

  RowStatistics* statistics;  // [all tasks, num_chunks] of the logits as they came

  const int* adjusted_tasks;  // [num_adjusted] tasks of the slice with an adjusted row; none in proposals
  int num_adjusted;
  std::int64_t adjusted_stride;
  float* adjusted;                     // [num_adjusted, adjusted_stride] logits after penalties, bias, forbidden
  RowStatistics* adjusted_statistics;  // [num_adjusted, num_chunks]

  const int* filtered_tasks;  // [num_filtered] tasks of the slice with top-k or top-p; null: all, where they filter
  int num_filtered;
  std::uint32_t* bin_counts;  // [num_filtered, kBins], 0 between launches
  std::uint64_t* bin_masses;  // [num_filtered, kBins], 0 between launches
  unsigned* arrivals;         // [num_filtered], 0 between launches
  FilterState* filters;       // [num_filtered], num_gathered 0 between launches
  std::uint64_t* gathered;    // [num_filtered, kMaxGathered]

  int list_length;       // best tokens of each chunk
  std::uint64_t* lists;  // [num_tasks of the slice, num_chunks, list_length] sort keys, descending, then 0
  ChunkSum* chunk_sums;  // [num_tasks of the slice, num_chunks]
  Draw* draws;           // [all tasks]
};

/// Changes the logits of the slice's rows.
void launch_adjustments(const SamplingBatch& batch, cudaStream_t stream);
void launch_statistics(const SamplingBatch& batch, cudaStream_t stream);
void launch_filters(const SamplingBatch& batch, cudaStream_t stream);
void launch_scores(const SamplingBatch& batch, cudaStream_t stream);
/// Draws of the slice's tasks; needs lists of at least 2.
void launch_draws(const SamplingBatch& batch, cudaStream_t stream);

/// The `top_k` best tokens of each task of the slice, into tokens and confidences [all tasks, top_k], which may be
/// mapped host memory. Lists hold at least min(top_k, chunk_size).
void launch_proposals(const SamplingBatch& batch, int top_k, TokenId* tokens, float* confidences, cudaStream_t stream);

/// See GrowBeamParams.
void launch_grow_beam(const GrowBeamParams& params, cudaStream_t stream);

/// A tree whose nodes are tasks first_node .. first_node + num_nodes - 1.
struct DeviceTree {
  int first_node;
  int num_nodes;
  int num_top_logprobs;
  std::int64_t first_top;  // in WalkParams::top_logprobs
};

struct TreeResult {
  bool failed;
  int num_accepted;
};

struct WalkParams {
  const DeviceTree* trees;  // [num_trees]
  int num_trees;
  int max_tree_nodes;           // of any tree
  const TokenId* tokens;        // [all nodes]
  const std::int32_t* parents;  // [all nodes] within the tree
  const Draw* draws;            // [all nodes]
  int* depths;                  // [all nodes] written: draws before this node's, -1 off the path
  // Results, which may be mapped host memory. A tree's entries begin at its first node.
  TreeResult* results;       // [num_trees]
  std::int32_t* paths;       // [all nodes]
  SampledToken* sampled;     // [all nodes]
  TopLogprob* top_logprobs;  // see DeviceTree::first_top
};

/// Walks every tree along the tokens drawn.
void launch_walk(const WalkParams& params, cudaStream_t stream);

/// Most probable tokens of nodes on their tree's path, after launch_walk. `nodes` and their `trees` [num_nodes] name
/// what to look at; the batch's lists hold [num_nodes, num_chunks, list_length].
struct TopLogprobParams {
  const std::int32_t* nodes;
  const std::int32_t* node_trees;
  int num_nodes;
};
void launch_top_logprobs(const SamplingBatch& batch, const WalkParams& walk, const TopLogprobParams& params,
                         cudaStream_t stream);

}  // namespace fastspec::cuda
