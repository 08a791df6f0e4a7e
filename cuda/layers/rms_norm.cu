// RMS norm: one block a row; the row stays in registers between the sum of squares and the scaling.
#include "layers/block_sum.cuh"
#include "layers/layers.h"
#include "layers/pack.cuh"

namespace fastspec::cuda {
namespace {

constexpr int kHeldPacks = 2;  // a thread's packs that stay in registers; longer rows are read again
constexpr int kMaxThreads = 1024;

struct RmsNormArguments {
  const void* input;
  std::int64_t input_stride;
  const float* weight;
  float eps;
  const std::int32_t* row_index;
  void* output;
  std::int64_t output_stride;
  int cols;
};

template <typename T, int kWidth>
__device__ __forceinline__ float sum_of_squares(const Pack<T, kWidth>& pack) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum += to_float(pack.value[i]) * to_float(pack.value[i]);
  return sum;
}

template <typename T, int kWidth>
__device__ __forceinline__ void store_scaled(Pack<T, kWidth> pack, float scale, const float* weight, T* output) {
  const auto weights = load_pack<kWidth>(weight);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    pack.value[i] = from_float<T>(to_float(pack.value[i]) * scale * weights.value[i]);
  }
  store_pack(output, pack);
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kMaxThreads) rms_norm_kernel(RmsNormArguments arguments) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t source = arguments.row_index != nullptr ? arguments.row_index[row] : row;
  const T* input = static_cast<const T*>(arguments.input) + source * arguments.input_stride;
  T* output = static_cast<T*>(arguments.output) + row * arguments.output_stride;
  const int num_packs = arguments.cols / kWidth;
  const int step = static_cast<int>(blockDim.x);
  const int first = static_cast<int>(threadIdx.x);

  Pack<T, kWidth> held[kHeldPacks];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kHeldPacks; ++i) {
    const int pack = first + i * step;
    if (pack >= num_packs) continue;
    held[i] = load_pack<kWidth>(input + pack * kWidth);
    sum += sum_of_squares(held[i]);
  }
  for (int pack = first + kHeldPacks * step; pack < num_packs; pack += step) {
    sum += sum_of_squares(load_pack<kWidth>(input + pack * kWidth));
  }
  const float scale = 1.0f / sqrtf(block_sum(sum) / static_cast<float>(arguments.cols) + arguments.eps);
#pragma unroll
  for (int i = 0; i < kHeldPacks; ++i) {
    const int pack = first + i * step;
    if (pack < num_packs) store_scaled(held[i], scale, arguments.weight + pack * kWidth, output + pack * kWidth);
  }
  for (int pack = first + kHeldPacks * step; pack < num_packs; pack += step) {
    const auto again = load_pack<kWidth>(input + pack * kWidth);
    store_scaled(again, scale, arguments.weight + pack * kWidth, output + pack * kWidth);
  }
}

}  // namespace

void launch_rms_norm(const RmsNormParams& params, cudaStream_t stream) {
  if (params.output.rows == 0) return;
  const RmsNormArguments arguments{params.input.data, params.input.stride, params.weight.data,   params.eps,
                                   params.row_index,  params.output.data,  params.output.stride, params.input.cols};
  const bool full = has_full_packs(params.input) && has_full_packs(params.output) && is_aligned(params.weight.data);
  with_packs(params.output.dtype, full, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int kWidth = decltype(width)::value;
    const int warps = ceil_div(params.input.cols, kWidth * kHeldPacks * kWarpSize);
    const int threads = warps * kWarpSize < kMaxThreads ? warps * kWarpSize : kMaxThreads;
    rms_norm_kernel<T, kWidth><<<params.output.rows, threads, 0, stream>>>(arguments);
  });
}

}  // namespace fastspec::cuda
