// Linear layers: inner products of weight rows with activation rows, a tile of both at a time, so that a weight is read
// once and converted once for all rows of a block. How two vectors are multiplied is a policy D. Included by
// *_kernels.cpp below their target pragma: see vocab_kernels.h.
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/target.h"

namespace fastspec::cpu {

/// Products in float32: the weight type T is widened as it is loaded.
template <typename V, typename T>
struct FloatDot {
  using Sum = typename V::Reg;
  using Input = float;
  using Weight = T;
  static constexpr int kStep = V::kWidth;  // elements of one vector
  static constexpr int kRegisters = V::kRegisters;
  static auto load_input(const float* p) { return V::load(p); }
  static auto load_weight(const T* p) { return V::load(p); }
  static Sum zero() { return V::zero(); }
  static Sum fma(Sum a, Sum b, Sum sum) { return V::fma(a, b, sum); }
  static float total(Sum sum) { return V::sum(sum); }
};

template <typename D>
struct LinearLoops {
  using Input = typename D::Input;
  using Weight = typename D::Weight;
  // Weight rows a tile: with R activation rows the accumulators must leave room for one vector of each weight row.
  template <int R>
  static constexpr int kColumns = D::kRegisters >= 32 ? (R <= 4 ? 4 : 3) : (R == 1 ? 4 : 2);
  static constexpr int kMaxRows = D::kRegisters >= 32 ? 8 : 4;
  // Vectors of one weight row that make a cache line: one prefetch for each line.
  static constexpr int kUnroll = 64 / (D::kStep * static_cast<int>(sizeof(Weight)));
  // Weights of one pass over all row blocks: a part of a second-level cache.
  static constexpr std::int64_t kBlockBytes = std::int64_t{256} << 10;

  template <int R, int C>
  static void tile(const LinearTask& task, int row, int column) {
    const int size = task.in_features;
    const Input* x[R];
    FASTSPEC_UNROLL
    for (int r = 0; r < R; ++r) x[r] = static_cast<const Input*>(task.input) + (row + r) * task.input_stride;
    const Weight* w[C];
    FASTSPEC_UNROLL
    for (int c = 0; c < C; ++c) w[c] = static_cast<const Weight*>(task.weight) + (column + c) * std::int64_t{size};
    // Two tiles ahead: at many rows a tile takes longer than memory does, at one row shorter.
    const std::int64_t ahead = 2 * std::int64_t{C} * size;

    typename D::Sum sums[R][C];
    FASTSPEC_UNROLL
    for (int r = 0; r < R; ++r) {
      FASTSPEC_UNROLL
      for (int c = 0; c < C; ++c) sums[r][c] = D::zero();
    }
    int k = 0;
    for (; k + kUnroll * D::kStep <= size; k += kUnroll * D::kStep) {
      FASTSPEC_UNROLL
      for (int c = 0; c < C; ++c) __builtin_prefetch(w[c] + k + ahead);
      FASTSPEC_UNROLL
      for (int u = 0; u < kUnroll; ++u) step<R, C>(x, w, k + u * D::kStep, sums);
    }
    for (; k + D::kStep <= size; k += D::kStep) step<R, C>(x, w, k, sums);

    FASTSPEC_UNROLL
    for (int r = 0; r < R; ++r) {
      float* output = task.output + (row + r) * task.output_stride + column;
      FASTSPEC_UNROLL
      for (int c = 0; c < C; ++c) {
        float sum = D::total(sums[r][c]);
        for (int i = k; i < size; ++i) sum += to_float(x[r][i]) * to_float(w[c][i]);
        if (task.bias != nullptr) sum += task.bias[column + c];
        output[c] = task.accumulate ? output[c] + sum : sum;
      }
    }
  }

  template <int R, int C>
  __attribute__((always_inline)) static inline void step(const Input* const (&x)[R], const Weight* const (&w)[C], int k,
                                                         typename D::Sum (&sums)[R][C]) {
    decltype(D::load_weight(nullptr)) weights[C];
    FASTSPEC_UNROLL
    for (int c = 0; c < C; ++c) weights[c] = D::load_weight(w[c] + k);
    FASTSPEC_UNROLL
    for (int r = 0; r < R; ++r) {
      const auto values = D::load_input(x[r] + k);
      FASTSPEC_UNROLL
      for (int c = 0; c < C; ++c) sums[r][c] = D::fma(values, weights[c], sums[r][c]);
    }
  }

  template <int R>
  static void columns(const LinearTask& task, int row, int begin, int end) {
    constexpr int kTile = kColumns<R>;
    int column = begin;
    for (; column + kTile <= end; column += kTile) tile<R, kTile>(task, row, column);
    for (; column < end; ++column) tile<R, 1>(task, row, column);
  }

  template <int R>
  static void last_rows(const LinearTask& task, int row, int left, int begin, int end) {
    if constexpr (R > 0) {
      if (left == R) return columns<R>(task, row, begin, end);
      last_rows<R - 1>(task, row, left, begin, end);
    }
  }

  static void run(const LinearTask& task) {
    const std::int64_t row_bytes = std::int64_t{task.in_features} * static_cast<int>(sizeof(Weight));
    const std::int64_t fitting = kBlockBytes / row_bytes / 12 * 12;
    const int block = fitting < 12 ? 12 : static_cast<int>(fitting < (1 << 20) ? fitting : (1 << 20));
    for (int begin = task.begin; begin < task.end; begin += block) {
      const int end = begin + block < task.end ? begin + block : task.end;
      int row = 0;
      for (; row + kMaxRows <= task.rows; row += kMaxRows) columns<kMaxRows>(task, row, begin, end);
      last_rows<kMaxRows - 1>(task, row, task.rows - row, begin, end);
    }
  }
};

/// @param bfloat16_dot see LinearKernels.
template <typename V>
constexpr LinearKernels linear_kernels(void (*bfloat16_dot)(const LinearTask&) = nullptr) {
  return {LinearLoops<FloatDot<V, float>>::run, LinearLoops<FloatDot<V, BFloat16>>::run,
          LinearLoops<FloatDot<V, Float16>>::run, bfloat16_dot};
}

}  // namespace fastspec::cpu
