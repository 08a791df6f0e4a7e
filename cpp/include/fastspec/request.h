// What a caller asks for and what comes back. Values only.
#pragma once

#include <fastspec/tokenizer.h>  // TokenId

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fastspec {

using RequestId = std::int64_t;

/// How tokens are chosen. Order: penalties and bias, temperature, then top_k, top_p, min_p; the token is the argmax of
/// logit / temperature + Gumbel noise keyed by (seed, sample, position, token). Speculation cannot change the outcome.
struct SamplingParams {
  float temperature = 1.0f;           // 0 = greedy
  int top_k = 0;                      // 0 = off
  float top_p = 1.0f;                 // in (0, 1]
  float min_p = 0.0f;                 // in [0, 1]; relative to the most likely token
  std::optional<std::uint64_t> seed;  // drawn by the engine and returned in the output when absent
  int n = 1;                          // samples of one prompt; they share its pages
  int max_tokens = 128;
  int min_tokens = 0;             // EOS and stop_token_ids cannot be drawn before
  std::vector<std::string> stop;  // the text ends before the first of these
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  std::optional<int> logprobs;      // 0 = chosen token only, N = and the top N; from the target's raw logits
  float repetition_penalty = 1.0f;  // > 0; over prompt and output
  float presence_penalty = 0.0f;    // in [-2, 2]; over output
  float frequency_penalty = 0.0f;   // in [-2, 2]; over output
  std::vector<std::pair<TokenId, float>> logit_bias;
  bool skip_special_tokens = true;  // in the text

  /// @throws Error(kInvalidArgument) naming the field and its value.
  void validate() const;
};

/// Per-request speculation switches; unset fields take the engine's.
struct RequestSpeculation {
  bool enabled = true;
  std::optional<int> max_draft_tokens;
};

/// What is promised about an output. kExact: the tokens of plain decoding with the same seed.
enum class Guarantee { kExact, kSparse };
const char* to_string(Guarantee guarantee) noexcept;
/// The inverse. @throws Error(kInvalidArgument) for another text.
Guarantee parse_guarantee(const std::string& text);

struct Request {
  std::string prompt;  // used when prompt_token_ids is empty
  std::vector<TokenId> prompt_token_ids;
  bool add_special_tokens = true;  // for `prompt`
  SamplingParams sampling;
  RequestSpeculation speculation;
  /// Whether sparse passes may decode it; unset = where the engine has them.
  std::optional<bool> sparse;
  /// Of sparse passes; unset = the engine's. kExact takes an engine that was made for it: the rows of dense passes that
  /// confirm are planned with its memory.
  std::optional<Guarantee> guarantee;
  /// The prompt is computed and kept until the request is cancelled; nothing is decoded. Requests with equal prompts
  /// start on its whole pages, as the samples of one request do. It runs, in the sense of max_num_seqs, and gives its
  /// pages back where other requests could not go on: then it is computed again when there is room and none waits.
  /// Engine::has_work() is false once nothing is left to compute. Its `speculation` says whether the drafter prepares.
  bool hold = false;
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };

/// "", "stop", "length", "cancelled", "error".
const char* to_string(FinishReason reason) noexcept;

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};

/// One generated token's log-probabilities under the target.
struct PositionLogprobs {
  float logprob = 0;              // of the chosen token
  std::vector<TokenLogprob> top;  // descending; as many as asked
};

/// What sparse passes did. Passes are decoding passes; a refresh is one, or one for each chunk of its rows.
struct SparseStats {
  std::int64_t sparse_passes = 0;
  std::int64_t dense_passes = 0;
  std::int64_t kv_bytes_read = 0;      // of cached keys and values, by both
  std::int64_t kv_bytes_dense = 0;     // what all of these passes would have read densely
  std::int64_t confirmed_tokens = 0;   // provisional tokens that a dense pass drew too
  std::int64_t taken_back_tokens = 0;  // and the others of their runs
  std::int64_t refreshes = 0;          // how often K/V of sparse passes was computed anew, Guarantee::kSparse
  std::int64_t mass_passes = 0;        // sparse passes whose selector knows the share of attention inside what is read
  double mass_sum = 0;                 // and the sum of these shares

  double mean_mass() const { return mass_passes == 0 ? 0.0 : mass_sum / static_cast<double>(mass_passes); }
  /// One line, without its end.
  std::string to_string() const;
};

/// What one sample cost. tau = committed tokens per decoding pass, bonus included, prompt passes excluded; where what
/// sparse passes accept is provisional, shown tokens per dense pass.
struct OutputStats {
  int prompt_tokens = 0;
  int completion_tokens = 0;
  std::int64_t decoding_passes = 0;
  std::int64_t decoding_tokens = 0;  // tokens committed by decoding passes
  std::int64_t drafted_tokens = 0;
  std::int64_t accepted_tokens = 0;
  int preemptions = 0;
  SparseStats sparse;
  double seconds_to_first_token = 0;
  double seconds = 0;  // submit to finish

  double acceptance_length() const {
    return decoding_passes == 0 ? 0.0 : static_cast<double>(decoding_tokens) / static_cast<double>(decoding_passes);
  }
};

/// Progress or end of one sample. A delta: `text`, `token_ids` and `logprobs` are what is new since the last Output of
/// this (request, sample); concatenated they are the whole. Text withheld as a possible start of a stop string comes
/// later.
struct Output {
  RequestId request = 0;
  int sample = 0;
  std::string text;
  std::vector<TokenId> token_ids;
  std::vector<PositionLogprobs> logprobs;
  float min_margin = std::numeric_limits<float>::infinity();  // smallest winning margin among token_ids, for near-ties
  FinishReason finish_reason = FinishReason::kNone;
  std::string error;  // for kError
  std::uint64_t seed = 0;
  Guarantee guarantee = Guarantee::kExact;
  OutputStats stats;  // valid when finished

  bool finished() const { return finish_reason != FinishReason::kNone; }
};

/// What one step did.
struct StepReport {
  std::vector<Output> outputs;
  int num_sequences = 0;  // in the pass; 0 when there was nothing to do
  int num_rows = 0;       // rows the target computed
};

}  // namespace fastspec
