// Last step of a row: the draw, or a draft model's proposals, from statistics and lists. One warp a row.
#include "sampling/chunk_scores.cuh"
#include "sampling/logprob.cuh"
#include "sampling/sampling.h"

namespace fastspec::cuda {
namespace {

constexpr int kWarps = 4;

__device__ Draw draw_row(const SamplingBatch& batch, int slice_task) {
  const int task_index = batch.first_task + slice_task;
  const RowTask& task = batch.tasks[task_index];
  const RowStatistics raw = raw_statistics(batch, task_index);
  const RowStatistics statistics = final_statistics(batch, task_index);
  Draw draw{{0, 0.0f, 0.0f}, is_hopeless(statistics)};
  if (draw.failed) return draw;
  float top = statistics.top;
  float second = statistics.second;
  draw.sampled.token = statistics.token;
  if (!is_greedy(statistics, batch.rules[task.rule])) {
    const SortKey* lists = batch.lists + std::int64_t{slice_task} * batch.num_chunks * batch.list_length;
    second = -kInfinity;
    const int found = merge_lists(lists, batch.num_chunks, batch.list_length, 2, [&](int rank, SortKey key) {
      if (rank == 0) draw.sampled.token = static_cast<TokenId>(token_of(key));
      (rank == 0 ? top : second) = score_of(key);
    });
    draw.failed = found == 0;  // cannot be: the largest logit passes every filter
  }
  draw.sampled.margin = second == top ? 0.0f : top - second;
  if (task.wants_logprob) draw.sampled.logprob = logprob(raw_row(batch, task).logits[draw.sampled.token], raw);
  return draw;
}

__global__ void __launch_bounds__(kWarps* kWarpSize) draws_kernel(SamplingBatch batch) {
  const int slice_task = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  if (slice_task >= batch.num_tasks) return;
  const Draw draw = draw_row(batch, slice_task);
  if (threadIdx.x % kWarpSize == 0) batch.draws[batch.first_task + slice_task] = draw;
}

/// Sum of exp(score - best) over a row's chunks, in every lane.
__device__ float row_sum(const ChunkSum* chunks, int num_chunks, float best) {
  float sum = 0;
  for (int chunk = static_cast<int>(threadIdx.x) % kWarpSize; chunk < num_chunks; chunk += kWarpSize) {
    if (chunks[chunk].sum > 0) sum += chunks[chunk].sum * term(chunks[chunk].best, best);
  }
  return warp_sum(sum);
}

__global__ void __launch_bounds__(kWarps* kWarpSize)
    proposals_kernel(SamplingBatch batch, int top_k, TokenId* tokens, float* confidences) {
  const int slice_task = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  if (slice_task >= batch.num_tasks) return;
  const int task_index = batch.first_task + slice_task;
  const int length = batch.list_length;
  tokens += std::int64_t{task_index} * top_k;
  confidences += std::int64_t{task_index} * top_k;
  const bool writes = threadIdx.x % kWarpSize == 0;
  int found = 0;
  if (!is_idle(batch, task_at(batch, task_index)) && !is_hopeless(final_statistics(batch, task_index))) {
    const std::int64_t place = std::int64_t{slice_task} * batch.num_chunks;
    float best = 0;
    float sum = 1;
    found = merge_lists(batch.lists + place * length, batch.num_chunks, length, top_k, [&](int rank, SortKey key) {
      const float score = score_of(key);
      if (rank == 0) {
        best = score;
        sum = row_sum(batch.chunk_sums + place, batch.num_chunks, best);
      }
      if (!writes) return;
      tokens[rank] = static_cast<TokenId>(token_of(key));
      confidences[rank] = term(score, best) / sum;
    });
  }
  for (int rank = found; writes && rank < top_k; ++rank) {
    tokens[rank] = kNoToken;
    confidences[rank] = 0.0f;
  }
}

}  // namespace

void launch_draws(const SamplingBatch& batch, cudaStream_t stream) {
  if (batch.num_tasks == 0) return;
  draws_kernel<<<(batch.num_tasks + kWarps - 1) / kWarps, kWarps * kWarpSize, 0, stream>>>(batch);
}

void launch_proposals(const SamplingBatch& batch, int top_k, TokenId* tokens, float* confidences, cudaStream_t stream) {
  if (batch.num_tasks == 0) return;
  const int blocks = (batch.num_tasks + kWarps - 1) / kWarps;
  proposals_kernel<<<blocks, kWarps * kWarpSize, 0, stream>>>(batch, top_k, tokens, confidences);
}

}  // namespace fastspec::cuda
