// Splits fused q, k, v rows, normalises and rotates q and k, writes K and V to the pool: one warp a head. A rotation
// pairs elements (i, i + head_dim / 2); a lane handles two neighbouring pairs at a time.
#include "common/warp.cuh"
#include "layers/layers.h"
#include "layers/pack.cuh"

namespace fastspec::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;

template <typename T>
__device__ __forceinline__ T* slot_address(const KvView& kv, Slot slot, int kv_head, int which) {
  const Slot page = slot >> kv.page_shift;
  const Slot offset = slot & ((Slot{1} << kv.page_shift) - 1);
  return static_cast<T*>(kv.base) + page * kv.page_stride + kv_head * kv.head_stride + which * kv.value_offset +
         offset * kv.slot_stride;
}

template <typename T>
__device__ __forceinline__ float2 load_two(const T* source) {
  const auto pack = load_pack<2>(source);
  return make_float2(to_float(pack.value[0]), to_float(pack.value[1]));
}

template <typename T>
__device__ __forceinline__ void store_two(T* destination, float first, float second) {
  store_pack(destination, Pack<T, 2>{{from_float<T>(first), from_float<T>(second)}});
}

/// 1 / rms of one head, in every lane.
template <typename T>
__device__ float inverse_rms(const T* source, int head_dim, float eps, int lane) {
  float sum = 0;
  for (int i = 2 * lane; i < head_dim; i += 2 * kWarpSize) {
    const float2 value = load_two(source + i);
    sum += value.x * value.x + value.y * value.y;
  }
  return 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(head_dim) + eps);
}

template <typename T>
__device__ void rotate_head(const T* source, const float* norm, float eps, const float* cosines, const float* sines,
                            int half, int lane, T* destination) {
  const float scale = norm != nullptr ? inverse_rms(source, 2 * half, eps, lane) : 1.0f;
  for (int i = 2 * lane; i < half; i += 2 * kWarpSize) {
    float2 first = load_two(source + i);
    float2 second = load_two(source + half + i);
    if (norm != nullptr) {
      first.x = first.x * scale * norm[i];
      first.y = first.y * scale * norm[i + 1];
      second.x = second.x * scale * norm[half + i];
      second.y = second.y * scale * norm[half + i + 1];
    }
    store_two(destination + i, first.x * cosines[i] - second.x * sines[i],
              first.y * cosines[i + 1] - second.y * sines[i + 1]);
    store_two(destination + half + i, second.x * cosines[i] + first.x * sines[i],
              second.y * cosines[i + 1] + first.y * sines[i + 1]);
  }
}

/// Heads in a row of qkv.
__host__ __device__ __forceinline__ int num_heads_of(const RopeStoreParams& params) {
  return params.num_heads + (params.slots != nullptr ? 2 * params.kv.num_kv_heads : 0);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) rope_store_kernel(RopeStoreParams params) {
  extern __shared__ float angles[];  // cosines [head_dim / 2], then sines
  const int half = params.kv.head_dim / 2;
  float* cosines = angles;
  float* sines = angles + half;
  const int row = static_cast<int>(blockIdx.x);
  const auto position = static_cast<float>(params.positions[row]);
  for (int i = static_cast<int>(threadIdx.x); i < half; i += kThreads) {
    float sine, cosine;
    sincosf(position * params.inverse_frequencies[i], &sine, &cosine);
    cosines[i] = cosine * params.attention_factor;
    sines[i] = sine * params.attention_factor;
  }
  __syncthreads();

  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int head = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  const int num_kv_heads = params.kv.num_kv_heads;
  if (head >= num_heads_of(params)) return;
  const T* source = row_of<const T>(params.qkv, row) + std::int64_t{head} * 2 * half;
  if (head < params.num_heads) {
    T* destination = row_of<T>(params.query, row) + std::int64_t{head} * 2 * half;
    rotate_head(source, params.q_norm.data, params.norm_eps, cosines, sines, half, lane, destination);
    return;
  }
  const int kv_head = (head - params.num_heads) % num_kv_heads;
  const int which = (head - params.num_heads) / num_kv_heads;
  T* destination = slot_address<T>(params.kv, params.slots[row], kv_head, which);
  if (which == 0) {
    rotate_head(source, params.k_norm.data, params.norm_eps, cosines, sines, half, lane, destination);
    return;
  }
  for (int i = 2 * lane; i < 2 * half; i += 2 * kWarpSize) store_pack(destination + i, load_pack<2>(source + i));
}

}  // namespace

void launch_rope_store(const RopeStoreParams& params, cudaStream_t stream) {
  if (params.qkv.rows == 0) return;
  const dim3 grid(params.qkv.rows, ceil_div(num_heads_of(params), kWarps));
  const std::size_t shared_bytes = static_cast<std::size_t>(params.kv.head_dim) * sizeof(float);
  with_element(params.qkv.dtype, [&](auto element) {
    rope_store_kernel<decltype(element)><<<grid, kThreads, shared_bytes, stream>>>(params);
  });
}

}  // namespace fastspec::cuda
