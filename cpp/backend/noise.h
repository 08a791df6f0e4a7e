// Counter-based Gumbel noise: a pure function of (seed, sample index, position, token), the same on every device.
// Inline and constexpr functions over plain integers, so that device code can include it. No state, no standard
// containers.
#pragma once

#include <cmath>
#include <cstdint>

namespace fastspec::noise {

/// Four 32-bit words: a Philox counter or its output.
struct Words {
  std::uint32_t word[4];
};

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
constexpr Words philox4x32(Words counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter.word[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = Words{
        {static_cast<std::uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0, static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1, static_cast<std::uint32_t>(product0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/// Identifies the noise of one draw: the token at `position` of sample `sample_index` of a request with `seed`.
struct DrawKey {
  std::uint64_t seed = 0;
  std::uint32_t sample_index = 0;
  std::uint32_t position = 0;
};

/// Random words of the four tokens 4 * block .. 4 * block + 3.
constexpr Words token_block(const DrawKey& key, std::uint32_t block) {
  return philox4x32(Words{{block, key.position, key.sample_index, 0}}, static_cast<std::uint32_t>(key.seed),
                    static_cast<std::uint32_t>(key.seed >> 32));
}

/// The uniform number in (0, 1) of a random word: (24 high bits + 1/2) / 2^24, exact in double, never 0 or 1.
constexpr double uniform(std::uint32_t word) {
  return (static_cast<double>(word >> 8) + 0.5) * 0x1p-24;
}

/// Gumbel noise of a random word, -log(-log(u)). Computed in double and rounded once, so that devices agree.
inline float gumbel(std::uint32_t word) {
  return static_cast<float>(-std::log(-std::log(uniform(word))));
}

}  // namespace fastspec::noise
