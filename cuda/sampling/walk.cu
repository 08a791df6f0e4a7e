// Coupled acceptance: from the root on while a child carries the token drawn at its parent; then the most probable
// tokens of the nodes passed. One warp a tree, which lies in shared memory.
#include "sampling/chunk_scores.cuh"
#include "sampling/logprob.cuh"
#include "sampling/sampling.h"

namespace fastspec::cuda {
namespace {

/// A tree of up to kMaxPath nodes takes 16 bytes a node.
struct SharedTree {
  TokenId* tokens;
  std::int32_t* parents;
  TokenId* drawn;        // -1 where nothing could be drawn
  std::int32_t* passed;  // nodes passed, root first
};

__device__ SharedTree load_tree(const WalkParams& params, const DeviceTree& tree, std::int32_t* memory) {
  const int nodes = tree.num_nodes;
  const SharedTree shared{memory, memory + nodes, memory + 2 * nodes, memory + 3 * nodes};
  for (int node = static_cast<int>(threadIdx.x); node < nodes; node += kWarpSize) {
    const int at = tree.first_node + node;
    shared.tokens[node] = params.tokens[at];
    shared.parents[node] = params.parents[at];
    const Draw draw = params.draws[at];
    shared.drawn[node] = draw.failed ? -1 : draw.sampled.token;
    params.depths[at] = -1;
  }
  __syncwarp();
  return shared;
}

/// The first child of `node` that carries `token`, or -1; in every lane.
__device__ int find_child(const SharedTree& tree, int num_nodes, int node, TokenId token) {
  for (int first = node + 1; first < num_nodes; first += kWarpSize) {
    const int child = first + static_cast<int>(threadIdx.x);
    const bool matches = child < num_nodes && tree.parents[child] == node && tree.tokens[child] == token;
    const unsigned found = __ballot_sync(kAllLanes, matches);
    if (found != 0) return first + __ffs(static_cast<int>(found)) - 1;
  }
  return -1;
}

__global__ void __launch_bounds__(kWarpSize) walk_kernel(WalkParams params) {
  extern __shared__ std::int32_t memory[];
  const DeviceTree tree = params.trees[blockIdx.x];
  const SharedTree shared = load_tree(params, tree, memory);
  int num_drawn = 0;
  for (int node = 0; node >= 0 && shared.drawn[node] >= 0;) {
    if (threadIdx.x == 0) shared.passed[num_drawn] = node;
    ++num_drawn;
    node = find_child(shared, tree.num_nodes, node, shared.drawn[node]);
  }
  __syncwarp();
  // Where a later node failed, what was drawn before stands and its last token is the bonus.
  for (int i = static_cast<int>(threadIdx.x); i < num_drawn; i += kWarpSize) {
    const int node = tree.first_node + shared.passed[i];
    params.depths[node] = i;
    params.sampled[tree.first_node + i] = params.draws[node].sampled;
    if (i > 0) params.paths[tree.first_node + i - 1] = shared.passed[i];
  }
  if (threadIdx.x == 0) params.results[blockIdx.x] = {num_drawn == 0, num_drawn > 0 ? num_drawn - 1 : 0};
}

/// Block (chunk, node): the most probable tokens of the chunk, those at -inf included.
__global__ void __launch_bounds__(kSamplingThreads)
    probable_chunk_kernel(SamplingBatch batch, WalkParams walk, TopLogprobParams params) {
  extern __shared__ float4 shared_quads[];
  auto* scores = reinterpret_cast<float*>(shared_quads);  // [chunk_size]
  const int node = params.nodes[blockIdx.y];
  if (walk.depths[node] < 0) return;
  const Row row = raw_row(batch, batch.tasks[node]);
  const int begin = static_cast<int>(blockIdx.x) * batch.chunk_size;
  const int end = min(begin + batch.chunk_size, row.size);
  fill_scores(row, begin, end, batch.chunk_size, scores, [](int, const float4& logits) { return logits; });
  const std::int64_t place = std::int64_t{blockIdx.y} * batch.num_chunks + blockIdx.x;
  write_list(scores, batch.chunk_size, begin, batch.list_length, batch.lists + place * batch.list_length);
}

/// One warp a node.
__global__ void __launch_bounds__(kWarpSize)
    top_logprobs_kernel(SamplingBatch batch, WalkParams walk, TopLogprobParams params) {
  const int node = params.nodes[blockIdx.x];
  const int depth = walk.depths[node];
  if (depth < 0) return;
  const DeviceTree tree = walk.trees[params.node_trees[blockIdx.x]];
  const RowStatistics raw = raw_statistics(batch, node);
  const SortKey* lists = batch.lists + std::int64_t{blockIdx.x} * batch.num_chunks * batch.list_length;
  TopLogprob* result = walk.top_logprobs + tree.first_top + std::int64_t{depth} * tree.num_top_logprobs;
  merge_lists(lists, batch.num_chunks, batch.list_length, tree.num_top_logprobs, [&](int rank, SortKey key) {
    if (threadIdx.x == 0) result[rank] = {static_cast<TokenId>(token_of(key)), logprob(score_of(key), raw)};
  });
}

}  // namespace

void launch_walk(const WalkParams& params, cudaStream_t stream) {
  if (params.num_trees == 0) return;
  const std::size_t shared_bytes = std::size_t{4} * params.max_tree_nodes * sizeof(std::int32_t);
  walk_kernel<<<params.num_trees, kWarpSize, shared_bytes, stream>>>(params);
}

void launch_top_logprobs(const SamplingBatch& batch, const WalkParams& walk, const TopLogprobParams& params,
                         cudaStream_t stream) {
  if (params.num_nodes == 0) return;
  const std::size_t shared_bytes = static_cast<std::size_t>(batch.chunk_size) * sizeof(float);
  const dim3 grid(batch.num_chunks, params.num_nodes);
  probable_chunk_kernel<<<grid, kSamplingThreads, shared_bytes, stream>>>(batch, walk, params);
  top_logprobs_kernel<<<params.num_nodes, kWarpSize, 0, stream>>>(batch, walk, params);
}

}  // namespace fastspec::cuda
