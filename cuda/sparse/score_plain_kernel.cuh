// Logits without the matrix units, a lane a key: of float32 keys and heads of any size, and of page bounds.
#pragma once

#include "sparse/score_block.cuh"

namespace fastspec::cuda {

/// The inner product with a key.
template <typename T>
struct PlainKeys {
  __device__ __forceinline__ static float logit(const ScoreArguments& arguments, const ScoreBlock& block,
                                                const T* query, std::int32_t, std::int32_t key) {
    if (key >= block.length) return -INFINITY;
    const ScoreKeysParams& params = arguments.params;
    const T* source = static_cast<const T*>(params.kv.base) + block.key_offset(params, key);
    float sum = 0;
    for (int d = 0; d < params.kv.head_dim; ++d) sum += to_float(query[d]) * to_float(source[d]);
    return sum;
  }
};

/// The upper bound of the key's page. The warp takes the pages of its keys one after another, lanes share out
/// dimensions.
template <typename T>
struct BoundedPages {
  __device__ __forceinline__ static float logit(const ScoreArguments& arguments, const ScoreBlock& block,
                                                const T* query, std::int32_t first, std::int32_t key) {
    const KvView& kv = arguments.params.kv;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const std::int32_t last = min(first + kScoreGroup, block.length) - 1;
    float own = -INFINITY;
    for (std::int32_t index = first >> kv.page_shift; index <= last >> kv.page_shift; ++index) {
      const Slot page = arguments.params.entries[block.list->offset + index];
      const T* low =
          static_cast<const T*>(arguments.bounds) + (page * kv.num_kv_heads + block.unit.kv_head) * 2 * kv.head_dim;
      float sum = 0;
      for (int d = lane; d < kv.head_dim; d += kWarpSize) {
        const float value = to_float(query[d]);
        sum += fmaxf(value * to_float(low[d]), value * to_float(low[kv.head_dim + d]));
      }
      sum = warp_sum(sum);
      if (key >> kv.page_shift == index) own = sum;
    }
    return key < block.length ? own : -INFINITY;
  }
};

template <typename T, typename Source>
__global__ void __launch_bounds__(kScoreThreads) score_plain_kernel(const __grid_constant__ ScoreArguments arguments) {
  using Logit = typename StoredLogit<T>::Type;
  const ScoreBlock block(arguments);
  if (block.num_packed == 0) return;
  __shared__ ChunkStatistics statistics;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const float scale = arguments.params.scale * kLog2E;
  for (int group = warp; group < kGroupsOfChunk; group += kScoreWarps) {
    const std::int32_t first = block.first_key + group * kScoreGroup;
    if (first >= block.length) break;
    for (int p = 0; p < block.num_packed; ++p) {
      const T* query = block.query<T>(arguments, p);
      const float value = Source::logit(arguments, block, query, first, first + lane) * scale;
      const float top = warp_max(value);
      const float sum = warp_sum(exp2f(value - top));
      block.logits<Logit>(arguments, p)[first + lane] = from_float<Logit>(value - top);
      if (lane == 0) {
        statistics.top[p][group] = top;
        statistics.sum[p][group] = sum;
      }
    }
  }
  block.finish(arguments, statistics);
}

}  // namespace fastspec::cuda
