// One timed run of a batch, and what many runs come to.
#pragma once

#include <fastspec/engine.h>

#include <functional>
#include <vector>

namespace fastspec::cli {

/// One run. The prompt phase ends with the step that gives the last sequence its first token; decoding is what follows.
struct BenchRun {
  double prompt_seconds = 0;
  double decode_seconds = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t decode_tokens = 0;  // tokens that came in the decoding phase
  EngineStats decode;              // of the decoding phase only: counts and seconds
  std::vector<Output> outputs;

  double prompt_tokens_per_second() const;
  double decode_tokens_per_second() const;
  double milliseconds_per_step() const;
  /// Part of the decoding steps spent outside backend operations.
  double overhead() const;
};

/// Runs prompts greedily to exactly max_tokens each. @throws Interrupted on Ctrl-C.
/// @param on_decoding called with the number of decoding steps done: with 0 when decoding begins, then after each.
BenchRun run_bench(Engine& engine, const std::vector<std::vector<TokenId>>& prompts, int max_tokens, bool speculative,
                   const std::function<void(int)>& on_decoding = {});

/// The run with the median decoding speed; of an even number, the slower of the middle two.
const BenchRun& median(std::vector<BenchRun>& runs);

/// Where two runs of the same prompts differ.
struct BenchDifference {
  int sequences = 0;        // that differ
  int first_position = -1;  // the earliest differing token, counted from the first generated one
  float margin = 0;         // the smallest winning margin of that sequence in the first run
};
BenchDifference compare(const BenchRun& plain, const BenchRun& other);

}  // namespace fastspec::cli
