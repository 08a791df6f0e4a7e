// See near_tie.h.
#include "support/near_tie.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <sstream>

#include "backend/noise.h"
#include "memory/kv_pool.h"
#include "model/pass.h"
#include "model/transformer.h"
#include "support/lossless_matrix.h"
#include "support/oracle_sampling.h"
#include "support/tiny_model.h"
#include "verify/batch.h"

namespace fastspec::testing {

namespace {

constexpr int kMaxTokens = 128;
constexpr int kPageSize = 16;

ModelConfig matrix_config(bool has_windows) {
  ModelConfig config = tiny_config(kMatrixVocab);
  if (!has_windows) config.window.assign(config.window.size(), 0);
  return config;
}

}  // namespace

class NearTieJudge::Target {
 public:
  Target(const std::string& device, DType dtype, bool has_windows)
      : backend_(make_backend(device, dtype, device == "cpu" ? 2 : 1)),
        config_(matrix_config(has_windows)),
        model_(config_, tiny_weights(config_, kTargetSeed, dtype, *backend_.device), backend_, kMaxTokens, kMaxTokens),
        kv_(*backend_.device, model_.kv_shape(dtype), kMaxTokens / kPageSize, kPageSize),
        buffers_(*backend_.device, {.max_rows = kMaxTokens, .max_sequences = 1, .max_list_entries = kMaxTokens}) {}

  /// Logits after the last of `tokens`, [vocab_size].
  std::vector<float> logits(std::span<const TokenId> tokens) {
    RowBatch batch;
    for (std::size_t position = 0; position < tokens.size(); ++position) {
      batch.tokens.push_back(tokens[position]);
      batch.positions.push_back(static_cast<std::int32_t>(position));
      batch.slots.push_back(static_cast<Slot>(position));
    }
    batch.logit_rows.push_back(static_cast<std::int32_t>(tokens.size()) - 1);
    batch.kv.lists.push_back({.offset = 0, .length = 0, .pages = true});
    batch.end_sequence(NewMask::kCausal);
    const Matrix seen = model_.forward(buffers_.upload(batch), kv_);
    std::vector<float> result(kMatrixVocab);
    backend_.device->copy_to_host(result.data(), seen.row<float>(0), result.size() * sizeof(float));
    return result;
  }

 private:
  Backend backend_;
  ModelConfig config_;
  Transformer model_;
  KvPool kv_;
  PassBuffers buffers_;
};

namespace {

/// The history of a sequence as sampling sees it.
std::vector<TokenCount> count_tokens(std::span<const TokenId> tokens, int prompt_len) {
  std::map<TokenId, TokenCount> counts;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    TokenCount& count = counts[tokens[i]];
    count.token = tokens[i];
    if (static_cast<int>(i) < prompt_len) {
      count.in_prompt = true;
    } else {
      ++count.in_output;
    }
  }
  std::vector<TokenCount> list;
  for (const auto& [token, count] : counts) list.push_back(count);
  return list;
}

/// What filters leave where every logit may be off by `error`. `change` = 1: what they may leave; -1: what they leave
/// in any case.
class UncertainFilter {
 public:
  UncertainFilter(const std::vector<double>& logits, double error, const SamplingParams& sampling)
      : logits_(logits), error_(error), sampling_(sampling) {
    best_ = *std::max_element(logits.begin(), logits.end());
    for (const double logit : logits) weights_.push_back(std::exp((logit - best_) / sampling.temperature));
  }

  bool may_pass(std::size_t token) const { return passes(token, 1); }
  bool must_pass(std::size_t token) const { return passes(token, -1); }

 private:
  bool passes(std::size_t token, int change) const {
    if (std::isinf(logits_[token])) return false;
    return !beyond_top_k(token, change) && mass_before(token, change) < sampling_.top_p && above_min_p(token, change);
  }
  /// Whether `other` ranks before `token`, in favour of (change 1) or against `token`.
  bool before(std::size_t other, std::size_t token, int change) const {
    return other != token && (change > 0 ? logits_[other] - error_ > logits_[token] + error_
                                         : logits_[other] + error_ >= logits_[token] - error_);
  }
  bool beyond_top_k(std::size_t token, int change) const {
    if (sampling_.top_k == 0) return false;
    int rank = 0;
    for (std::size_t other = 0; other < logits_.size(); ++other) rank += before(other, token, change);
    return rank >= sampling_.top_k;
  }
  /// A bound of the probability of the tokens before it, among those that top-k leaves.
  double mass_before(std::size_t token, int change) const {
    if (sampling_.top_p >= 1) return 0;
    double mass = 0;
    double all = 0;
    for (std::size_t other = 0; other < logits_.size(); ++other) {
      if (!beyond_top_k(other, change)) all += weights_[other];
      if (before(other, token, change)) mass += weights_[other];
    }
    return mass / all * std::exp(-change * 2 * error_ / sampling_.temperature);
  }
  bool above_min_p(std::size_t token, int change) const {
    return sampling_.min_p <= 0 ||
           logits_[token] - best_ + change * 2 * error_ >= sampling_.temperature * std::log(sampling_.min_p);
  }

