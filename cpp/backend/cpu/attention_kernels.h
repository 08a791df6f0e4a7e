// One tile of keys folded into the running softmax of a block of packed rows, for any vector type V of simd_*.h and any
// K/V type. Included by *_kernels.cpp below their target pragma: see vocab_kernels.h.
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/simd_exp.h"
#include "backend/cpu/target.h"

namespace fastspec::cpu {

template <typename V, typename T>
struct AttentionLoops {
  using Reg = typename V::Reg;
  static constexpr float kInfinity = __builtin_inff();
  static constexpr int kVectors = kTileKeys / V::kWidth;  // vectors of a row of scores
  // Rows and vectors of output that one walk over the values accumulates.
  static constexpr int kOutputRows = V::kRegisters >= 32 ? 4 : 2;
  static constexpr int kOutputVectors = 4;

  /// scores[p, k] = query[p] . key[k], kWidth keys at a time: no horizontal sums but one transposing one.
  static void score(const AttentionTile& tile) {
    for (int first = 0; first < tile.keys; first += V::kWidth) {
      const T* keys[V::kWidth];
      for (int k = 0; k < V::kWidth; ++k) keys[k] = static_cast<const T*>(tile.key_rows[first + k]);
      for (int row = 0; row < tile.rows; ++row) {
        if (tile.visible[row / tile.group_size] == 0) continue;
        const float* query = tile.query + std::int64_t{row} * tile.head_dim;
        Reg sums[V::kWidth];
        for (int k = 0; k < V::kWidth; ++k) sums[k] = V::zero();
        for (int d = 0; d < tile.head_dim; d += V::kWidth) {
          const Reg values = V::load(query + d);
          for (int k = 0; k < V::kWidth; ++k) sums[k] = V::fma(values, V::load(keys[k] + d), sums[k]);
        }
        V::store(tile.scores + row * kTileKeys + first, V::sum_each(sums));
      }
    }
  }

  /// Scores of one row become weights exp(score - top), 0 where not visible; the sums so far are rescaled.
  static void soften(const AttentionTile& tile, int row) {
    float* scores = tile.scores + row * kTileKeys;
    const std::uint64_t visible = tile.visible[row / tile.group_size];
    if (visible == 0) {
      for (int i = 0; i < kVectors; ++i) V::store(scores + i * V::kWidth, V::zero());
      return;
    }
    Reg values[kVectors];
    Reg highest = V::set(tile.top[row]);
    for (int i = 0; i < kVectors; ++i) {
      const auto bits = static_cast<unsigned>(visible >> (i * V::kWidth)) & ((1u << V::kWidth) - 1u);
      values[i] = bits == 0 ? V::set(-kInfinity) : V::select(bits, V::load(scores + i * V::kWidth), V::set(-kInfinity));
      highest = V::max(values[i], highest);
    }
    const float top = V::top(highest);
    // A NaN score reaches the result through its weight; -inf everywhere stays without weight.
    const Reg shift = V::set(top == -kInfinity ? 0.0f : top);
    Reg total = V::zero();
    for (int i = 0; i < kVectors; ++i) {
      values[i] = exp_of<V>(V::sub(values[i], shift));
      total = V::add(total, values[i]);
      V::store(scores + i * V::kWidth, values[i]);
    }
    if (top > tile.top[row]) rescale(tile, row, top);
    tile.sum[row] += V::sum(total);
  }

  static void rescale(const AttentionTile& tile, int row, float top) {
    float first[V::kWidth];
    V::store(first, exp_of<V>(V::set(tile.top[row] - top)));
    const Reg factor = V::set(first[0]);
    float* output = tile.output + std::int64_t{row} * tile.head_dim;
    for (int d = 0; d < tile.head_dim; d += V::kWidth) V::store(output + d, V::mul(V::load(output + d), factor));
    tile.sum[row] *= first[0];
    tile.top[row] = top;
  }

  /// output[R rows, N vectors from d] += weights * values
  template <int R, int N>
  static void weigh(const AttentionTile& tile, int row, int d) {
    Reg sums[R][N];
    float* output = tile.output + std::int64_t{row} * tile.head_dim + d;
    FASTSPEC_UNROLL
    for (int r = 0; r < R; ++r) {
      FASTSPEC_UNROLL
      for (int n = 0; n < N; ++n) sums[r][n] = V::load(output + std::int64_t{r} * tile.head_dim + n * V::kWidth);
    }
    const float* weights = tile.scores + row * kTileKeys;
    for (int k = 0; k < tile.keys; ++k) {
      const T* value = static_cast<const T*>(tile.value_rows[k]) + d;
      Reg values[N];
      FASTSPEC_UNROLL
      for (int n = 0; n < N; ++n) values[n] = V::load(value + n * V::kWidth);
      FASTSPEC_UNROLL
      for (int r = 0; r < R; ++r) {
        const Reg weight = V::set(weights[r * kTileKeys + k]);
        FASTSPEC_UNROLL
        for (int n = 0; n < N; ++n) sums[r][n] = V::fma(weight, values[n], sums[r][n]);
      }
    }
    FASTSPEC_UNROLL
    for (int r = 0; r < R; ++r) {
      FASTSPEC_UNROLL
      for (int n = 0; n < N; ++n) V::store(output + std::int64_t{r} * tile.head_dim + n * V::kWidth, sums[r][n]);
    }
  }

  template <int R>
  static void weigh_rows(const AttentionTile& tile, int row) {
    int d = 0;
    for (; d + kOutputVectors * V::kWidth <= tile.head_dim; d += kOutputVectors * V::kWidth) {
      weigh<R, kOutputVectors>(tile, row, d);
    }
    for (; d < tile.head_dim; d += V::kWidth) weigh<R, 1>(tile, row, d);
  }

  static void run(const AttentionTile& tile) {
    score(tile);
    for (int row = 0; row < tile.rows; ++row) soften(tile, row);
    int row = 0;
    for (; row + kOutputRows <= tile.rows; row += kOutputRows) weigh_rows<kOutputRows>(tile, row);
    if (kOutputRows > 3 && row + 3 <= tile.rows) {
      weigh_rows<3>(tile, row);
      row += 3;
    }
    for (; row < tile.rows; ++row) weigh_rows<1>(tile, row);
  }
};

template <typename V>
constexpr AttentionKernels attention_kernels() {
  return {AttentionLoops<V, float>::run, AttentionLoops<V, BFloat16>::run, AttentionLoops<V, Float16>::run,
          AttentionLoops<V, float>::score, V::kWidth};
}

}  // namespace fastspec::cpu
