// See flash_attention.h. Compiles against libtorch 2.9 to 2.14: arguments up to window_size_right, of their own types.
#include "backend/torch/flash_attention.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <limits>
#include <optional>
#include <string>

namespace fastspec {
namespace {

at::Tensor wrap(const void* data, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type, int device) {
  const at::Device place(at::kCUDA, static_cast<at::DeviceIndex>(device));
  // from_blob takes no pointer to const; inputs are only read.
  return at::from_blob(const_cast<void*>(data), sizes, strides, at::TensorOptions().dtype(type).device(place));
}

void attend(const FlashAttentionParams& params) {
  at::globalContext().lazyInitDevice(at::kCUDA);
  const c10::InferenceMode inference;
  const auto index = static_cast<c10::DeviceIndex>(params.device);
  const c10::StreamGuard guard(c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(params.stream), index));

  const at::ScalarType type = params.query.dtype == DType::kBFloat16 ? at::kBFloat16 : at::kHalf;
  const std::int64_t heads = params.num_heads, kv_heads = params.num_kv_heads, dim = params.head_dim;
  const auto rows_of = [&](const Matrix& matrix) {
    return wrap(matrix.data, {matrix.rows, heads, dim}, {matrix.stride, dim, 1}, type, params.device);
  };
  const auto keys_of = [&](const void* data) {
    return wrap(data, {params.num_keys, kv_heads, dim}, {kv_heads * dim, dim, 1}, type, params.device);
  };
  const auto offsets_of = [&](const std::int32_t* data) {
    return std::optional(wrap(data, {params.num_sequences + 1}, {1}, at::kInt, params.device));
  };
  const auto [output, lse, seed, offset, debug] = at::_flash_attention_forward(
      rows_of(params.query), keys_of(params.keys), keys_of(params.values), offsets_of(params.row_offsets),
      offsets_of(params.key_offsets), params.max_rows, params.max_keys, /*dropout_p=*/0.0, /*is_causal=*/true,
      /*return_debug_mask=*/false, std::optional<double>(params.scale), std::optional<std::int64_t>(),
      std::optional<std::int64_t>());

  rows_of(params.output)
      .narrow(0, params.first_row, params.num_rows)
      .copy_(output.narrow(0, params.first_row, params.num_rows));
  if (params.lse == nullptr) return;
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor seen = lse.narrow(1, params.first_row, params.num_rows).t();  // from [heads, rows]
  wrap(params.lse, {params.query.rows, heads}, {heads, 1}, at::kFloat, params.device)
      .narrow(0, params.first_row, params.num_rows)
      .copy_(seen.masked_fill(seen.eq(infinity), -infinity));
}

}  // namespace
}  // namespace fastspec

extern "C" const char* fastspec_flash_attention(const fastspec::FlashAttentionParams& params) {
  thread_local std::string fault;
  try {
    fastspec::attend(params);
    return nullptr;
  } catch (const std::exception& error) {
    fault = error.what();
    fault = fault.substr(0, fault.find('\n'));  // the rest is torch's stack
    return fault.c_str();
  }
}
