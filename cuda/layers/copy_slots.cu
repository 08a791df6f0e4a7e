// Moves K and V of accepted rows to their final slots in every layer: one block a move and layer.
#include "layers/layers.h"
#include "layers/pack.cuh"

namespace fastspec::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxGridLayers = 65535;

/// Elements from the pool's base to a slot.
__device__ __forceinline__ std::int64_t slot_offset(const KvView& kv, Slot slot) {
  return (slot >> kv.page_shift) * kv.page_stride + (slot & ((Slot{1} << kv.page_shift) - 1)) * kv.slot_stride;
}

__global__ void __launch_bounds__(kThreads) copy_slots_kernel(CopySlotsParams params) {
  using Chunk = Pack<std::uint32_t, 4>;  // 16 bytes, whatever the elements are
  const SlotMove move = params.moves[blockIdx.x];
  for (int layer = static_cast<int>(blockIdx.y); layer < params.num_layers; layer += static_cast<int>(gridDim.y)) {
    const KvView kv = params.layers[layer];
    const int element = static_cast<int>(size_of(kv.dtype));
    const int chunk_elements = 16 / element;
    const int chunks = kv.head_dim / chunk_elements;  // of one head's K or V
    const std::int64_t from = slot_offset(kv, move.source);
    const std::int64_t to = slot_offset(kv, move.destination);
    auto* base = static_cast<unsigned char*>(kv.base);
    for (int i = static_cast<int>(threadIdx.x); i < 2 * kv.num_kv_heads * chunks; i += kThreads) {
      const int part = i / chunks;  // kv head and K or V
      const std::int64_t inner =
          (part / 2) * kv.head_stride + (part % 2) * kv.value_offset + std::int64_t{i % chunks} * chunk_elements;
      *reinterpret_cast<Chunk*>(base + (to + inner) * element) =
          *reinterpret_cast<const Chunk*>(base + (from + inner) * element);
    }
  }
}

}  // namespace

void launch_copy_slots(const CopySlotsParams& params, cudaStream_t stream) {
  if (params.num_layers == 0 || params.num_moves == 0) return;
  const dim3 grid(params.num_moves, params.num_layers < kMaxGridLayers ? params.num_layers : kMaxGridLayers);
  copy_slots_kernel<<<grid, kThreads, 0, stream>>>(params);
}

}  // namespace fastspec::cuda
