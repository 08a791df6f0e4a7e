// One row of logits: penalties and bias, filters, noise, and the best tokens under them. Holds scratch memory; knows no
// trees.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/top_tokens.h"
#include "backend/noise.h"
#include "backend/params.h"

namespace fastspec::cpu {

/// What to draw at one row.
struct RowDraw {
  const float* logits = nullptr;  // [vocab_size]
  int vocab_size = 0;
  int row = 0;  // for messages
  const SamplingRule* rule = nullptr;
  std::uint32_t position = 0;          // of the token to be drawn
  const TokenId* token_ids = nullptr;  // as in ProposeParams
  std::span<const TokenId> path;       // tokens after the committed ones, before this one
  bool wants_logprob = false;          // of what draw() returns; needed for top_logprobs()
};

class RowSampler {
 public:
  explicit RowSampler(const VocabKernels& kernels) : kernels_(&kernels) {}

  /// Draws the token of a row; nullopt where none can be drawn: a NaN among the logits, or no token left.
  std::optional<SampledToken> draw(const RowDraw& draw);

  /// The `count` best tokens of a row, best first, ties to the lowest id; fewer where the filters leave fewer, none
  /// where draw() gives none. Their
  /// scores are (logit - largest logit) / temperature + noise, or the logits at temperature 0. Lives until the next
  /// call.
  std::span<const ScoredToken> best(const RowDraw& draw, int count);

  /// After best(): softmax of the scores over the filtered set, at `scored`.
  float confidence(const ScoredToken& scored);

  /// After a draw() that wants log-probabilities: the `count` most probable tokens under the raw logits, ties to the
  /// lowest id.
  void top_logprobs(int count, TopLogprob* result);

 private:
  /// False where nothing can be drawn.
  bool begin(const RowDraw& draw, bool with_scores_sum);
  void adjust(bool with_sum);
  void apply_penalties();
  void filter();
  void filter_top_k();
  void filter_top_p();
  void filter_min_p();
  void score(int count);
  void select_top(const float* logits, int count, bool impossible_too);
  float logprob(TokenId token) const;
  double perturbed_sum(float best_score);
  template <typename Visit>
  void visit_candidates(float lowest_logit, Visit&& visit);

  template <typename Visit>
  void visit_noise(Visit&& visit);
  void gather_noise(const noise::DrawKey& key, std::span<const TokenId> tokens);

  const VocabKernels* kernels_;
  RowDraw draw_;
  LogitSummary raw_;               // of the logits as they came
  LogitSummary adjusted_;          // after penalties and bias
  const float* logits_ = nullptr;  // after penalties and bias
  bool greedy_ = false;            // no noise: temperature 0, or an infinite logit decides
  bool filtered_ = false;          // candidates_ is the filtered set; otherwise it is the whole vocabulary
  double score_sum_ = 0;           // sum of exp(score - best score); 0 = not computed yet
  std::vector<float> adjusted_logits_;
  std::vector<TokenCount> path_counts_;
  std::vector<TokenId> candidates_;
  std::vector<TokenId> gathered_;
  std::vector<std::uint32_t> words_;         // noise of one block of tokens
  std::vector<std::uint32_t> spread_words_;  // of all tokens between the first and last of such a block
  std::vector<ScoredToken> best_;
};

}  // namespace fastspec::cpu
