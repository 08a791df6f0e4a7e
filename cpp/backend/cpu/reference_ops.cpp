// See reference_ops.h: everything but attention.
#include "backend/cpu/reference_ops.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/check_params.h"
#include "backend/cpu/half.h"
#include "backend/cpu/kv_address.h"
#include "backend/cpu/reference_math.h"

namespace fastspec::cpu {
namespace {

float inverse_rms(const float* values, int size, float eps) {
  return 1.0f / std::sqrt(reference::dot(values, values, size) / static_cast<float>(size) + eps);
}

/// Optional norm, then rotation of the pairs (i, i + head_dim / 2), from `input` to `output`.
void norm_and_rotate(const float* input, const Vector& norm, const RopeStoreParams& params, std::int32_t position,
                     float* output) {
  const int half = params.kv.head_dim / 2;
  const float scale = norm.data != nullptr ? inverse_rms(input, 2 * half, params.norm_eps) : 1.0f;
  for (int i = 0; i < half; ++i) {
    float first = input[i];
    float second = input[i + half];
    if (norm.data != nullptr) {
      first = first * scale * norm.data[i];
      second = second * scale * norm.data[i + half];
    }
    const float angle = static_cast<float>(position) * params.inverse_frequencies[i];
    const float cosine = std::cos(angle) * params.attention_factor;
    const float sine = std::sin(angle) * params.attention_factor;
    output[i] = first * cosine - second * sine;
    output[i + half] = second * cosine + first * sine;
  }
}

template <typename T>
void store(const float* values, int size, T* output) {
  for (int i = 0; i < size; ++i) from_float(values[i], output[i]);
}

template <typename T>
void rope_store_row(const RopeStoreParams& params, int row, float* rotated) {
  const KvView& kv = params.kv;
  const int head_dim = kv.head_dim;
  const float* source = params.qkv.row<float>(row);
  const std::int32_t position = params.positions[row];
  for (int head = 0; head < params.num_heads; ++head, source += head_dim) {
    norm_and_rotate(source, params.q_norm, params, position,
                    params.query.row<float>(row) + std::int64_t{head} * head_dim);
  }
  if (params.slots == nullptr) return;
  for (int head = 0; head < kv.num_kv_heads; ++head, source += head_dim) {
    norm_and_rotate(source, params.k_norm, params, position, rotated);
    store(rotated, head_dim, kv_address<T>(kv, params.slots[row], head, 0));
  }
  for (int head = 0; head < kv.num_kv_heads; ++head, source += head_dim) {
    store(source, head_dim, kv_address<T>(kv, params.slots[row], head, 1));
  }
}

}  // namespace

ReferenceOps::ReferenceOps(int num_threads)
    : CpuOps(num_threads), scratch_(static_cast<std::size_t>(pool_.num_threads())) {}

void ReferenceOps::rms_norm(const RmsNormParams& params) {
  check_params(params);
  const int size = params.input.cols;
  pool_.parallel_for(params.output.rows, 4, [&](std::int64_t begin, std::int64_t end, int) {
    for (int row = static_cast<int>(begin); row < end; ++row) {
      const float* input = params.input.row<float>(params.row_index != nullptr ? params.row_index[row] : row);
      float* output = params.output.row<float>(row);
      const float scale = inverse_rms(input, size, params.eps);
      for (int i = 0; i < size; ++i) output[i] = input[i] * scale * params.weight.data[i];
    }
  });
}

void ReferenceOps::linear(const LinearParams& params) {
  check_params(params);
  const int size = params.weight.in_features;
  dispatch_dtype(params.weight.dtype, [&]<typename T>(T) {
    const T* weights = static_cast<const T*>(params.weight.data);
    pool_.parallel_for(params.weight.out_features, 16, [&](std::int64_t begin, std::int64_t end, int thread) {
      std::vector<float>& widened = scratch_[static_cast<std::size_t>(thread)].widened;
      if (widened.size() < static_cast<std::size_t>(size)) widened.resize(static_cast<std::size_t>(size));
      for (std::int64_t feature = begin; feature < end; ++feature) {
        const T* weight = weights + feature * size;
        for (int i = 0; i < size; ++i) widened[static_cast<std::size_t>(i)] = to_float(weight[i]);
        const float bias = params.bias.data != nullptr ? params.bias.data[feature] : 0.0f;
        for (int row = 0; row < params.input.rows; ++row) {
          const float value = reference::dot(params.input.row<float>(row), widened.data(), size) + bias;
          float& output = params.output.row<float>(row)[feature];
          output = params.accumulate ? output + value : value;
        }
      }
    });
  });
}

void ReferenceOps::rope_store(const RopeStoreParams& params) {
  check_params(params);
  const auto head_dim = static_cast<std::size_t>(params.kv.head_dim);
  dispatch_dtype(params.kv.dtype, [&]<typename T>(T) {
    pool_.parallel_for(params.qkv.rows, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      std::vector<float>& rotated = scratch_[static_cast<std::size_t>(thread)].widened;
      if (rotated.size() < head_dim) rotated.resize(head_dim);
      for (int row = static_cast<int>(begin); row < end; ++row) rope_store_row<T>(params, row, rotated.data());
    });
  });
}

void ReferenceOps::silu_mul(const SiluMulParams& params) {
  check_params(params);
  const int size = params.output.cols;
  pool_.parallel_for(params.output.rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (int row = static_cast<int>(begin); row < end; ++row) {
      const float* gate = params.gate_up.row<float>(row);
      const float* up = gate + size;
      float* output = params.output.row<float>(row);
      for (int i = 0; i < size; ++i) output[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
    }
  });
}

}  // namespace fastspec::cpu
