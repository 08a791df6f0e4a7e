// Norm, gate and rotation of one row or head, for any vector type V of simd_*.h. Included by *_kernels.cpp below their
// target pragma: see vocab_kernels.h.
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/simd_exp.h"

namespace fastspec::cpu {

template <typename V>
struct RowLoops {
  using Reg = typename V::Reg;

  static void rms_norm(const float* input, const float* weight, int size, float eps, float* output) {
    Reg first = V::zero(), second = V::zero();
    int i = 0;
    for (; i + 2 * V::kWidth <= size; i += 2 * V::kWidth) {
      const Reg a = V::load(input + i), b = V::load(input + i + V::kWidth);
      first = V::fma(a, a, first);
      second = V::fma(b, b, second);
    }
    float squares = V::sum(V::add(first, second));
    for (; i < size; ++i) squares += input[i] * input[i];
    const float scale = 1.0f / __builtin_sqrtf(squares / static_cast<float>(size) + eps);
    const Reg factor = V::set(scale);
    i = 0;
    for (; i + V::kWidth <= size; i += V::kWidth) {
      V::store(output + i, V::mul(V::mul(V::load(input + i), factor), V::load(weight + i)));
    }
    for (; i < size; ++i) output[i] = input[i] * scale * weight[i];
  }

  static Reg gate_of(Reg gate, Reg up) {
    const Reg one = V::set(1.0f);
    const Reg sigmoid = V::div(one, V::add(one, exp_of<V>(V::sub(V::zero(), gate))));
    return V::mul(V::mul(gate, sigmoid), up);
  }

  static void silu_mul(const float* gate, const float* up, int size, float* output) {
    int i = 0;
    for (; i + V::kWidth <= size; i += V::kWidth) V::store(output + i, gate_of(V::load(gate + i), V::load(up + i)));
    if (i == size) return;
    float gates[V::kWidth] = {}, ups[V::kWidth] = {}, results[V::kWidth];
    for (int j = i; j < size; ++j) {
      gates[j - i] = gate[j];
      ups[j - i] = up[j];
    }
    V::store(results, gate_of(V::load(gates), V::load(ups)));
    for (int j = i; j < size; ++j) output[j] = results[j - i];
  }

  static void rotate(const float* input, const float* cosines, const float* sines, int half, float* output) {
    int i = 0;
    for (; i + V::kWidth <= half; i += V::kWidth) {
      const Reg first = V::load(input + i), second = V::load(input + half + i);
      const Reg cosine = V::load(cosines + i), sine = V::load(sines + i);
      V::store(output + i, V::sub(V::mul(first, cosine), V::mul(second, sine)));
      V::store(output + half + i, V::fma(second, cosine, V::mul(first, sine)));
    }
    for (; i < half; ++i) {
      const float first = input[i], second = input[half + i];
      output[i] = first * cosines[i] - second * sines[i];
      output[half + i] = second * cosines[i] + first * sines[i];
    }
  }

  template <typename T>
  static void widen(const T* input, int size, float* output) {
    int i = 0;
    for (; i + V::kWidth <= size; i += V::kWidth) V::store(output + i, V::load(input + i));
    for (; i < size; ++i) output[i] = to_float(input[i]);
  }

  template <typename T>
  static void narrow(const float* input, int size, T* output) {
    int i = 0;
    for (; i + V::kWidth <= size; i += V::kWidth) V::store(output + i, V::load(input + i));
    for (; i < size; ++i) from_float(input[i], output[i]);
  }

  static constexpr RowKernels table() {
    return {rms_norm, silu_mul, rotate, widen<BFloat16>, widen<Float16>, narrow<BFloat16>, narrow<Float16>};
  }
};

}  // namespace fastspec::cpu
