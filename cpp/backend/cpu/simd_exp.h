// The exponential for any vector type V of simd_*.h. Templates only: see vocab_kernels.h.
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

}  // namespace fastspec::cpu
