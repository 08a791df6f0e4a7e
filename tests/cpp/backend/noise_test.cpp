// The noise generator: published vectors, ranges, bounds, and that every part of the key matters.
#include "backend/noise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace fastspec::noise {
namespace {

void expect_words(const Words& words, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  EXPECT_EQ(words.word[0], a);
  EXPECT_EQ(words.word[1], b);
  EXPECT_EQ(words.word[2], c);
  EXPECT_EQ(words.word[3], d);
}

TEST(NoiseTest, PhiloxMatchesPublishedVectors) {
  expect_words(philox4x32({{0, 0, 0, 0}}, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  constexpr std::uint32_t kOnes = 0xffffffff;
  expect_words(philox4x32({{kOnes, kOnes, kOnes, kOnes}}, kOnes, kOnes), 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
               0x6d5451fd);
  expect_words(philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0), 0xd16cfe09,
               0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(NoiseTest, IsUsableAtCompileTime) {
  static_assert(philox4x32({{0, 0, 0, 0}}, 0, 0).word[0] == 0x6627e8d5);
}

TEST(NoiseTest, ExtremesAreFinite) {
  EXPECT_NEAR(gumbel(0xffffffff), 25 * std::log(2.0), 1e-5);
  EXPECT_NEAR(gumbel(0), -std::log(25 * std::log(2.0)), 1e-5);
}

TEST(NoiseTest, EveryPartOfTheKeyMatters) {
  std::set<std::uint32_t> seen;
  const DrawKey key{0x123456789abcdef0u, 3, 17};
  seen.insert(token_block(key, 5).word[0]);
  seen.insert(token_block({key.seed + 1, 3, 17}, 5).word[0]);
  seen.insert(token_block({key.seed + (std::uint64_t{1} << 32), 3, 17}, 5).word[0]);
  seen.insert(token_block({key.seed, 4, 17}, 5).word[0]);
  seen.insert(token_block({key.seed, 3, 18}, 5).word[0]);
  seen.insert(token_block(key, 6).word[0]);
  EXPECT_EQ(seen.size(), 6u);
}

TEST(NoiseTest, MomentsAreThoseOfAGumbelVariable) {
  // Mean 0.57722, variance pi^2 / 6; 400,000 draws: five standard errors are 0.0101 and 0.035.
  constexpr int kBlocks = 100000;
  double sum = 0, squares = 0;
  for (int block = 0; block < kBlocks; ++block) {
    const Words words = token_block({99, 0, 1}, static_cast<std::uint32_t>(block));
    for (const std::uint32_t word : words.word) {
      sum += gumbel(word);
      squares += static_cast<double>(gumbel(word)) * gumbel(word);
    }
  }
  const double mean = sum / (4 * kBlocks);
  EXPECT_NEAR(mean, 0.577216, 0.0101);
  EXPECT_NEAR(squares / (4 * kBlocks) - mean * mean, 1.644934, 0.035);
}

}  // namespace
}  // namespace fastspec::noise
