// The best tokens of every chunk by score: the logit, or logit / temperature + noise over what the filters keep. Noise
// is computed fast for every token and exactly for those that it puts near the best, so that the order is exact.
#include "sampling/chunk_scores.cuh"
#include "sampling/noise.cuh"
#include "sampling/sampling.h"

namespace fastspec::cuda {
namespace {

constexpr float kNegligible = 30.0f;  // scores this far below the best add nothing to a float32 sum
// gumbel() of the largest and of the smallest word, widened outwards: 17.32868 and -2.85236.
constexpr float kNoiseSpread = 17.3287f + 2.8524f;

/// What decides a row's scores; the same in every thread.
struct Scoring {
  bool noisy;
  float top;
  float temperature;
  float lowest_base;   // tokens below need no noise: they are neither among the best nor in a sum
  float lowest_logit;  // min-p
  SortKey cutoff;
  noise::DrawKey draw;
  const TokenId* token_ids;  // of columns; null = the same
};

/// The random word of one column.
__device__ __forceinline__ std::uint32_t noise_word(const Scoring& scoring, int column) {
  const auto token = static_cast<std::uint32_t>(scoring.token_ids == nullptr ? column : scoring.token_ids[column]);
  return noise::token_block(scoring.draw, token / 4).word[token % 4];
}

__device__ Scoring make_scoring(const SamplingBatch& batch, const RowTask& task, const DeviceRule& rule,
                                const RowStatistics& statistics) {
  Scoring scoring;
  scoring.noisy = !is_greedy(statistics, rule);
  scoring.top = statistics.top;
  scoring.temperature = rule.temperature;
  scoring.lowest_base = -kInfinity;
  // The second best score is at least the second largest logit with the lowest noise, if the filters keep it.
  if (scoring.noisy && batch.list_length <= 2) {
    scoring.lowest_base = (statistics.second - statistics.top) / rule.temperature - kNoiseSpread - 0.1f;
    if (task.proposes) scoring.lowest_base = fminf(scoring.lowest_base, -kNoiseSpread - kNegligible);
  }
  scoring.lowest_logit = scoring.noisy ? __fadd_rn(statistics.top, rule.min_p_offset) : -kInfinity;
  scoring.cutoff = scoring.noisy && task.filter_row >= 0 ? batch.filters[task.filter_row].cutoff : 0;
  scoring.draw = {rule.seed, rule.sample_index, task.position};
  scoring.token_ids = batch.token_ids;
  return scoring;
}

__device__ __forceinline__ bool is_kept(const Scoring& scoring, float logit, int token) {
  return logit > -kInfinity && logit >= scoring.lowest_logit &&
         (scoring.cutoff == 0 || sort_key(logit, static_cast<std::uint32_t>(token)) >= scoring.cutoff);
}

__device__ __forceinline__ float base_score(const Scoring& scoring, float logit) {
  return __fdiv_rn(__fsub_rn(logit, scoring.top), scoring.temperature);
}

/// Scores of a quad, the noise fast; kNoScore where a token is no candidate.
__device__ __forceinline__ float4 score_tokens(const Scoring& scoring, int token, const float4& logits) {
  const float values[4] = {logits.x, logits.y, logits.z, logits.w};
  float scores[4];
  bool any = false;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    scores[i] = kNoScore;
    if (!is_kept(scoring, values[i], token + i)) continue;
    scores[i] = scoring.noisy ? base_score(scoring, values[i]) : values[i];
    if (scoring.noisy && scores[i] < scoring.lowest_base) scores[i] = kNoScore;
    any = any || scores[i] == scores[i];
  }
  if (!scoring.noisy || !any) return {scores[0], scores[1], scores[2], scores[3]};
  if (scoring.token_ids == nullptr) {
    const noise::Words words = noise::token_block(scoring.draw, static_cast<std::uint32_t>(token) / 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[i] += fast_gumbel(words.word[i]);
  } else {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      if (scores[i] == scores[i]) scores[i] += fast_gumbel(noise_word(scoring, token + i));
    }
  }
  return {scores[0], scores[1], scores[2], scores[3]};
}

/// Replaces the fast scores from `lowest` on by exact ones and drops the rest.
__device__ void make_exact(const Scoring& scoring, const Row& row, int begin, int chunk_size, float lowest,
                           float* scores) {
  for (int first = 4 * static_cast<int>(threadIdx.x); first < chunk_size; first += 4 * kSamplingThreads) {
#pragma unroll 1
    for (int i = first; i < first + 4; ++i) {
      const float score = scores[i];
      if (!(score >= lowest)) {
        scores[i] = kNoScore;
      } else if (score > -kInfinity) {
        const std::uint32_t word = noise_word(scoring, begin + i);
        scores[i] = __fadd_rn(base_score(scoring, row.logits[begin + i]), exact_gumbel(word));
      }
    }
  }
}

__device__ __forceinline__ ChunkSum combine(const ChunkSum& a, const ChunkSum& b) {
  const float best = fmaxf(a.best, b.best);
  return {best, a.sum * term(a.best, best) + b.sum * term(b.best, best)};
}

/// Sum of exp(score - best) over the block's scores, valid in the first warp.
__device__ ChunkSum sum_scores(float* scores, int chunk_size) {
  constexpr int kWarps = kSamplingThreads / kWarpSize;
  __shared__ ChunkSum warps[kWarps];
  ChunkSum sum{-kInfinity, 0.0f};
  for (int first = 4 * static_cast<int>(threadIdx.x); first < chunk_size; first += 4 * kSamplingThreads) {
    const float4 quad = score_quad(scores, first);
    const float values[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (values[i] > -kInfinity) sum = combine(sum, {values[i], 1.0f});
    }
  }
  const auto over_warp = [](ChunkSum value) {
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      value = combine(
          value, {__shfl_xor_sync(kAllLanes, value.best, distance), __shfl_xor_sync(kAllLanes, value.sum, distance)});
    }
    return value;
  };
  sum = over_warp(sum);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  if (lane == 0) warps[threadIdx.x / kWarpSize] = sum;
  __syncthreads();
  return over_warp(lane < kWarps ? warps[lane] : ChunkSum{-kInfinity, 0.0f});
}

