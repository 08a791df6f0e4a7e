// See fast_ops.h.
#include "backend/cpu/fast_ops.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/check_params.h"
#include "backend/cpu/half.h"
#include "backend/cpu/kv_address.h"
#include "backend/torch/gemm.h"

namespace fastspec::cpu {
namespace {

// Multiply-adds, or elements of a cheaper loop, below which waking a thread costs more than it saves.
constexpr std::int64_t kWorkPerThread = 32768;
constexpr std::int64_t kElementsPerThread = 8192;
// Output columns that a thread takes at least; a multiple of every tile width of the linear kernels.
constexpr std::int64_t kColumnGrain = 12;

std::int64_t row_grain(int elements_per_row) {
  return std::max<std::int64_t>(1, kElementsPerThread / std::max(1, elements_per_row));
}

// Rows from which activations are rounded to bfloat16 beside bfloat16 weights: prompt chunks, where arithmetic and not
// the reading of weights takes the time. Fewer rows keep float32 activations.
constexpr int kDotRows = 17;

auto kernel_of(const LinearKernels& kernels, DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return kernels.bfloat16;
    case DType::kFloat16:
      return kernels.float16;
    case DType::kFloat32:
      break;
  }
  return kernels.float32;
}

}  // namespace

FastOps::FastOps(int num_threads, const Kernels& kernels)
    : CpuOps(num_threads), kernels_(kernels), attention_(pool_, kernels), scores_(pool_, kernels) {}

void FastOps::rms_norm(const RmsNormParams& params) {
  check_params(params);
  const int size = params.input.cols;
  pool_.parallel_for(params.output.rows, row_grain(size), [&](std::int64_t begin, std::int64_t end, int) {
    for (int row = static_cast<int>(begin); row < end; ++row) {
      const float* input = params.input.row<float>(params.row_index != nullptr ? params.row_index[row] : row);
      kernels_.row.rms_norm(input, params.weight.data, size, params.eps, params.output.row<float>(row));
    }
  });
}

void FastOps::linear(const LinearParams& params) {
  check_params(params);
  if (params.input.rows == 0) return;
  if (params.weight.dtype == DType::kFloat32 && params.input.rows >= kernels_.torch_rows) {
    return linear_on_torch(params);
  }
  LinearTask task;
  task.input = params.input.data;
  task.input_stride = params.input.stride;
  task.rows = params.input.rows;
  task.weight = params.weight.data;
  task.in_features = params.weight.in_features;
  task.bias = params.bias.data;
  task.accumulate = params.accumulate;
  task.output = static_cast<float*>(params.output.data);
  task.output_stride = params.output.stride;
  auto* kernel = kernel_of(kernels_.linear, params.weight.dtype);
  if (params.weight.dtype == DType::kBFloat16 && task.rows >= kDotRows && kernels_.linear.bfloat16_dot != nullptr) {
    kernel = kernels_.linear.bfloat16_dot;
    task.input = narrow_input(params.input);
    task.input_stride = params.input.cols;
  }
  const std::int64_t work_per_column = std::int64_t{task.rows} * task.in_features;
  const std::int64_t columns = std::max<std::int64_t>(1, kWorkPerThread / work_per_column);
  const std::int64_t grain = (columns + kColumnGrain - 1) / kColumnGrain * kColumnGrain;
  pool_.parallel_for(params.weight.out_features, grain, [&](std::int64_t begin, std::int64_t end, int) {
    LinearTask share = task;
    share.begin = static_cast<int>(begin);
    share.end = static_cast<int>(end);
    kernel(share);
  });
}

void FastOps::linear_on_torch(const LinearParams& params) {
  torch_backend::gemm_float32(params.input, params.weight, params.accumulate, params.output, pool_.num_threads());
  if (params.bias.data == nullptr) return;
  for (int row = 0; row < params.output.rows; ++row) {
    float* output = params.output.row<float>(row);
    for (int i = 0; i < params.output.cols; ++i) output[i] += params.bias.data[i];
  }
}

const BFloat16* FastOps::narrow_input(const Matrix& input) {
  const std::size_t size = static_cast<std::size_t>(input.rows) * static_cast<std::size_t>(input.cols);
  if (narrow_input_.size() < size) narrow_input_.resize(size);
  pool_.parallel_for(input.rows, row_grain(input.cols), [&](std::int64_t begin, std::int64_t end, int) {
    for (int row = static_cast<int>(begin); row < end; ++row) {
      kernels_.row.narrow(input.row<float>(row), input.cols, narrow_input_.data() + std::int64_t{row} * input.cols);
    }
  });
  return narrow_input_.data();
}

