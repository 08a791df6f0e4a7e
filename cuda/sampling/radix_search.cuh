// Finds the cutoff of a row too flat for its histogram: eight digits of the sort keys, one pass over the row each, by
// one block.
#pragma once

#include "sampling/filter.cuh"

namespace fastspec::cuda {

constexpr int kDigits = 256;

/// Numbers of one digit's tokens; shared memory.
struct DigitCounts {
  unsigned long long counts[kDigits];
  unsigned long long masses[kDigits];
};

/// What to search for: the first token, in order of falling keys, with which `wanted` tokens, or units of mass, are
/// reached. Only keys of at least `lowest` count.
struct Search {
  bool by_mass;
  std::uint64_t wanted;
  SortKey lowest;
};

struct Found {
  SortKey cutoff;
  std::uint64_t mass;  // of the tokens down to the cutoff
};

/// Adds a token of every lane that has one to its digit; lanes that all agree add once. For whole warps.
__device__ __forceinline__ void add_digit(DigitCounts& digits, bool counts, int digit, std::uint64_t mass) {
  const unsigned active = __ballot_sync(kAllLanes, counts);
  if (active == 0) return;
  const int first = __shfl_sync(kAllLanes, digit, __ffs(static_cast<int>(active)) - 1);
  if (__all_sync(kAllLanes, !counts || digit == first)) {
    unsigned long long sum = counts ? mass : 0;
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
    if (threadIdx.x % kWarpSize != 0) return;
    atomicAdd(&digits.counts[first], static_cast<unsigned long long>(__popc(active)));
    atomicAdd(&digits.masses[first], sum);
  } else if (counts) {
    atomicAdd(&digits.counts[digit], 1ull);
    atomicAdd(&digits.masses[digit], static_cast<unsigned long long>(mass));
  }
}

__device__ inline Found radix_search(const Row& row, const RowStatistics& statistics, float temperature,
                                     const Search& search, DigitCounts& digits) {
  __shared__ int crossing;
  std::uint64_t prefix = 0;
  std::uint64_t reached = 0;  // tokens or mass before the prefix's
  std::uint64_t mass = 0;
  const int thread = static_cast<int>(threadIdx.x);
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (int i = thread; i < kDigits; i += kSamplingThreads) digits.counts[i] = digits.masses[i] = 0;
    __syncthreads();
    // Whole warps go through the loop together.
    for (int first = 0; first < row.size; first += kSamplingThreads) {
      const int token = first + thread;
      const float logit = token < row.size ? row.logits[token] : -kInfinity;
      const SortKey key = sort_key(logit, static_cast<std::uint32_t>(token));
      const bool inside = shift == 56 || key >> (shift + 8) == prefix;
      const bool counts = logit > -kInfinity && key >= search.lowest && inside;
      add_digit(digits, counts, static_cast<int>(key >> shift & 0xff),
                counts ? mass_of(logit, statistics.top, temperature) : 0);
    }
    __syncthreads();
    if (thread == 0) {
      int digit = kDigits - 1;
      std::uint64_t sum = reached;
      int last_filled = 0;
      for (; digit >= 0; --digit) {
        if (digits.counts[digit] == 0) continue;
        last_filled = digit;
        sum += search.by_mass ? digits.masses[digit] : digits.counts[digit];
        if (sum >= search.wanted) break;
      }
      crossing = digit >= 0 ? digit : last_filled;
    }
    __syncthreads();
    const int digit = crossing;
    for (int above = kDigits - 1; above > digit; --above) {
      reached += search.by_mass ? digits.masses[above] : digits.counts[above];
      mass += digits.masses[above];
    }
    prefix = prefix << 8 | static_cast<std::uint64_t>(digit);
    if (shift == 0) mass += digits.masses[digit];
    __syncthreads();
  }
  return {prefix, mass};
}

}  // namespace fastspec::cuda