  const std::vector<double>& logits_;
  double error_;
  const SamplingParams& sampling_;
  double best_ = 0;
  std::vector<double> weights_;
};

}  // namespace

bool could_win(TokenId token, std::span<const float> logits, float error, const SamplingParams& sampling,
               std::uint32_t sample, std::span<const TokenId> tokens, int prompt_len,
               std::span<const TokenId> end_tokens) {
  const std::vector<TokenCount> counts = count_tokens(tokens, prompt_len);
  std::vector<LogitBias> bias;
  for (const auto& [id, value] : sampling.logit_bias) bias.push_back({id, value});
  SamplingRule rule;
  rule.repetition_penalty = sampling.repetition_penalty;
  rule.presence_penalty = sampling.presence_penalty;
  rule.frequency_penalty = sampling.frequency_penalty;
  rule.counts = counts.data();
  rule.num_counts = static_cast<int>(counts.size());
  rule.bias = bias.data();
  rule.num_bias = static_cast<int>(bias.size());
  rule.forbidden = end_tokens.data();
  rule.num_forbidden = static_cast<int>(end_tokens.size());
  rule.num_generated = static_cast<int>(tokens.size()) - prompt_len;
  rule.min_tokens = sampling.min_tokens;
  const std::vector<double> adjusted = oracle::adjusted_logits(logits, rule, {});
  // The repetition penalty stretches a logit, and its error with it.
  const double wide = double{error} * std::max(sampling.repetition_penalty, 1 / sampling.repetition_penalty);
  const auto own = static_cast<std::size_t>(token);
  if (sampling.temperature == 0) return adjusted[own] + 2 * wide >= *std::max_element(adjusted.begin(), adjusted.end());

  const noise::DrawKey key{*sampling.seed, sample, static_cast<std::uint32_t>(tokens.size())};
  const auto score = [&](std::size_t id, double change) {
    const noise::Words words = noise::token_block(key, static_cast<std::uint32_t>(id / 4));
    return (adjusted[id] + change) / sampling.temperature + noise::gumbel(words.word[id % 4]);
  };
  const UncertainFilter filter(adjusted, wide, sampling);
  if (!filter.may_pass(own)) return false;
  for (std::size_t other = 0; other < adjusted.size(); ++other) {
    if (other != own && filter.must_pass(other) && score(other, -wide) > score(own, wide)) return false;
  }
  return true;
}

namespace {

/// Largest difference of a log-probability at the tokens up to where two outputs part.
float largest_difference(const WholeOutput& a, const WholeOutput& b) {
  float largest = 0;
  for (std::size_t t = 0; t < std::min(a.tokens.size(), b.tokens.size()); ++t) {
    std::map<TokenId, float> known;
    for (const TokenLogprob& entry : a.logprobs[t].top) known[entry.token] = entry.logprob;
    for (const TokenLogprob& entry : b.logprobs[t].top) {
      largest = std::max(largest, std::abs(entry.logprob - known.at(entry.token)));
    }
    if (a.tokens[t] != b.tokens[t]) break;
  }
  return largest;
}

float measure_error(const std::string& device, DType dtype, bool has_windows) {
  HarnessOptions base;
  base.has_windows = has_windows;
  base.device = device;
  base.dtype = dtype;
  std::vector<Request> requests = matrix_requests(12, 1.0f, false);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling = {.temperature = i % 2 == 0 ? 0.0f : 1.0f,
                            .seed = 77 + i,
                            .max_tokens = 30,
                            .ignore_eos = true,
                            .logprobs = kMatrixVocab};
  }
  const Outputs plain = run_plain_alone(base, requests);
  float largest = 0;
  for (const MatrixSetting& setting : matrix_settings()) {
    for (const Disturbance disturbance : {Disturbance::kNone, Disturbance::kChunks}) {
      const MatrixRun seen = run_matrix_case({setting, 8, disturbance}, base, requests, plain, nullptr);
      for (std::size_t i = 0; i < plain.size(); ++i) {
        largest = std::max(largest, largest_difference(plain[i], seen.outputs[i]));
      }
    }
  }
  return largest;
}

}  // namespace

