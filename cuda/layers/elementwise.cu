// Embedding rows, copied rows, SiLU(gate) * up, and biases: a pass over rows of packs each.
#include "layers/layers.h"
#include "layers/pack.cuh"

namespace fastspec::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxGridRows = 65535;

/// One thread a pack, a block's y a row (rows beyond the grid's limit are looped over).
dim3 row_grid(int rows, int packs) {
  return dim3(ceil_div(packs, kThreads), rows < kMaxGridRows ? rows : kMaxGridRows);
}

__device__ __forceinline__ int pack_of_thread() {
  return static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) embedding_kernel(EmbeddingParams params) {
  const int pack = pack_of_thread();
  if (pack * kWidth >= params.output.cols) return;
  for (int row = static_cast<int>(blockIdx.y); row < params.output.rows; row += static_cast<int>(gridDim.y)) {
    const T* source = static_cast<const T*>(params.table.data) +
                      static_cast<std::int64_t>(params.tokens[row]) * params.table.in_features;
    store_pack(row_of<T>(params.output, row) + pack * kWidth, load_pack<kWidth>(source + pack * kWidth));
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) copy_rows_kernel(CopyRowsParams params) {
  const int pack = pack_of_thread();
  if (pack * kWidth >= params.output.cols) return;
  for (int row = static_cast<int>(blockIdx.y); row < params.output.rows; row += static_cast<int>(gridDim.y)) {
    const int source = params.row_index == nullptr ? row : params.row_index[row];
    if (source < 0) continue;
    store_pack(row_of<T>(params.output, row) + pack * kWidth,
               load_pack<kWidth>(row_of<const T>(params.input, source) + pack * kWidth));
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) silu_mul_kernel(SiluMulParams params) {
  const int pack = pack_of_thread();
  const int cols = params.output.cols;
  if (pack * kWidth >= cols) return;
  for (int row = static_cast<int>(blockIdx.y); row < params.output.rows; row += static_cast<int>(gridDim.y)) {
    const T* source = row_of<const T>(params.gate_up, row) + pack * kWidth;
    const auto gate = load_pack<kWidth>(source);
    auto result = load_pack<kWidth>(source + cols);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float value = to_float(gate.value[i]);
      result.value[i] = from_float<T>(value / (1.0f + expf(-value)) * to_float(result.value[i]));
    }
    store_pack(row_of<T>(params.output, row) + pack * kWidth, result);
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) bias_kernel(Matrix output, const float* bias, bool accumulate) {
  const int pack = pack_of_thread();
  if (pack * kWidth >= output.cols) return;
  const auto added = load_pack<kWidth>(bias + pack * kWidth);
  for (int row = static_cast<int>(blockIdx.y); row < output.rows; row += static_cast<int>(gridDim.y)) {
    T* place = row_of<T>(output, row) + pack * kWidth;
    Pack<T, kWidth> result;
    if (accumulate) result = load_pack<kWidth>(place);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      result.value[i] = from_float<T>(accumulate ? to_float(result.value[i]) + added.value[i] : added.value[i]);
    }
    store_pack(place, result);
  }
}

}  // namespace

void launch_embedding(const EmbeddingParams& params, cudaStream_t stream) {
  if (params.output.rows == 0) return;
  const bool full = has_full_packs(params.output) && is_aligned(params.table.data);
  with_packs(params.output.dtype, full, [&](auto element, auto width) {
    constexpr int kWidth = decltype(width)::value;
    const dim3 grid = row_grid(params.output.rows, params.output.cols / kWidth);
    embedding_kernel<decltype(element), kWidth><<<grid, kThreads, 0, stream>>>(params);
  });
}

void launch_copy_rows(const CopyRowsParams& params, cudaStream_t stream) {
  if (params.output.rows == 0) return;
  const bool full = has_full_packs(params.input) && has_full_packs(params.output);
  with_packs(params.output.dtype, full, [&](auto element, auto width) {
    constexpr int kWidth = decltype(width)::value;
    const dim3 grid = row_grid(params.output.rows, params.output.cols / kWidth);
    copy_rows_kernel<decltype(element), kWidth><<<grid, kThreads, 0, stream>>>(params);
  });
}

void launch_silu_mul(const SiluMulParams& params, cudaStream_t stream) {
  if (params.output.rows == 0) return;
  // `up` starts at output.cols elements: whole packs of the output keep it aligned too.
  const bool full = has_full_packs(params.gate_up) && has_full_packs(params.output);
  with_packs(params.output.dtype, full, [&](auto element, auto width) {
    constexpr int kWidth = decltype(width)::value;
    const dim3 grid = row_grid(params.output.rows, params.output.cols / kWidth);
    silu_mul_kernel<decltype(element), kWidth><<<grid, kThreads, 0, stream>>>(params);
  });
}

void launch_bias(const Matrix& output, const Vector& bias, bool accumulate, cudaStream_t stream) {
  if (output.rows == 0) return;
  with_packs(output.dtype, has_full_packs(output) && is_aligned(bias.data), [&](auto element, auto width) {
    constexpr int kWidth = decltype(width)::value;
    const dim3 grid = row_grid(output.rows, output.cols / kWidth);
    bias_kernel<decltype(element), kWidth><<<grid, kThreads, 0, stream>>>(output, bias.data, accumulate);
  });
}

}  // namespace fastspec::cuda
