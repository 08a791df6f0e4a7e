// The near-tie rule (architecture.md, "Row invariance"): where rounding depends on the number of rows, another token
// than plain decoding's is right only if rounding can explain it. How much rounding does is measured, not guessed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "support/engine_harness.h"
#include "support/lossless_matrix.h"

namespace fastspec::testing {

/// Whether `token` could have won where the logits are `logits`, [vocab_size], each of which may be off by `error`: it
/// may then have passed the filters, and no token that passes them in any case beats it in any case. For the draw that
/// follows `tokens`, of which the first `prompt_len` are the request's prompt. `end_tokens` are those that cannot be
/// drawn before min_tokens.
bool could_win(TokenId token, std::span<const float> logits, float error, const SamplingParams& sampling,
               std::uint32_t sample, std::span<const TokenId> tokens, int prompt_len,
               std::span<const TokenId> end_tokens);

/// Judges outputs of one backend and element type against plain decoding there.
class NearTieJudge {
 public:
  struct Verdict {
    int sequences = 0;
    int near_ties = 0;
    int at_cutoffs = 0;         // of these, decided at the cutoff of a filter
    double largest_margin = 0;  // of the others: winning margin of the plain run, in units of the logits
    int not_judged = 0;         // cut, drawn again differently and ended in one step: nothing shows what was drawn
    std::string failure;        // the differences that rounding does not explain, one a line
  };

  /// Measures error() on requests of its own. @param has_windows of the target, see HarnessOptions.
  NearTieJudge(const std::string& device, DType dtype, bool has_windows = true);
  ~NearTieJudge();

  /// Largest difference of a raw log-probability, over the whole vocabulary, between plain decoding alone and passes of
  /// many rows, trees among them.
  float error() const { return error_; }
  /// Compares what a case gave with plain decoding of the same requests. Log-probabilities are compared up to where
  /// tokens part.
  Verdict judge(const std::vector<Request>& requests, const Outputs& plain, const MatrixRun& seen);

 private:
  void judge_output(const Request& request, int sample, const WholeOutput& plain, const WholeOutput& seen,
                    const Redraw* redraw, Verdict& verdict);
  bool explains(const Request& request, int sample, const WholeOutput& plain, std::size_t place, TokenId seen);

  class Target;  // the harness's target model by itself
  std::unique_ptr<Target> target_;
  float error_;
};

}  // namespace fastspec::testing
