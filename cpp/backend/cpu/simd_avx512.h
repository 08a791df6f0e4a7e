// Sixteen floats in one AVX-512 register. Include only below the target pragma of avx512_kernels.cpp.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/half.h"

namespace fastspec::cpu {

struct Avx512 {
  using Reg = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kRegisters = 32;

  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg set(float value) { return _mm512_set1_ps(value); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static Reg load(const BFloat16* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static Reg load(const Float16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static void store(float* p, Reg a) { _mm512_storeu_ps(p, a); }
  static void store(BFloat16* p, Reg a) {  // nearest even; NaN stays NaN
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __m512i chosen = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), rounded, quiet);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)));
  }
  static void store(Float16* p, Reg a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static Reg min(Reg a, Reg b) { return _mm512_min_ps(a, b); }
  static Reg round(Reg a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  /// a * 2^n for an integral n within the exponent range of floats.
  static Reg scale2(Reg a, Reg n) { return _mm512_scalef_ps(a, n); }
  /// The 24 high bits of each word as a number.
  static Reg load_high24(const std::uint32_t* p) {
    return _mm512_cvtepi32_ps(_mm512_srli_epi32(_mm512_loadu_si512(p), 8));
  }
  /// a = mantissa * 2^exponent with the mantissa in [1, 2), for normal positive a.
  static Reg exponent(Reg a) { return _mm512_getexp_ps(a); }
  static Reg mantissa(Reg a) { return _mm512_getmant_ps(a, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src); }
  static float sum(Reg a) { return _mm512_reduce_add_ps(a); }
  static float top(Reg a) { return _mm512_reduce_max_ps(a); }
  /// Element i of the result is the sum of a[i].
  static Reg sum_each(const Reg (&a)[16]) {
    Reg eighths[8], quarters[4];
    for (int i = 0; i < 8; ++i) {  // halves of a[i] and a[i + 8] folded into the halves of one register
      eighths[i] = add(_mm512_shuffle_f32x4(a[i], a[i + 8], 0x44), _mm512_shuffle_f32x4(a[i], a[i + 8], 0xEE));
    }
    for (int i = 0; i < 4; ++i) {  // 128-bit lanes now belong to i, i + 8, i + 4, i + 12
      quarters[i] = add(_mm512_shuffle_f32x4(eighths[i], eighths[i + 4], 0x88),
                        _mm512_shuffle_f32x4(eighths[i], eighths[i + 4], 0xDD));
    }
    const Reg low = add(_mm512_unpacklo_ps(quarters[0], quarters[1]), _mm512_unpackhi_ps(quarters[0], quarters[1]));
    const Reg high = add(_mm512_unpacklo_ps(quarters[2], quarters[3]), _mm512_unpackhi_ps(quarters[2], quarters[3]));
    const Reg sums = add(_mm512_shuffle_ps(low, high, 0x44), _mm512_shuffle_ps(low, high, 0xEE));
    return _mm512_shuffle_f32x4(sums, sums, 0xD8);
  }
  /// Element i of a where bit i is set, else of b.
  static Reg select(unsigned bits, Reg a, Reg b) { return _mm512_mask_blend_ps(static_cast<__mmask16>(bits), b, a); }
  /// Bit i set where a[i] > b[i], a[i] >= b[i], a[i] is NaN.
  static unsigned greater(Reg a, Reg b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static unsigned greater_equal(Reg a, Reg b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
  static unsigned nan(Reg a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
  /// a[i] > b[i] ? c[i] : d[i]
  static Reg select_greater(Reg a, Reg b, Reg c, Reg d) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), d, c);
  }
};

}  // namespace fastspec::cpu
