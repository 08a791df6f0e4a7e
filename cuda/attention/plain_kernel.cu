// Attention in the plainest form: one CTA a (row, head), float arithmetic throughout, any element type, head size and
// stride. For tests and small float32 models; reads K and V once for every row and head, so it is slow by design.
#include <cfloat>

#include "attention/tile_launch.h"
#include "attention/visibility.h"
#include "common/warp.cuh"

namespace fastspec::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kPlainMaxHeadDim = 512;
constexpr int kColumns = kPlainMaxHeadDim / kThreads;  // a thread

struct Scratch {
  float query[kPlainMaxHeadDim];
  float weights[kThreads];
  const void* values[kThreads];  // V of each key of the chunk; null where it is not seen
  float reduced[kWarps];
};

template <bool kMax>
__device__ float reduce(float value, Scratch& scratch) {
  value = kMax ? warp_max(value) : warp_sum(value);
  if (threadIdx.x % kWarpSize == 0) scratch.reduced[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  float result = scratch.reduced[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) {
    result = kMax ? fmaxf(result, scratch.reduced[warp]) : result + scratch.reduced[warp];
  }
  __syncthreads();
  return result;
}

/// The sequence that holds a row below row_offsets[num_sequences].
__device__ int sequence_of_row(const AttentionParams& params, int row) {
  int low = 0;
  int high = params.num_sequences;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (params.row_offsets[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// K of one key of a sequence for one head, or null where `row` does not see it.
template <typename T>
__device__ const T* visible_key(const AttentionParams& params, int sequence, int row, int kv_head, int key) {
  const KvList& list = params.lists[sequence];
  const KvView& kv = params.kv;
  const Slot in_page_mask = (Slot{1} << kv.page_shift) - 1;
  Slot slot;
  if (key < list.length) {
    if (list.pages) {
      if (params.window > 0 && !in_window(params.window, params.sinks, params.positions[row], key)) return nullptr;
      slot = (params.entries[list.offset + (key >> kv.page_shift)] << kv.page_shift) | (key & in_page_mask);
    } else {
      slot = params.entries[list.offset + key];
    }
  } else {
    const int begin = params.row_offsets[sequence];
    const int key_row = begin + key - list.length;
    const std::uint64_t* words = params.mask_bits + static_cast<std::int64_t>(row) * kMaskWords;
    if (!mask_allows(params.masks[sequence], words, row - begin, key - list.length)) return nullptr;
    if (params.window > 0 &&
        !in_window(params.window, params.sinks, params.positions[row], params.positions[key_row])) {
      return nullptr;
    }
    slot = params.slots[key_row];
  }
  return static_cast<const T*>(kv.base) + (slot >> kv.page_shift) * kv.page_stride + kv_head * kv.head_stride +
         (slot & in_page_mask) * kv.slot_stride;
}

template <typename T>
__device__ float dot(const float* query, const T* key, int size) {
  float sum = 0;
#pragma unroll 4
  for (int i = 0; i < size; ++i) sum += query[i] * to_float(key[i]);
  return sum;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) attention_plain_kernel(const __grid_constant__ AttentionParams params) {
  __shared__ Scratch scratch;
  const int row = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  if (row >= params.row_offsets[params.num_sequences]) return;
  const int head_dim = params.kv.head_dim;
  const int kv_head = head / (params.num_heads / params.kv.num_kv_heads);
  const int sequence = sequence_of_row(params, row);
  const int num_keys = params.lists[sequence].length + params.row_offsets[sequence + 1] - params.row_offsets[sequence];
  const int thread = static_cast<int>(threadIdx.x);
  const T* query =
      static_cast<const T*>(params.query.data) + row * params.query.stride + static_cast<std::int64_t>(head) * head_dim;
  for (int d = thread; d < head_dim; d += kThreads) scratch.query[d] = to_float(query[d]);
  __syncthreads();

  float top = -INFINITY;
  float sum = 0;
  float total[kColumns] = {};
  for (int base = 0; base < num_keys; base += kThreads) {
    const int key = base + thread;
    const T* address = key < num_keys ? visible_key<T>(params, sequence, row, kv_head, key) : nullptr;
    const float score = address == nullptr ? -INFINITY : dot(scratch.query, address, head_dim) * params.scale;
    const float new_top = fmaxf(top, reduce<true>(score, scratch));
    const float shift = new_top == -INFINITY ? 0.0f : new_top;
    const float correction = expf(top - shift);
    const float weight = expf(score - shift);
    top = new_top;
    scratch.weights[thread] = weight;
    scratch.values[thread] = address == nullptr ? nullptr : address + params.kv.value_offset;
    sum = sum * correction + reduce<false>(weight, scratch);  // its barriers also publish weights and values
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const int d = column * kThreads + thread;
      if (d >= head_dim) break;
      float chunk = 0;
#pragma unroll 4
      for (int i = 0; i < kThreads; ++i) {
        const T* value = static_cast<const T*>(scratch.values[i]);
        if (value != nullptr) chunk += scratch.weights[i] * to_float(value[d]);
      }
      total[column] = total[column] * correction + chunk;
    }
    __syncthreads();  // before the next chunk's weights
  }
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  T* output =
      static_cast<T*>(params.output.data) + row * params.output.stride + static_cast<std::int64_t>(head) * head_dim;
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    const int d = column * kThreads + thread;
    if (d < head_dim) output[d] = from_float<T>(total[column] * inverse);
  }
  if (thread == 0 && params.lse != nullptr) {
    params.lse[static_cast<std::int64_t>(row) * params.num_heads + head] = sum == 0.0f ? -INFINITY : top + logf(sum);
  }
}

template <typename T>
cudaError_t launch(const AttentionParams& params, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(params.query.rows), static_cast<unsigned>(params.num_heads));
  attention_plain_kernel<T><<<grid, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_attention_plain(const AttentionParams& params, cudaStream_t stream) {
  if (params.kv.head_dim > kPlainMaxHeadDim || params.num_heads > 65535) return cudaErrorInvalidValue;
  switch (params.kv.dtype) {
    case DType::kFloat32:
      return launch<float>(params, stream);
    case DType::kBFloat16:
      return launch<Bf16>(params, stream);
    case DType::kFloat16:
      return launch<Fp16>(params, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace fastspec::cuda