void FastOps::RopeTable::update(const RopeStoreParams& params) {
  const int rows = params.qkv.rows;
  const int half = params.kv.head_dim / 2;
  const bool same = attention_factor == params.attention_factor &&
                    std::equal(positions.begin(), positions.end(), params.positions, params.positions + rows) &&
                    std::equal(inverse_frequencies.begin(), inverse_frequencies.end(), params.inverse_frequencies,
                               params.inverse_frequencies + half);
  if (same) return;
  positions.assign(params.positions, params.positions + rows);
  inverse_frequencies.assign(params.inverse_frequencies, params.inverse_frequencies + half);
  attention_factor = params.attention_factor;
  cosines.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(half));
  sines.resize(cosines.size());
  for (int row = 0, at = 0; row < rows; ++row) {
    for (int i = 0; i < half; ++i, ++at) {
      // float32 on purpose: the rounded angle is what models were trained with.
      const float angle = static_cast<float>(params.positions[row]) * params.inverse_frequencies[i];
      cosines[static_cast<std::size_t>(at)] = std::cos(angle) * attention_factor;
      sines[static_cast<std::size_t>(at)] = std::sin(angle) * attention_factor;
    }
  }
}

void FastOps::rope_store(const RopeStoreParams& params) {
  check_params(params);
  rope_.update(params);
  const auto head_dim = static_cast<std::size_t>(params.kv.head_dim);
  head_scratch_.resize(static_cast<std::size_t>(pool_.num_threads()) * head_dim);
  pool_.parallel_for(params.qkv.rows, row_grain(params.qkv.cols),
                     [&](std::int64_t begin, std::int64_t end, int thread) {
                       float* scratch = head_scratch_.data() + static_cast<std::size_t>(thread) * head_dim;
                       for (int row = static_cast<int>(begin); row < end; ++row) rope_row(params, row, scratch);
                     });
}

void FastOps::rope_row(const RopeStoreParams& params, int row, float* scratch) const {
  const KvView& kv = params.kv;
  const int head_dim = kv.head_dim;
  const int half = head_dim / 2;
  const float* cosines = rope_.cosines.data() + std::int64_t{row} * half;
  const float* sines = rope_.sines.data() + std::int64_t{row} * half;
  const float* source = params.qkv.row<float>(row);
  const auto norm_and_rotate = [&](const Vector& norm, float* output) {
    const float* input = source;
    if (norm.data != nullptr) {
      kernels_.row.rms_norm(source, norm.data, head_dim, params.norm_eps, scratch);
      input = scratch;
    }
    kernels_.row.rotate(input, cosines, sines, half, output);
    source += head_dim;
  };
  for (int head = 0; head < params.num_heads; ++head) {
    norm_and_rotate(params.q_norm, params.query.row<float>(row) + head * head_dim);
  }
  if (params.slots == nullptr) return;
  dispatch_dtype(kv.dtype, [&]<typename T>(T) {
    const auto store = [&](const float* values, int head, int which) {
      T* output = kv_address<T>(kv, params.slots[row], head, which);
      kernels_.row.narrow(values, head_dim, output);
    };
    for (int head = 0; head < kv.num_kv_heads; ++head) {
      norm_and_rotate(params.k_norm, scratch);
      store(scratch, head, 0);
    }
    for (int head = 0; head < kv.num_kv_heads; ++head, source += head_dim) store(source, head, 1);
  });
}

void FastOps::attention(const AttentionParams& params) {
  check_params(params);
  attention_.run(params);
}

void FastOps::score_keys(const ScoreKeysParams& params) {
  check_params(params);
  scores_.score_keys(params);
}

void FastOps::score_pages(const ScorePagesParams& params) {
  check_params(params);
  scores_.score_pages(params);
}

void FastOps::silu_mul(const SiluMulParams& params) {
  check_params(params);
  const int size = params.output.cols;
  pool_.parallel_for(params.output.rows, row_grain(2 * size), [&](std::int64_t begin, std::int64_t end, int) {
    for (int row = static_cast<int>(begin); row < end; ++row) {
      const float* gate = params.gate_up.row<float>(row);
      kernels_.row.silu_mul(gate, gate + size, size, params.output.row<float>(row));
    }
  });
}

}  // namespace fastspec::cpu
