// Passes over a row of logits, for any vector type V of simd_*.h. Included by *_kernels.cpp below their target pragma:
// nothing here may be a non-template function or call one that is not inlined.
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/simd_exp.h"

namespace fastspec::cpu {

template <typename V>
struct VocabLoops {
  using Reg = typename V::Reg;
  static constexpr float kInfinity = __builtin_inff();
  // Values per block: the second look at a block (exponentials) finds it in the first-level cache.
  static constexpr int kBlock = 1024;

  /// Running two largest values of every lane, and where the largest was first seen.
  struct Best {
    Reg top;
    Reg second;
    Reg index;  // exact in float32: vocabularies are far below 2^24 vectors
    unsigned nan;

    void add(Reg x, float vector_index) {
      nan |= V::nan(x);
      second = V::max(second, V::min(x, top));
      index = V::select_greater(x, top, V::set(vector_index), index);
      top = V::max(top, x);
    }
  };

  /// Loads the first `count` < kWidth values, the rest as `fill`.
  static Reg load_part(const float* values, int count, float fill) {
    float padded[V::kWidth];
    for (int i = 0; i < V::kWidth; ++i) padded[i] = i < count ? values[i] : fill;
    return V::load(padded);
  }

  static Reg load_any(const float* values, int left, float fill) {
    return left >= V::kWidth ? V::load(values) : load_part(values, left, fill);
  }

  static LogitSummary finish(const Best& best, float sum) {
    float tops[V::kWidth], seconds[V::kWidth], indices[V::kWidth];
    V::store(tops, best.top);
    V::store(seconds, best.second);
    V::store(indices, best.index);
    LogitSummary summary;
    summary.has_nan = best.nan != 0;
    int lane = 0;
    for (int i = 0; i < V::kWidth; ++i) {
      const bool earlier = tops[i] == tops[lane] && indices[i] < indices[lane];
      if (tops[i] > tops[lane] || earlier) lane = i;
    }
    summary.top = tops[lane];
    summary.token = static_cast<TokenId>(indices[lane]) * V::kWidth + lane;
    summary.second = seconds[lane];
    for (int i = 0; i < V::kWidth; ++i) {
      if (i != lane && tops[i] > summary.second) summary.second = tops[i];
    }
    summary.sum = sum;
    return summary;
  }

  static LogitSummary summarize(const float* logits, int size, bool with_sum) {
    Best best{V::set(-kInfinity), V::set(-kInfinity), V::zero(), 0};
    float shift = -kInfinity;  // the running maximum that `sum` is relative to
    float sum = 0;
    for (int first = 0; first < size; first += kBlock) {
      const int end = first + kBlock < size ? first + kBlock : size;
      for (int i = first; i < end; i += V::kWidth) {
        best.add(load_any(logits + i, end - i, -kInfinity), static_cast<float>(i / V::kWidth));
      }
      if (!with_sum) continue;
      const float top = V::top(best.top);
      if (!(top > -kInfinity && top < kInfinity)) continue;
      if (shift != top) {
        if (shift > -kInfinity) sum *= V::sum(V::mul(exp_of<V>(V::set(shift - top)), V::set(1.0f / V::kWidth)));
        shift = top;
      }
      sum += sum_exp(logits + first, end - first, top, 1.0f);
    }
    if (V::top(best.top) == kInfinity) sum = 0;
    return finish(best, sum);
  }

  static float sum_exp(const float* logits, int size, float top, float scale) {
    Reg total = V::zero();
    const Reg shift = V::set(top);
    const Reg factor = V::set(scale);
    for (int i = 0; i < size; i += V::kWidth) {
      const Reg x = load_any(logits + i, size - i, -kInfinity);
      total = V::add(total, exp_of<V>(V::mul(V::sub(x, shift), factor)));
    }
    return V::sum(total);
  }

  static int gather_above(const float* logits, int size, float threshold, bool inclusive, TokenId base,
                          TokenId* indices) {
    const Reg limit = V::set(threshold);
    int count = 0;
    int i = 0;
    for (; i + V::kWidth <= size; i += V::kWidth) {
      const Reg x = V::load(logits + i);
      unsigned bits = inclusive ? V::greater_equal(x, limit) : V::greater(x, limit);
      for (; bits != 0; bits &= bits - 1) indices[count++] = base + i + __builtin_ctz(bits);
    }
    for (; i < size; ++i) {
      if (inclusive ? logits[i] >= threshold : logits[i] > threshold) indices[count++] = base + i;
    }
    return count;
  }

  static constexpr VocabKernels table() { return {summarize, gather_above, sum_exp}; }
};

}  // namespace fastspec::cpu
