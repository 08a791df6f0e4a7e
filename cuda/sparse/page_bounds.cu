// Channel-wise minimum and maximum of the keys of pages: a block a page and K/V head, a thread a channel.
#include "common/element.cuh"
#include "sparse/sparse.h"

namespace fastspec::cuda {
namespace {

constexpr int kThreads = 128;

template <typename T>
__global__ void __launch_bounds__(kThreads) page_bounds_kernel(PageBoundsParams params) {
  const TouchedPage touched = params.pages[blockIdx.x];
  if (touched.num_slots == 0) return;
  const KvView& kv = params.kv;
  const int head = static_cast<int>(blockIdx.y);
  const T* keys = static_cast<const T*>(kv.base) + touched.page * kv.page_stride + head * kv.head_stride;
  T* bounds = static_cast<T*>(params.bounds) + (std::int64_t{touched.page} * kv.num_kv_heads + head) * 2 * kv.head_dim;
  for (int d = static_cast<int>(threadIdx.x); d < kv.head_dim; d += kThreads) {
    T low = keys[d], high = low;
#pragma unroll 4
    for (int slot = 1; slot < touched.num_slots; ++slot) {
      const T key = keys[slot * kv.slot_stride + d];
      if (to_float(key) < to_float(low)) low = key;
      if (to_float(key) > to_float(high)) high = key;
    }
    bounds[d] = low;
    bounds[kv.head_dim + d] = high;
  }
}

}  // namespace

void launch_page_bounds(const PageBoundsParams& params, cudaStream_t stream) {
  if (params.num_pages == 0) return;
  const dim3 grid(static_cast<unsigned>(params.num_pages), static_cast<unsigned>(params.kv.num_kv_heads));
  switch (params.kv.dtype) {
    case DType::kBFloat16:
      return page_bounds_kernel<Bf16><<<grid, kThreads, 0, stream>>>(params);
    case DType::kFloat16:
      return page_bounds_kernel<Fp16><<<grid, kThreads, 0, stream>>>(params);
    case DType::kFloat32:
      return page_bounds_kernel<float><<<grid, kThreads, 0, stream>>>(params);
  }
}

}  // namespace fastspec::cuda
