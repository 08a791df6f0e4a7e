// See cpu_ops.h.
#include "backend/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/check_params.h"
#include "backend/cpu/half.h"
#include "backend/cpu/kv_address.h"

namespace fastspec::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename T>
void widen_row(const Weight& table, TokenId token, float* output) {
  const T* source = static_cast<const T*>(table.data) + std::int64_t{token} * table.in_features;
  for (int i = 0; i < table.in_features; ++i) output[i] = to_float(source[i]);
}

template <typename T>
void copy_slot(const KvView& kv, const SlotMove& move) {
  for (int head = 0; head < kv.num_kv_heads; ++head) {
    for (int which = 0; which < 2; ++which) {
      std::memcpy(kv_address<T>(kv, move.destination, head, which), kv_address<T>(kv, move.source, head, which),
                  sizeof(T) * static_cast<std::size_t>(kv.head_dim));
    }
  }
}

void merge_head(float* output, float& lse, const float* other, float other_lse, int head_dim) {
  if (other_lse == -kInfinity) return;  // the other part saw nothing
  if (lse == -kInfinity) {
    std::copy(other, other + head_dim, output);
    lse = other_lse;
    return;
  }
  const float top = std::max(lse, other_lse);
  const float weight = std::exp(lse - top);
  const float other_weight = std::exp(other_lse - top);
  const float scale = 1.0f / (weight + other_weight);
  for (int d = 0; d < head_dim; ++d) output[d] = (output[d] * weight + other[d] * other_weight) * scale;
  lse = top + std::log(weight + other_weight);
}

}  // namespace

void CpuOps::embed(const EmbeddingParams& params) {
  check_params(params);
  dispatch_dtype(params.table.dtype, [&]<typename T>(T) {
    for (int row = 0; row < params.output.rows; ++row) {
      widen_row<T>(params.table, params.tokens[row], params.output.row<float>(row));
    }
  });
}

void CpuOps::copy_rows(const CopyRowsParams& params) {
  check_params(params);
  for (int row = 0; row < params.output.rows; ++row) {
    const int source = params.row_index == nullptr ? row : params.row_index[row];
    if (source < 0) continue;
    std::copy_n(params.input.row<const float>(source), params.input.cols, params.output.row<float>(row));
  }
}

void CpuOps::merge(const MergeParams& params) {
  check_params(params);
  const int head_dim = params.output.cols / params.num_heads;
  for (int row = 0; row < params.output.rows; ++row) {
    for (int head = 0; head < params.num_heads; ++head) {
      const std::int64_t at = std::int64_t{row} * params.num_heads + head;
      merge_head(params.output.row<float>(row) + std::int64_t{head} * head_dim, params.lse[at],
                 params.other_output.row<float>(row) + std::int64_t{head} * head_dim, params.other_lse[at], head_dim);
    }
  }
}

void CpuOps::copy_slots(const CopySlotsParams& params) {
  check_params(params);
  for (int layer = 0; layer < params.num_layers; ++layer) {
    const KvView& kv = params.layers[layer];
    dispatch_dtype(kv.dtype, [&]<typename T>(T) {
      for (int move = 0; move < params.num_moves; ++move) copy_slot<T>(kv, params.moves[move]);
    });
  }
}

}  // namespace fastspec::cpu
