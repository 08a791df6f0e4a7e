// One sample of one request: its tokens, lengths and what is known of its output. The K/V lives in PagedKvCache.
#pragma once

#include <fastspec/request.h>

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "backend/params.h"
#include "budget/draft_switch.h"
#include "engine/output_text.h"
#include "engine/sparse_record.h"
#include "engine/token_history.h"
#include "step/acceptance.h"
#include "step/step_plan.h"

namespace fastspec {

using Clock = std::chrono::steady_clock;

/// What the samples of one request have in common. Fixed at submit.
struct RequestState {
  RequestId id = 0;
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  std::uint64_t seed = 0;
  int max_tokens = 0;         // sampling.max_tokens, cut to the model's length
  int max_drafted = 0;        // drafted tokens a step; 0 = speculation off
  bool wants_sparse = false;  // sparse passes may decode it
  bool hold = false;          // the prompt is kept for others, nothing is decoded
  Guarantee guarantee = Guarantee::kExact;
  std::vector<TokenId> end_tokens;  // EOS (unless ignored) and stop_token_ids
  std::vector<LogitBias> logit_bias;
  Clock::time_point submitted;
};

class Sequence {
 public:
  Sequence(SeqId id, std::shared_ptr<const RequestState> request, int sample,
           std::shared_ptr<const Tokenizer> tokenizer);

  SeqId id() const { return id_; }
  int sample() const { return sample_; }
  const RequestState& request() const { return *request_; }
  const std::vector<TokenId>& tokens() const { return tokens_; }
  int len() const { return static_cast<int>(tokens_.size()); }
  int visible_len() const { return visible_len_; }
  int exact_len() const { return exact_len_; }
  /// Tokens that a caller may see: under kExact those that dense passes accepted.
  int shown_len() const { return request_->guarantee == Guarantee::kExact ? exact_len_ : len(); }
  /// Tokens that a dense pass has still to confirm or take back.
  int num_provisional() const { return len() - shown_len(); }
  int prompt_len() const { return static_cast<int>(request_->prompt.size()); }
  int num_generated() const { return len() - prompt_len(); }
  /// Tokens whose K/V the next passes are there for: a held prompt's last one would give a token that nobody wants.
  int wanted_len() const { return request_->hold ? len() - 1 : len(); }
  /// Tokens that may still be generated.
  int num_remaining() const { return request_->max_tokens - num_generated(); }

  /// The rule for the token after the root, which is the last token. Points into this sequence.
  SamplingRule rule() const;
  /// The same where the root is the last token but the provisional ones: their walk begins before them. Valid until the
  /// next call.
  SamplingRule rule_before_provisional();

  /// Cuts an accepted run where the output ends: EOS, stop token, stop string, limit. Sets `finish`; in a sparse pass
  /// under kExact, where nothing ends, `needs_dense` instead, and so in any sparse pass before a token that wins
  /// by less than `min_margin`. The run begins behind the last token, in a dense pass before the provisional ones.
  /// Changes nothing that a failed step would have to undo.
  void find_end(Acceptance& acceptance, KvMode mode = KvMode::kDense, double min_margin = 0);

  /// Appends the run's tokens, which are taken out of it; their number stays. In a dense pass they take the place of
  /// the provisional ones. Cannot fail: room for them was made at submit and in find_end().
  void commit(Acceptance& acceptance, KvMode mode = KvMode::kDense) noexcept;

  /// Takes back tokens from `length` on (not those of the prompt), and all provisional ones. They are drawn again by
  /// later steps.
  void truncate(int length);

  /// What is new since the last call: tokens, log-probabilities, text. `finish` ends the output.
  Output take_output(FinishReason finish);

  OutputStats stats;
  DraftRecord drafting;  // the row budget's
  SparseRecord sparse;
  std::string error;

 private:
  bool wants_penalties() const;
  SamplingRule rule_of(std::span<const TokenCount> counts, int num_generated) const;
  void drop_from(int length);

  SeqId id_;
  std::shared_ptr<const RequestState> request_;
  int sample_;
  std::vector<TokenId> tokens_;            // prompt, then generated
  std::vector<CommittedToken> generated_;  // what is reported of them; entries already visible keep only the token
  int visible_len_;
  int exact_len_;
  TokenHistory history_;
  std::vector<TokenCount> exact_counts_;  // of rule_before_provisional()
  OutputText text_;
  int num_in_text_ = 0;  // generated tokens that take_output() has given to text_; find_end() looks ahead of them
};

}  // namespace fastspec
