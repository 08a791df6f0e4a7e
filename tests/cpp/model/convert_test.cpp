// Element conversions against an oracle in double arithmetic: every 16-bit pattern, and every rounding boundary.
#include "model/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace fastspec::test {
namespace {

template <typename To, typename From>
std::vector<To> converted(const std::vector<From>& values, DType from, DType to) {
  std::vector<To> result(values.size());
  convert_elements(reinterpret_cast<const std::byte*>(values.data()), from, reinterpret_cast<std::byte*>(result.data()),
                   to, values.size());
  return result;
}

std::vector<std::uint16_t> all_patterns() {
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  return patterns;
}

/// Value of a 16-bit float with `mantissa` explicit bits, by its definition.
double value_of(std::uint16_t bits, int mantissa) {
  const int exponent_bits = 15 - mantissa, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7FFF) >> mantissa, fraction = bits & ((1 << mantissa) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - mantissa);
  return sign * std::ldexp(1 + std::ldexp(fraction, -mantissa), exponent - bias);
}

struct Format {
  DType dtype;
  int mantissa;
  std::uint16_t infinity;
};
const Format kFormats[] = {{DType::kBFloat16, 7, 0x7F80}, {DType::kFloat16, 10, 0x7C00}};

TEST(Convert, WidensEveryPattern) {
  for (const Format& format : kFormats) {
    const auto patterns = all_patterns();
    const auto wide = converted<float>(patterns, format.dtype, DType::kFloat32);
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      const double expected = value_of(patterns[i], format.mantissa);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(wide[i])) << i;
      } else {
        ASSERT_EQ(static_cast<double>(wide[i]), expected) << to_string(format.dtype) << " pattern " << i;
        ASSERT_EQ(std::signbit(wide[i]), (patterns[i] & 0x8000) != 0) << i;
      }
    }
  }
}

/// Around every value of the format and around the middle between neighbours: the nearest, ties to the even pattern.
TEST(Convert, NarrowsToNearestEven) {
  for (const Format& format : kFormats) {
    std::vector<float> inputs;
    std::vector<std::uint16_t> expected;
    for (std::uint16_t bits = 0; bits < format.infinity; ++bits) {
      const double low = value_of(bits, format.mantissa);
      // The step above the largest finite value leads to where infinity begins.
      const double high = bits + 1 == format.infinity ? low + (low - value_of(bits - 1, format.mantissa))
                                                      : value_of(static_cast<std::uint16_t>(bits + 1), format.mantissa);
      const auto middle = static_cast<float>((low + high) / 2);
      if (static_cast<double>(middle) != (low + high) / 2) continue;  // no float32: bfloat16's smallest subnormals
      const std::uint16_t even = bits % 2 == 0 ? bits : static_cast<std::uint16_t>(bits + 1);
      const float around[] = {static_cast<float>(low), std::nextafter(middle, 0.0f), middle,
                              std::nextafter(middle, std::numeric_limits<float>::infinity())};
      const std::uint16_t nearest[] = {bits, bits, even, static_cast<std::uint16_t>(bits + 1)};
      for (int i = 0; i < 4; ++i) {
        inputs.insert(inputs.end(), {around[i], -around[i]});
        expected.insert(expected.end(), {nearest[i], static_cast<std::uint16_t>(nearest[i] | 0x8000)});
      }
    }
    ASSERT_GT(inputs.size(), 200000u);
    const auto narrow = converted<std::uint16_t>(inputs, DType::kFloat32, format.dtype);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      ASSERT_EQ(narrow[i], expected[i]) << to_string(format.dtype) << " of " << inputs[i];
    }
  }
}

TEST(Convert, KeepsNanAndOverflowsToInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> special{infinity,
                                   -infinity,
                                   3.4e38f,
                                   std::bit_cast<float>(0x7F800001u),
                                   std::bit_cast<float>(0x7FFFFFFFu),
                                   std::bit_cast<float>(0xFF800001u),
                                   65520.0f,
                                   65519.0f};
  const auto half = converted<std::uint16_t>(special, DType::kFloat32, DType::kFloat16);
  EXPECT_EQ(half[0], 0x7C00);
  EXPECT_EQ(half[1], 0xFC00);
  EXPECT_EQ(half[2], 0x7C00);
  EXPECT_EQ(half[6], 0x7C00);
  EXPECT_EQ(half[7], 0x7BFF);
  const auto brain = converted<std::uint16_t>(special, DType::kFloat32, DType::kBFloat16);
  EXPECT_EQ(brain[0], 0x7F80);
  EXPECT_EQ(brain[1], 0xFF80);
  for (std::size_t i : {3, 4, 5}) {
    EXPECT_TRUE(std::isnan(value_of(half[i], 10))) << i;
    EXPECT_TRUE(std::isnan(value_of(brain[i], 7))) << i;
  }
}

TEST(Convert, SixteenBitPairsGoThroughFloat32) {
  const auto patterns = all_patterns();
  for (const auto& [from, to] : {std::pair{DType::kBFloat16, DType::kFloat16}, {DType::kFloat16, DType::kBFloat16}}) {
    const auto wide = converted<float>(patterns, from, DType::kFloat32);
    EXPECT_EQ(converted<std::uint16_t>(patterns, from, to), converted<std::uint16_t>(wide, DType::kFloat32, to));
  }
}

TEST(Convert, CopiesEqualTypesAndReadsUnalignedSources) {
  const std::vector<float> values{1.5f, -2.25f, 1e-40f, std::bit_cast<float>(0x7F800001u)};
  std::vector<std::byte> shifted(values.size() * 4 + 1), same(values.size() * 4);
  std::memcpy(shifted.data() + 1, values.data(), same.size());
  convert_elements(shifted.data() + 1, DType::kFloat32, same.data(), DType::kFloat32, values.size());
  EXPECT_EQ(std::memcmp(same.data(), values.data(), same.size()), 0);
  std::vector<std::uint16_t> narrow(values.size());
  convert_elements(shifted.data() + 1, DType::kFloat32, reinterpret_cast<std::byte*>(narrow.data()), DType::kBFloat16,
                   values.size());
  EXPECT_EQ(narrow, converted<std::uint16_t>(values, DType::kFloat32, DType::kBFloat16));
  convert_elements(nullptr, DType::kFloat32, nullptr, DType::kFloat32, 0);
}

}  // namespace
}  // namespace fastspec::test
