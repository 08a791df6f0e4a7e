// Exponential and logarithm for any vector type V of simd_*.h. Templates only: see vocab_kernels.h.
#pragma once

namespace fastspec::cpu {

/// exp(x), relative error below 2e-7; 0 below -87.33 (and for -inf), exp(88) above 88, NaN for NaN.
template <typename V>
inline typename V::Reg exp_of(typename V::Reg x) {
  using Reg = typename V::Reg;
  const Reg lowest = V::set(-87.33f);
  const Reg clamped = V::min(V::set(88.0f), V::max(lowest, x));  // NaN passes both
  // x = n log 2 + r with |r| <= log(2) / 2; log 2 in two parts, so that n times the first is exact.
  const Reg n = V::round(V::mul(clamped, V::set(1.44269504f)));
  Reg r = V::fma(n, V::set(-0.693359375f), clamped);
  r = V::fma(n, V::set(2.12194440e-4f), r);
  // Taylor to degree 7: the remainder is below 6e-9 of the result on this range.
  Reg p = V::set(1.0f / 5040);
  p = V::fma(p, r, V::set(1.0f / 720));
  p = V::fma(p, r, V::set(1.0f / 120));
  p = V::fma(p, r, V::set(1.0f / 24));
  p = V::fma(p, r, V::set(1.0f / 6));
  p = V::fma(p, r, V::set(0.5f));
  p = V::fma(p, r, V::set(1.0f));
  p = V::fma(p, r, V::set(1.0f));
  return V::select_greater(lowest, x, V::zero(), V::scale2(p, n));
}

/// log(x) for normal positive x, absolute error below 2e-6 for x near 1 and relative error below 2e-6 elsewhere.
template <typename V>
inline typename V::Reg log_of(typename V::Reg x) {
  using Reg = typename V::Reg;
  // log(m) = 2 artanh(s) with s = (m - 1) / (m + 1) in [0, 1/3]: odd powers to s^11, remainder below 1e-7.
  const Reg m = V::mantissa(x);
  const Reg s = V::div(V::sub(m, V::set(1.0f)), V::add(m, V::set(1.0f)));
  const Reg square = V::mul(s, s);
  Reg p = V::set(2.0f / 11);
  p = V::fma(p, square, V::set(2.0f / 9));
  p = V::fma(p, square, V::set(2.0f / 7));
  p = V::fma(p, square, V::set(2.0f / 5));
  p = V::fma(p, square, V::set(2.0f / 3));
  p = V::fma(p, square, V::set(2.0f));
  return V::fma(V::exponent(x), V::set(0.69314718f), V::mul(p, s));
}

}  // namespace fastspec::cpu
