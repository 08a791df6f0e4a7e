// Conversions between float32 and the 16-bit float types, by bits, round to nearest even. Plain inline functions; the
// fast kernels have their own vector forms that give the same values.
#pragma once

#include <fastspec/tensor.h>

#include <bit>
#include <cstdint>

namespace fastspec::cpu {

/// Storage of a bfloat16 and of an IEEE half: distinct types, so that templates can tell them apart.
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

inline float to_float(float value) {
  return value;
}

inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

inline float to_float(Float16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // Subnormal: mantissa * 2^-24, exact in float32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

inline void from_float(float value, float& result) {
  result = value;
}

inline void from_float(float value, BFloat16& result) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {  // NaN: keep it one, rounding could make it infinite
    result.bits = static_cast<std::uint16_t>((bits >> 16) | 0x40u);
    return;
  }
  result.bits = static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline void from_float(float value, Float16& result) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint16_t sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    result.bits = static_cast<std::uint16_t>(sign | 0x7e00u);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    result.bits = static_cast<std::uint16_t>(sign | 0x7c00u);
  } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 aligns the mantissa to steps of 2^-24 and rounds
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    result.bits = static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(aligned) - 0x3f000000u));
  } else {
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    result.bits = static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
}

/// Calls `function` with a value of the element type of `dtype` (float, BFloat16 or Float16).
template <typename Function>
decltype(auto) dispatch_dtype(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::kBFloat16:
      return function(BFloat16{});
    case DType::kFloat16:
      return function(Float16{});
    case DType::kFloat32:
      break;
  }
  return function(float{});
}

}  // namespace fastspec::cpu
