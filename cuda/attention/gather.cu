// See gather.h. A block copies 32 keys of one sequence, a warp a key, 16 bytes a lane and step.
#include "attention/gather.h"
#include "common/warp.cuh"

namespace fastspec::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kKeysPerBlock = 32;
constexpr int kMaxSequences = 65535;  // of one grid

__device__ __forceinline__ int num_keys(const GatherKvParams& params, int sequence) {
  return params.lists[sequence].length + params.row_offsets[sequence + 1] - params.row_offsets[sequence];
}

/// Keys of the sequences before this one; for every thread of the block.
__device__ int keys_before(const GatherKvParams& params, int sequence) {
  __shared__ int sums[kWarps];
  int sum = 0;
  for (int s = static_cast<int>(threadIdx.x); s < sequence; s += kThreads) sum += num_keys(params, s);
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
  if (threadIdx.x % kWarpSize == 0) sums[threadIdx.x / kWarpSize] = sum;
  __syncthreads();
  int total = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) total += sums[warp];
  return total;
}

__device__ __forceinline__ Slot slot_of(const GatherKvParams& params, const KvList& list, int first_row, int key) {
  if (key >= list.length) return params.slots[first_row + key - list.length];
  if (!list.pages) return params.entries[list.offset + key];
  const int shift = params.kv.page_shift;
  return (params.entries[list.offset + (key >> shift)] << shift) + (key & ((1 << shift) - 1));
}

__global__ void __launch_bounds__(kThreads) gather_kv_kernel(const __grid_constant__ GatherKvParams params) {
  const int sequence = static_cast<int>(blockIdx.y);
  const int count = num_keys(params, sequence);
  const int before = keys_before(params, sequence);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (sequence == 0) params.key_offsets[0] = 0;
    params.key_offsets[sequence + 1] = before + count;
  }
  const KvView& kv = params.kv;
  const KvList list = params.lists[sequence];
  const int first_row = params.row_offsets[sequence];
  const int element = static_cast<int>(size_of(kv.dtype));
  const int head_chunks = kv.head_dim * element / 16;
  const int chunks = 2 * kv.num_kv_heads * head_chunks;  // of one key, K first
  const int first_key = static_cast<int>(blockIdx.x) * kKeysPerBlock;
  const int last_key = min(first_key + kKeysPerBlock, count);
  const auto* base = static_cast<const unsigned char*>(kv.base);
  for (int key = first_key + static_cast<int>(threadIdx.x) / kWarpSize; key < last_key; key += kWarps) {
    const Slot slot = slot_of(params, list, first_row, key);
    const std::int64_t from =
        (slot >> kv.page_shift) * kv.page_stride + (slot & ((Slot{1} << kv.page_shift) - 1)) * kv.slot_stride;
    const std::int64_t to = static_cast<std::int64_t>(before + key) * (chunks / 2);
#pragma unroll 4
    for (int chunk = static_cast<int>(threadIdx.x) % kWarpSize; chunk < chunks; chunk += kWarpSize) {
      const int which = chunk >= chunks / 2;
      const int within = chunk - which * (chunks / 2);
      const int head = within / head_chunks;
      const std::int64_t source = (from + head * kv.head_stride + which * kv.value_offset) * element +
                                  std::int64_t{16} * (within - head * head_chunks);
      auto* target = static_cast<uint4*>(which == 0 ? params.keys : params.values);
      target[to + within] = *reinterpret_cast<const uint4*>(base + source);
    }
  }
}

}  // namespace

cudaError_t launch_gather_kv(const GatherKvParams& params, cudaStream_t stream) {
  if (params.num_sequences <= 0 || params.num_sequences > kMaxSequences || params.max_keys <= 0) {
    return cudaErrorInvalidValue;
  }
  const dim3 grid((params.max_keys + kKeysPerBlock - 1) / kKeysPerBlock, params.num_sequences);
  gather_kv_kernel<<<grid, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace fastspec::cuda
