// See gemm.h. Wraps the caller's memory in tensors for the length of one call.
#include "backend/torch/gemm.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <c10/core/InferenceMode.h>

#include <exception>

#include "base/check.h"

namespace fastspec::torch_backend {
namespace {

at::Tensor wrap(void* data, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  return at::from_blob(data, {rows, cols}, {stride, 1}, at::TensorOptions().dtype(at::kFloat));
}

at::Tensor transposed(const Weight& weight) {
  // from_blob takes no pointer to const; the product only reads.
  return wrap(const_cast<void*>(weight.data), weight.out_features, weight.in_features, weight.in_features).t();
}

template <typename Function>
void call_torch(int num_threads, int rows, const Weight& weight, Function&& function) {
  try {
    const c10::InferenceMode guard;
    if (at::get_num_threads() != num_threads) at::set_num_threads(num_threads);
    function();
  } catch (const std::exception& error) {
    fail(ErrorCode::kInternal, "linear on libtorch, ", rows, " rows, weight [", weight.out_features, ", ",
         weight.in_features, "] ", to_string(weight.dtype), ": ", error.what());
  }
}

}  // namespace

void gemm_float32(const Matrix& input, const Weight& weight, bool accumulate, const Matrix& output, int num_threads) {
  call_torch(num_threads, input.rows, weight, [&] {
    const at::Tensor in = wrap(input.data, input.rows, input.cols, input.stride);
    at::Tensor out = wrap(output.data, output.rows, output.cols, output.stride);
    if (accumulate) {
      out.addmm_(in, transposed(weight));
    } else {
      at::mm_out(out, in, transposed(weight));
    }
  });
}

}  // namespace fastspec::torch_backend
