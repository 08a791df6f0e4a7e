// Logits to scores: every block finds the sums of all packed rows from those of the chunks, then a thread takes eight
// keys. Rows, heads and K/V heads are added in one order.
#include "sparse/score_block.cuh"

namespace fastspec::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kKeysOfThread = 8;
constexpr int kKeysOfBlock = kThreads * kKeysOfThread;

/// Base-2 log of the sum of a packed row, from its chunks. A warp calls it.
__device__ __forceinline__ float row_lse(const float* chunks, int num_chunks) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  float top = -INFINITY, sum = 0;
  for (int chunk = lane; chunk < num_chunks; chunk += kWarpSize) top = fmaxf(top, chunks[chunk]);
  top = warp_max(top);
  for (int chunk = lane; chunk < num_chunks; chunk += kWarpSize) sum += exp2f(chunks[chunk] - top);
  return top + log2f(warp_sum(sum));
}

struct PoolRows {
  int begin, count;
  __device__ __forceinline__ float weight(const ScoreKeysParams& params, int row) const {
    return params.row_weights != nullptr ? params.row_weights[begin + row] : 1.0f;
  }
};

/// Weighted probabilities of eight keys, pooled over the rows of one named head. The head's units are [unit, end).
template <typename Logit, bool kMean>
__device__ __forceinline__ void pool_head(const ScoreArguments& arguments, const float* lse, const PoolRows& rows,
                                          std::int64_t packed, int unit, int end, int head, std::int32_t key,
                                          float (&pooled)[kKeysOfThread]) {
  const ScoreWork& work = arguments.work;
  for (; unit < end; ++unit) {
    const ScoreUnit& own = work.units[unit];
    const int num_rows = own.rows_of(rows.count);
#pragma unroll 4
    for (int row = 0; row < num_rows; ++row) {
      const int p = own.packed + row * own.num_heads + head;
      const float weight = rows.weight(arguments.params, own.first_row + row);
      float values[kKeysOfThread];
      load_eight(static_cast<const Logit*>(arguments.memory.logits) + (packed + p) * work.key_stride + key, values);
      const float shift = arguments.memory.tops[(packed + p) * work.num_groups() + key / kScoreGroup] - lse[p];
      if (!(weight > 0)) continue;
#pragma unroll
      for (int i = 0; i < kKeysOfThread; ++i) {
        const float value = weight * exp2f(values[i] + shift);
        pooled[i] = kMean ? pooled[i] + value : fmaxf(pooled[i], value);
      }
    }
  }
}

__device__ __forceinline__ void write_scores(const ScoreKeysParams& params, float* scores, int count, float factor,
                                             const float (&sums)[kKeysOfThread]) {
  const bool whole = count >= kKeysOfThread && reinterpret_cast<std::uintptr_t>(scores) % sizeof(float4) == 0;
  if (whole) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float4 four = make_float4(0, 0, 0, 0);
      if (params.accumulate) four = reinterpret_cast<float4*>(scores)[i];
      four.x += sums[4 * i] * factor;
      four.y += sums[4 * i + 1] * factor;
      four.z += sums[4 * i + 2] * factor;
      four.w += sums[4 * i + 3] * factor;
      reinterpret_cast<float4*>(scores)[i] = four;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kKeysOfThread; ++i) {
    if (i < count) scores[i] = sums[i] * factor + (params.accumulate ? scores[i] : 0.0f);
  }
}

template <typename Logit, bool kMean>
__global__ void __launch_bounds__(kThreads) score_pool_kernel(const __grid_constant__ ScoreArguments arguments) {
  extern __shared__ float lse[];  // [num_packed]
  const ScoreKeysParams& params = arguments.params;
  const ScoreWork& work = arguments.work;
  const int sequence = arguments.first_sequence + static_cast<int>(blockIdx.y);
  const std::int32_t length = params.lists[sequence].length;
  const std::int32_t first_key = static_cast<std::int32_t>(blockIdx.x) * kKeysOfBlock;
  if (first_key >= length) return;
  const PoolRows rows{params.row_offsets[sequence], params.row_offsets[sequence + 1] - params.row_offsets[sequence]};
  const std::int64_t packed = std::int64_t{blockIdx.y} * work.num_packed;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int u = 0; u < work.num_units; ++u) {
    const ScoreUnit& unit = work.units[u];
    for (int p = warp; p < unit.rows_of(rows.count) * unit.num_heads; p += kWarps) {
      const float value = row_lse(arguments.memory.lse + (packed + unit.packed + p) * work.num_chunks(),
                                  (length + kScoreChunk - 1) / kScoreChunk);
      if (lane == 0) lse[unit.packed + p] = value;
    }
  }
  float total = 0;
  for (int row = lane; row < rows.count; row += kWarpSize) total += rows.weight(params, row);
  total = warp_sum(total);
  const float factor = total > 0 ? params.weight / ((kMean ? total : 1.0f) * params.num_scored_heads) : 0.0f;
  __syncthreads();

  const std::int32_t key = first_key + static_cast<int>(threadIdx.x) * kKeysOfThread;
  if (key >= length) return;
  float sums[kKeysOfThread] = {};
  for (int unit = 0, end; unit < work.num_units && factor > 0; unit = end) {
    end = unit + 1;
    while (end < work.num_units && work.units[end].first_head == work.units[unit].first_head) ++end;
    for (int head = 0; head < work.units[unit].num_heads; ++head) {
      float pooled[kKeysOfThread] = {};
      pool_head<Logit, kMean>(arguments, lse, rows, packed, unit, end, head, key, pooled);
#pragma unroll
      for (int i = 0; i < kKeysOfThread; ++i) sums[i] += pooled[i];
    }
  }
  write_scores(params, params.scores + sequence * params.score_stride + key, length - key, factor, sums);
}

}  // namespace

void launch_score_pool(const ScoreKeysParams& params, const ScoreWork& work, const ScoreMemory& memory,
                       ScoreSlice slice, cudaStream_t stream) {
  if (params.max_keys == 0 || slice.count == 0) return;
  const ScoreArguments arguments{params, nullptr, work, memory, slice.first};
  const dim3 grid(static_cast<unsigned>((params.max_keys + kKeysOfBlock - 1) / kKeysOfBlock),
                  static_cast<unsigned>(slice.count));
  const std::size_t shared = static_cast<std::size_t>(work.num_packed) * sizeof(float);
  const bool mean = params.pooling == RowPooling::kMean;
  if (params.kv.dtype == DType::kFloat32) {
    const auto kernel = mean ? score_pool_kernel<float, true> : score_pool_kernel<float, false>;
    kernel<<<grid, kThreads, shared, stream>>>(arguments);
  } else {
    const auto kernel = mean ? score_pool_kernel<Fp16, true> : score_pool_kernel<Fp16, false>;
    kernel<<<grid, kThreads, shared, stream>>>(arguments);
  }
}

}  // namespace fastspec::cuda
