// Merge of two attention results over disjoint keys, in place: one warp a head of a row.
#include <cmath>

#include "common/warp.cuh"
#include "layers/layers.h"
#include "layers/pack.cuh"

namespace fastspec::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;

template <typename T>
__global__ void __launch_bounds__(kThreads) merge_kernel(MergeParams params) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int64_t at = std::int64_t{blockIdx.x} * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  const int row = static_cast<int>(at / params.num_heads);
  const int head = static_cast<int>(at % params.num_heads);
  if (row >= params.output.rows) return;
  const float lse = params.lse[at];
  const float other_lse = params.other_lse[at];
  if (other_lse == -INFINITY) return;  // the other part saw nothing
  const float top = fmaxf(lse, other_lse);
  const float weight = lse == -INFINITY ? 0.0f : expf(lse - top);
  const float other_weight = expf(other_lse - top);
  const float scale = 1.0f / (weight + other_weight);
  const int head_dim = params.output.cols / params.num_heads;
  T* output = row_of<T>(params.output, row) + std::int64_t{head} * head_dim;
  const T* other = row_of<const T>(params.other_output, row) + std::int64_t{head} * head_dim;
  for (int d = lane; d < head_dim; d += kWarpSize) {
    // What a part that saw nothing left in `output` may be anything, NaN too.
    const float own = weight == 0.0f ? 0.0f : to_float(output[d]) * weight;
    output[d] = from_float<T>((own + to_float(other[d]) * other_weight) * scale);
  }
  __syncwarp();  // every lane has read lse
  if (lane == 0) params.lse[at] = lse == -INFINITY ? other_lse : top + logf(weight + other_weight);
}

}  // namespace

void launch_merge(const MergeParams& params, cudaStream_t stream) {
  if (params.output.rows == 0) return;
  const int blocks = ceil_div(std::int64_t{params.output.rows} * params.num_heads, kWarps);
  with_element(params.output.dtype,
               [&](auto element) { merge_kernel<decltype(element)><<<blocks, kThreads, 0, stream>>>(params); });
}

}  // namespace fastspec::cuda