/// Block (chunk, task of the slice).
__global__ void __launch_bounds__(kSamplingThreads) scores_kernel(SamplingBatch batch) {
  extern __shared__ float4 shared_quads[];
  auto* scores = reinterpret_cast<float*>(shared_quads);  // [chunk_size]
  const int task_index = batch.first_task + static_cast<int>(blockIdx.y);
  const RowTask task = task_at(batch, task_index);
  if (is_idle(batch, task)) return;
  const DeviceRule rule = batch.rules[task.rule];
  const RowStatistics statistics = final_statistics(batch, task_index);
  if (is_hopeless(statistics)) return;
  const Scoring scoring = make_scoring(batch, task, rule, statistics);
  if (!scoring.noisy && !task.proposes) return;  // the statistics say what is drawn

  const Row row = final_row(batch, task);
  const int begin = static_cast<int>(blockIdx.x) * batch.chunk_size;
  const int end = min(begin + batch.chunk_size, row.size);
  fill_scores(row, begin, end, batch.chunk_size, scores,
              [&](int token, const float4& logits) { return score_tokens(scoring, token, logits); });
  const std::int64_t place = std::int64_t{blockIdx.y} * batch.num_chunks + blockIdx.x;
  if (task.proposes) {
    const ChunkSum sum = sum_scores(scores, batch.chunk_size);  // of a thread's own scores: no barrier before
    if (threadIdx.x == 0) batch.chunk_sums[place] = sum;
  }
  SortKey* list = batch.lists + place * batch.list_length;
  if (scoring.noisy) {
    const SortKey last = for_each_best(scores, batch.chunk_size, batch.list_length, [](int, SortKey) {});
    float lowest = -kInfinity;
    if (last != 0) lowest = score_of(last) - 2.0f * kFastGumbelError - 1e-6f * fabsf(score_of(last));
    make_exact(scoring, row, begin, batch.chunk_size, lowest, scores);
  }
  write_list(scores, batch.chunk_size, begin, batch.list_length, list);
}

}  // namespace

void launch_scores(const SamplingBatch& batch, cudaStream_t stream) {
  if (batch.num_tasks == 0) return;
  const std::size_t shared_bytes = static_cast<std::size_t>(batch.chunk_size) * sizeof(float);
  scores_kernel<<<dim3(batch.num_chunks, batch.num_tasks), kSamplingThreads, shared_bytes, stream>>>(batch);
}

}  // namespace fastspec::cuda
