// Linear layers for any vector type V of simd_*.h and any weight type: inner products of weight rows with activation
// rows, a tile of both at a time, so that a weight is read once and converted once for all rows of a block. Included by
// *_kernels.cpp below their target pragma: see vocab_kernels.h.
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/target.h"

namespace fastspec::cpu {

template <typename V, typename T>
struct LinearLoops {
  using Reg = typename V::Reg;
  // Weight rows a tile: with R activation rows the accumulators must leave room for one vector of each weight row.
  template <int R>
  static constexpr int kColumns = V::kRegisters >= 32 ? (R <= 4 ? 4 : 3) : (R == 1 ? 4 : 2);
  static constexpr int kMaxRows = V::kRegisters >= 32 ? 8 : 4;
  // Vectors of one weight row that make a cache line: one prefetch for each line.
  static constexpr int kUnroll = 64 / (V::kWidth * static_cast<int>(sizeof(T)));
  // Weights of one pass over all row blocks: half of a second-level cache.
  static constexpr std::int64_t kBlockBytes = std::int64_t{256} << 10;

  template <int R, int C>
  static void tile(const LinearTask& task, int row, int column) {
    const int size = task.in_features;
    const float* x[R];
    FASTSPEC_UNROLL
    for (int r = 0; r < R; ++r) x[r] = task.input + (row + r) * task.input_stride;
    const T* w[C];
    FASTSPEC_UNROLL
    for (int c = 0; c < C; ++c) w[c] = static_cast<const T*>(task.weight) + (column + c) * std::int64_t{size};
    const std::int64_t ahead = std::int64_t{C} * size;  // the same place in the next tile

    Reg sums[R][C];
    FASTSPEC_UNROLL
    for (int r = 0; r < R; ++r) {
      FASTSPEC_UNROLL
      for (int c = 0; c < C; ++c) sums[r][c] = V::zero();
    }
    const auto step = [&](int k) __attribute__((always_inline)) {
      Reg weights[C];
      FASTSPEC_UNROLL
      for (int c = 0; c < C; ++c) weights[c] = V::load(w[c] + k);
      FASTSPEC_UNROLL
      for (int r = 0; r < R; ++r) {
        const Reg values = V::load(x[r] + k);
        FASTSPEC_UNROLL
        for (int c = 0; c < C; ++c) sums[r][c] = V::fma(values, weights[c], sums[r][c]);
      }
    };
    int k = 0;
    for (; k + kUnroll * V::kWidth <= size; k += kUnroll * V::kWidth) {
      FASTSPEC_UNROLL
      for (int c = 0; c < C; ++c) __builtin_prefetch(w[c] + k + ahead);
      FASTSPEC_UNROLL
      for (int u = 0; u < kUnroll; ++u) step(k + u * V::kWidth);
    }
    for (; k + V::kWidth <= size; k += V::kWidth) step(k);

    FASTSPEC_UNROLL
    for (int r = 0; r < R; ++r) {
      float* output = task.output + (row + r) * task.output_stride + column;
      FASTSPEC_UNROLL
      for (int c = 0; c < C; ++c) {
        float sum = V::sum(sums[r][c]);
        for (int i = k; i < size; ++i) sum += x[r][i] * to_float(w[c][i]);
        if (task.bias != nullptr) sum += task.bias[column + c];
        output[c] = task.accumulate ? output[c] + sum : sum;
      }
    }
  }

  template <int R>
  static void columns(const LinearTask& task, int row, int begin, int end) {
    constexpr int kStep = kColumns<R>;
    int column = begin;
    for (; column + kStep <= end; column += kStep) tile<R, kStep>(task, row, column);
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
    const std::int64_t row_bytes = std::int64_t{task.in_features} * static_cast<int>(sizeof(T));
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

template <typename V>
constexpr LinearKernels linear_kernels() {
  return {LinearLoops<V, float>::run, LinearLoops<V, BFloat16>::run, LinearLoops<V, Float16>::run};
}

}  // namespace fastspec::cpu