NearTieJudge::NearTieJudge(const std::string& device, DType dtype, bool has_windows)
    : target_(std::make_unique<Target>(device, dtype, has_windows)),
      error_(measure_error(device, dtype, has_windows)) {}
NearTieJudge::~NearTieJudge() = default;

bool NearTieJudge::explains(const Request& request, int sample, const WholeOutput& plain, std::size_t place,
                            TokenId seen) {
  std::vector<TokenId> tokens = request.prompt_token_ids;
  const int prompt_len = static_cast<int>(tokens.size());
  tokens.insert(tokens.end(), plain.tokens.begin(), plain.tokens.begin() + static_cast<std::ptrdiff_t>(place));
  std::vector<TokenId> end_tokens = request.sampling.stop_token_ids;
  if (!request.sampling.ignore_eos) end_tokens.push_back(kMatrixVocab - 1);
  return could_win(seen, target_->logits(tokens), error_, request.sampling, static_cast<std::uint32_t>(sample), tokens,
                   prompt_len, end_tokens);
}

void NearTieJudge::judge_output(const Request& request, int sample, const WholeOutput& plain, const WholeOutput& seen,
                                const Redraw* redraw, Verdict& verdict) {
  std::ostringstream failure;
  const std::size_t shorter = std::min(plain.tokens.size(), seen.tokens.size());
  std::size_t place = 0;
  while (place < shorter && plain.tokens[place] == seen.tokens[place]) ++place;
  const bool equal = place == plain.tokens.size() && place == seen.tokens.size();
  bool parts = !equal;
  TokenId drawn = place < seen.tokens.size() ? seen.tokens[place] : -1;
  if (redraw != nullptr && redraw->place < place) {
    // It parted where a token was drawn again; what the caller has behind that hangs on a token that it does not have.
    parts = parts || redraw->token >= 0 || plain.text != seen.text || plain.finish != seen.finish;
    if (parts) place = redraw->place, drawn = redraw->token;
  }
  for (std::size_t t = 0; t < std::min({place, plain.logprobs.size(), seen.logprobs.size()}); ++t) {
    const float difference = std::abs(plain.logprobs[t].logprob - seen.logprobs[t].logprob);
    if (!(difference <= 2 * error_))
      failure << "log-probability of token " << t << " differs by " << difference << "; ";
  }
  if (!parts) {
    if (plain.text != seen.text || plain.finish != seen.finish) failure << "equal tokens, another text or end";
  } else if (drawn < 0 && redraw != nullptr && redraw->place == place) {
    ++verdict.not_judged;
  } else {
    const float scale = request.sampling.temperature > 0 ? request.sampling.temperature : 1.0f;
    const double margin = place < plain.margins.size() ? plain.margins[place] * scale : 0.0;
    if (drawn < 0 || place >= plain.tokens.size() || !explains(request, sample, plain, place, drawn)) {
      failure << "parts at token " << place << " of " << plain.tokens.size() << ", winning margin " << margin
              << ", error of a logit " << error_;
    } else {
      ++verdict.near_ties;
      if (margin > 2 * error_ * std::max(1.0f, request.sampling.repetition_penalty)) {
        ++verdict.at_cutoffs;
      } else {
        verdict.largest_margin = std::max(verdict.largest_margin, margin);
      }
    }
  }
  if (!failure.str().empty()) {
    verdict.failure += "seed " + std::to_string(*request.sampling.seed) + " sample " + std::to_string(sample) + ": " +
                       failure.str() + '\n';
  }
}

NearTieJudge::Verdict NearTieJudge::judge(const std::vector<Request>& requests, const Outputs& plain,
                                          const MatrixRun& seen) {
  Verdict verdict;
  std::size_t output = 0;
  for (const Request& request : requests) {
    for (int sample = 0; sample < request.sampling.n; ++sample, ++output) {
      ++verdict.sequences;
      const auto redraw = seen.redraws.find(output);
      judge_output(request, sample, plain[output], seen.outputs[output],
                   redraw == seen.redraws.end() ? nullptr : &redraw->second, verdict);
    }
  }
  return verdict;
}

}  // namespace fastspec::testing
