// Four floats in plain C++, for processors without the wider sets. The compiler may turn it into what it has.
#pragma once

#include <bit>
#include <cstdint>

#include "backend/cpu/half.h"

namespace fastspec::cpu {

struct Portable {
  struct Reg {
    float lane[4];
  };
  static constexpr int kWidth = 4;
  static constexpr int kRegisters = 16;

  template <typename Function>
  static Reg map(Function&& function) {
    Reg result;
    for (int i = 0; i < kWidth; ++i) result.lane[i] = function(i);
    return result;
  }
  template <typename Function>
  static unsigned bits(Function&& function) {
    unsigned result = 0;
    for (int i = 0; i < kWidth; ++i) result |= static_cast<unsigned>(function(i)) << i;
    return result;
  }
  // The operands' order decides what a NaN gives; the same as the x86 instructions.
  static float larger(float a, float b) { return a > b ? a : b; }
  static float smaller(float a, float b) { return a < b ? a : b; }

  static Reg zero() { return Reg{}; }
  static Reg set(float value) {
    return map([&](int) { return value; });
  }
  template <typename T>
  static Reg load(const T* p) {
    return map([&](int i) { return to_float(p[i]); });
  }
  template <typename T>
  static void store(T* p, const Reg& a) {
    for (int i = 0; i < kWidth; ++i) from_float(a.lane[i], p[i]);
  }
  static Reg add(const Reg& a, const Reg& b) {
    return map([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Reg sub(const Reg& a, const Reg& b) {
    return map([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static Reg mul(const Reg& a, const Reg& b) {
    return map([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Reg div(const Reg& a, const Reg& b) {
    return map([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  static Reg fma(const Reg& a, const Reg& b, const Reg& c) {
    return map([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
  }
  static Reg max(const Reg& a, const Reg& b) {
    return map([&](int i) { return larger(a.lane[i], b.lane[i]); });
  }
  static Reg min(const Reg& a, const Reg& b) {
    return map([&](int i) { return smaller(a.lane[i], b.lane[i]); });
  }
  /// Nearest integer for |a| < 2^22: adding 1.5 * 2^23 pushes the fraction out.
  static Reg round(const Reg& a) {
    return map([&](int i) { return (a.lane[i] + 12582912.0f) - 12582912.0f; });
  }
  /// a * 2^n for an integral n in [-126, 127].
  static Reg scale2(const Reg& a, const Reg& n) {
    return map([&](int i) {
      // The low bits of n + 1.5 * 2^23 are n: a conversion that is defined for NaN too.
      const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(n.lane[i] + 12582912.0f) + 127) << 23;
      return a.lane[i] * std::bit_cast<float>(exponent);
    });
  }
  /// The 24 high bits of each word as a number.
  static Reg load_high24(const std::uint32_t* p) {
    return map([&](int i) { return static_cast<float>(p[i] >> 8); });
  }
  /// a = mantissa * 2^exponent with the mantissa in [1, 2), for normal positive a.
  static Reg exponent(const Reg& a) {
    return map([&](int i) {
      return static_cast<float>(static_cast<int>(std::bit_cast<std::uint32_t>(a.lane[i]) >> 23) - 127);
    });
  }
  static Reg mantissa(const Reg& a) {
    return map([&](int i) {
      return std::bit_cast<float>((std::bit_cast<std::uint32_t>(a.lane[i]) & 0x7fffffu) | 0x3f800000u);
    });
  }
  static float sum(const Reg& a) { return (a.lane[0] + a.lane[2]) + (a.lane[1] + a.lane[3]); }
  static float top(const Reg& a) { return larger(larger(a.lane[0], a.lane[2]), larger(a.lane[1], a.lane[3])); }
  /// Element i of the result is the sum of a[i].
  static Reg sum_each(const Reg (&a)[4]) {
    return map([&](int i) { return sum(a[i]); });
  }
  /// Element i of a where bit i is set, else of b.
  static Reg select(unsigned chosen, const Reg& a, const Reg& b) {
    return map([&](int i) { return (chosen >> i) & 1u ? a.lane[i] : b.lane[i]; });
  }
  static unsigned greater(const Reg& a, const Reg& b) {
    return bits([&](int i) { return a.lane[i] > b.lane[i]; });
  }
  static unsigned greater_equal(const Reg& a, const Reg& b) {
    return bits([&](int i) { return a.lane[i] >= b.lane[i]; });
  }
  static unsigned nan(const Reg& a) {
    return bits([&](int i) { return a.lane[i] != a.lane[i]; });
  }
  static Reg select_greater(const Reg& a, const Reg& b, const Reg& c, const Reg& d) {
    return map([&](int i) { return a.lane[i] > b.lane[i] ? c.lane[i] : d.lane[i]; });
  }
};

}  // namespace fastspec::cpu
