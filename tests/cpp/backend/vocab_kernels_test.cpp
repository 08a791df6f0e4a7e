// The vocabulary kernels of every instruction set: noise words bit for bit, bounded noise and sums within what they
// promise.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "backend/cpu/kernels.h"
#include "cpp/backend/sampling_case.h"

namespace fastspec::cpu {
namespace {

TEST(VocabKernelsTest, NoiseWordsEqualTheGenerator) {
  const noise::DrawKey key{0x123456789abcdef0u, 7, 99};
  for (auto table = runnable_kernels(); *table != nullptr; ++table) {
    for (const int blocks : {1, 5, 16, 17, 100}) {
      std::vector<std::uint32_t> words(static_cast<std::size_t>(4 * blocks) + 1, 42);
      (*table)->vocab.noise_words(key, 1000, blocks, words.data());
      for (int i = 0; i < 4 * blocks; ++i) {
        ASSERT_EQ(words[static_cast<std::size_t>(i)],
                  noise::token_block(key, 1000 + static_cast<std::uint32_t>(i / 4)).word[i % 4])
            << (*table)->name << " " << i;
      }
      EXPECT_EQ(words.back(), 42u);
    }
  }
}

TEST(VocabKernelsTest, BoundedNoiseNeverLosesAToken) {
  // All 2^24 random numbers, in turns as a row of equal logits: a token whose exact score reaches the threshold is
  // found.
  constexpr int kSize = 1 << 14;
  const std::vector<float> logits(kSize, 0.0f);
  std::vector<std::uint32_t> words(kSize);
  std::vector<TokenId> found(kSize);
  for (auto table = runnable_kernels(); *table != nullptr; ++table) {
    for (std::uint32_t first = 0; first < (1u << 24); first += kSize) {
      double sum = 0;
      for (std::uint32_t i = 0; i < kSize; ++i) {
        words[i] = (first + i) << 8;
        sum += 1 / -std::log(noise::uniform(words[i]));
      }
      const float threshold = noise::gumbel(words[kSize / 2]);
      const int count =
          (*table)->vocab.gather_perturbed(logits.data(), words.data(), kSize, 0, 1, threshold, 0, found.data());
      int reach = 0;
      for (const std::uint32_t word : words) reach += noise::gumbel(word) >= threshold ? 1 : 0;
      ASSERT_GE(count, reach) << (*table)->name << " " << first;
      for (int i = 0, next = 0; i < kSize; ++i) {  // every such token is among them
        while (next < count && found[static_cast<std::size_t>(next)] < i) ++next;
        if (noise::gumbel(words[static_cast<std::size_t>(i)]) < threshold) continue;
        ASSERT_TRUE(next < count && found[static_cast<std::size_t>(next)] == i) << (*table)->name << " " << first + i;
      }
      const float total = (*table)->vocab.perturbed_sum(logits.data(), words.data(), kSize, 0, 1, 0);
      ASSERT_NEAR(total / sum, 1, 2e-5) << (*table)->name << " " << first;
    }
  }
}

TEST(VocabKernelsTest, SummaryOfAwkwardSizes) {
  std::mt19937_64 random(51);
  for (auto table = runnable_kernels(); *table != nullptr; ++table) {
    for (const int size : {1, 2, 3, 4, 7, 8, 15, 16, 17, 1023, 1024, 1025, 3000}) {
      const std::vector<float> logits = test::random_logits(size, 4, random);
      const LogitSummary summary = (*table)->vocab.summarize(logits.data(), size, true);
      float top = -INFINITY, second = -INFINITY;
      int token = 0;
      for (int i = 0; i < size; ++i) {
        const float value = logits[static_cast<std::size_t>(i)];
        if (value > top) {
          second = top;
          top = value;
          token = i;
        } else {
          second = std::max(second, value);
        }
      }
      double sum = 0;
      for (const float value : logits) sum += std::exp(static_cast<double>(value - top));
      ASSERT_EQ(summary.top, top) << (*table)->name << " " << size;
      ASSERT_EQ(summary.token, token);
      ASSERT_EQ(summary.second, second);
      ASSERT_NEAR(summary.sum / sum, 1, 1e-6);
      ASSERT_FALSE(summary.has_nan);
    }
  }
}

}  // namespace
}  // namespace fastspec::cpu
