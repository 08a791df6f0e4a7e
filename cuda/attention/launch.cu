// Checks the arguments of a pass and hands it to the kernel that its config names. No kernel of its own.
#include <cstdint>

#include "attention/tile_launch.h"
#include "attention/tile_traits.cuh"

namespace fastspec::cuda {
namespace {

bool shapes_agree(const AttentionParams& params) {
  const KvView& kv = params.kv;
  return params.num_sequences >= 0 && kv.num_kv_heads > 0 && params.num_heads > 0 &&
         params.num_heads % kv.num_kv_heads == 0 && kv.head_dim > 0 && kv.page_shift >= 0 && kv.page_shift < 31 &&
         params.query.cols == params.num_heads * kv.head_dim && params.output.cols == params.query.cols &&
         params.query.rows == params.output.rows && params.query.dtype == kv.dtype && params.output.dtype == kv.dtype &&
         params.window >= 0 && params.sinks >= 0;
}

/// All that the tile kernels read or write in 16-byte steps.
bool aligned(const AttentionParams& params) {
  const KvView& kv = params.kv;
  const auto address = [](const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); };
  const std::uintptr_t addresses = address(kv.base) | address(params.query.data) | address(params.output.data);
  const std::int64_t strides =
      kv.page_stride | kv.head_stride | kv.value_offset | kv.slot_stride | params.query.stride | params.output.stride;
  return addresses % 16 == 0 && strides % kChunkElements == 0;
}

template <typename T>
cudaError_t launch_by_dim(const AttentionConfig& config, const TileLaunch& launch, cudaStream_t stream) {
  switch (config.padded_dim) {
    case 64:
      return launch_tiles<T, 64>(config, launch, stream);
    case 96:
      return launch_tiles<T, 96>(config, launch, stream);
    case 128:
      return launch_tiles<T, 128>(config, launch, stream);
    case 256:
      return launch_tiles<T, 256>(config, launch, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t launch_attention(const AttentionParams& params, const AttentionConfig& config, const AttentionPlan& plan,
                             void* workspace, cudaStream_t stream) {
  if (!shapes_agree(params)) return cudaErrorInvalidValue;
  if (params.num_sequences == 0 || params.query.rows == 0) return cudaSuccess;
  if (config.path == AttentionPath::kPlain) return launch_attention_plain(params, stream);

  if (config.padded_dim != padded_head_dim(params.kv.head_dim) || config.num_ctas <= 0) return cudaErrorInvalidValue;
  if (!aligned(params)) return cudaErrorMisalignedAddress;
  const int num_sms = config.num_ctas / tile_ctas_per_sm(config.tile_rows);
  const AttentionWorkspace layout = attention_workspace(num_sms, params.kv.head_dim);
  char* const memory = static_cast<char*>(workspace);
  TileLaunch launch;
  launch.params = params;
  launch.plan = plan;
  launch.group_size = params.num_heads / params.kv.num_kv_heads;
  launch.counters = reinterpret_cast<int*>(memory + layout.counters);
  launch.partial_lse = reinterpret_cast<float*>(memory + layout.partial_lse);
  launch.partial = reinterpret_cast<float*>(memory + layout.partial);
  switch (params.kv.dtype) {
    case DType::kBFloat16:
      return launch_by_dim<Bf16>(config, launch, stream);
    case DType::kFloat16:
      return launch_by_dim<Fp16>(config, launch, stream);
    case DType::kFloat32:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace fastspec::cuda
