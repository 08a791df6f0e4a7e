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

  /// Philox on many blocks side by side: plain loops over lanes, which the compiler turns into vectors.
  static void noise_words(const noise::DrawKey& key, std::uint32_t first_block, int num_blocks, std::uint32_t* words) {
    constexpr int kLanes = 16;
    for (int done = 0; done < num_blocks; done += kLanes) {
      std::uint32_t a[kLanes], b[kLanes], c[kLanes], d[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        a[i] = first_block + static_cast<std::uint32_t>(done + i);
        b[i] = key.position;
        c[i] = key.sample_index;
        d[i] = 0;
      }
      auto key0 = static_cast<std::uint32_t>(key.seed);
      auto key1 = static_cast<std::uint32_t>(key.seed >> 32);
      for (int round = 0; round < 10; ++round) {
        for (int i = 0; i < kLanes; ++i) {
          const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * a[i];
          const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * c[i];
          a[i] = static_cast<std::uint32_t>(product1 >> 32) ^ b[i] ^ key0;
          c[i] = static_cast<std::uint32_t>(product0 >> 32) ^ d[i] ^ key1;
          b[i] = static_cast<std::uint32_t>(product1);
          d[i] = static_cast<std::uint32_t>(product0);
        }
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
      }
      const int count = num_blocks - done < kLanes ? num_blocks - done : kLanes;
      for (int i = 0; i < count; ++i) {
        std::uint32_t* block = words + 4 * (done + i);
        block[0] = a[i];
        block[1] = b[i];
        block[2] = c[i];
        block[3] = d[i];
      }
    }
  }

  /// -log(u) of the uniform numbers that the words stand for.
  static Reg exponential_of(const std::uint32_t* words) {
    const Reg step = V::set(0x1p-24f);
    const Reg high = V::load_high24(words);
    const Reg u = V::mul(V::add(high, V::set(0.5f)), step);
    // Near 1 the rounded u is useless, but 1 - u is exact and the series short.
    const Reg w = V::mul(V::add(V::sub(V::set(16777215.0f), high), V::set(0.5f)), step);
    Reg series = V::fma(w, V::set(0.2f), V::set(0.25f));
    series = V::fma(series, w, V::set(1.0f / 3));
    series = V::fma(series, w, V::set(0.5f));
    series = V::mul(V::fma(series, w, V::set(1.0f)), w);
    return V::select_greater(w, V::set(0.0625f), V::sub(V::zero(), log_of<V>(u)), series);
  }

  static int gather_perturbed(const float* logits, const std::uint32_t* words, int size, float top, float scale,
                              float threshold, TokenId base, TokenId* indices) {
    const Reg limit = V::set(threshold - 1e-3f);
    const Reg shift = V::set(top), factor = V::set(scale);
    int count = 0;
    int i = 0;
    for (; i + V::kWidth <= size; i += V::kWidth) {
      const Reg shifted = V::mul(V::sub(V::load(logits + i), shift), factor);
      const Reg score = V::sub(shifted, log_of<V>(exponential_of(words + i)));
      unsigned bits = V::greater(score, limit) & V::greater(shifted, V::set(-kInfinity));
      for (; bits != 0; bits &= bits - 1) indices[count++] = base + i + __builtin_ctz(bits);
    }
    for (; i < size; ++i) {
      if (logits[i] > -kInfinity) indices[count++] = base + i;
    }
    return count;
  }

  static float perturbed_sum(const float* logits, const std::uint32_t* words, int size, float top, float scale,
                             float shift) {
    Reg total = V::zero();
    for (int i = 0; i < size; i += V::kWidth) {
      const Reg x = load_any(logits + i, size - i, -kInfinity);  // the words go on to whole blocks
      const Reg weight = exp_of<V>(V::sub(V::mul(V::sub(x, V::set(top)), V::set(scale)), V::set(shift)));
      total = V::add(total, V::div(weight, exponential_of(words + i)));
    }
    return V::sum(total);
  }

  static constexpr VocabKernels table() {
    return {summarize, gather_above, noise_words, gather_perturbed, perturbed_sum, sum_exp};
  }
};

}  // namespace fastspec::cpu
