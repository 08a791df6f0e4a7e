// See sampling_row.h.
#include "backend/cpu/sampling_row.h"

#include <cmath>
#include <limits>

#include "base/check.h"

namespace fastspec::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kBlock = 4096;  // logits looked through between two looks at the threshold
constexpr int kPart = 256;    // tokens scored between two looks at the threshold

bool has_penalty(const SamplingRule& rule) {
  return rule.repetition_penalty != 1.0f || rule.presence_penalty != 0.0f || rule.frequency_penalty != 0.0f;
}

/// Repetition divides or multiplies by sign over prompt and output; presence and frequency subtract, over the output.
float penalised(float logit, const SamplingRule& rule, int in_output, bool in_prompt) {
  if (in_output == 0 && !in_prompt) return logit;
  logit = logit > 0 ? logit / rule.repetition_penalty : logit * rule.repetition_penalty;
  if (in_output == 0) return logit;
  return logit - rule.frequency_penalty * static_cast<float>(in_output) - rule.presence_penalty;
}

/// Noise words of single columns; neighbours share a block.
class NoiseReader {
 public:
  explicit NoiseReader(const RowDraw& draw)
      : key_{draw.rule->seed, draw.rule->sample_index, draw.position}, token_ids_(draw.token_ids) {}

  std::uint32_t word(TokenId column) {
    const TokenId token = token_ids_ == nullptr ? column : token_ids_[column];
    const std::uint32_t block = static_cast<std::uint32_t>(token) / 4;
    if (!valid_ || block != block_) {
      words_ = noise::token_block(key_, block);
      block_ = block;
      valid_ = true;
    }
    return words_.word[static_cast<std::uint32_t>(token) % 4];
  }

 private:
  noise::DrawKey key_;
  const TokenId* token_ids_;
  noise::Words words_{};
  std::uint32_t block_ = 0;
  bool valid_ = false;
};

}  // namespace

std::optional<SampledToken> RowSampler::draw(const RowDraw& draw) {
  if (!begin(draw, false)) return std::nullopt;
  SampledToken result;
  float top = adjusted_.top;
  float second = adjusted_.second;
  result.token = adjusted_.token;
  if (!greedy_) {
    filter();
    score(2);
    result.token = best_[0].token;
    top = best_[0].score;
    second = best_.size() > 1 ? best_[1].score : -kInfinity;
  }
  result.margin = second == top ? 0.0f : top - second;  // equal infinities have no difference
  if (draw.wants_logprob) result.logprob = logprob(result.token);
  return result;
}

std::span<const ScoredToken> RowSampler::best(const RowDraw& draw, int count) {
  if (!begin(draw, true)) return {};
  if (greedy_) {
    select_top(logits_, count, false);
  } else {
    filter();
    score(count);
  }
  return best_;
}

bool RowSampler::begin(const RowDraw& draw, bool with_scores_sum) {
  draw_ = draw;
  filtered_ = false;
  score_sum_ = 0;
  raw_ = kernels_->summarize(draw.logits, draw.vocab_size, draw.wants_logprob || with_scores_sum);
  if (raw_.has_nan) return false;
  logits_ = draw.logits;
  adjusted_ = raw_;
  adjust(with_scores_sum);
  if (adjusted_.has_nan || adjusted_.top == -kInfinity) return false;
  greedy_ = draw.rule->temperature == 0 || adjusted_.top == kInfinity;
  return true;
}

void RowSampler::adjust(bool with_sum) {
  const SamplingRule& rule = *draw_.rule;
  const auto generated = rule.num_generated + static_cast<std::int64_t>(draw_.path.size());
  const bool forbids = rule.num_forbidden > 0 && generated < rule.min_tokens;
  const bool penalises = has_penalty(rule) && (rule.num_counts > 0 || !draw_.path.empty());
  if (!forbids && !penalises && rule.num_bias == 0) return;

  const auto check_token = [&](TokenId token, const char* what) {
    FS_CHECK(token >= 0 && token < draw_.vocab_size, "sampling: ", what, " token ", token, ", vocabulary ",
             draw_.vocab_size);
    return static_cast<std::size_t>(token);
  };
  adjusted_logits_.assign(draw_.logits, draw_.logits + draw_.vocab_size);
  for (int i = 0; penalises && i < rule.num_counts; ++i) check_token(rule.counts[i].token, "history");
  for (const TokenId token : draw_.path) check_token(token, "path");
  if (penalises) apply_penalties();
  for (int i = 0; i < rule.num_bias; ++i) {
    adjusted_logits_[check_token(rule.bias[i].token, "logit_bias")] += rule.bias[i].bias;
  }
  for (int i = 0; forbids && i < rule.num_forbidden; ++i) {
    adjusted_logits_[check_token(rule.forbidden[i], "forbidden")] = -kInfinity;
  }
  logits_ = adjusted_logits_.data();
  adjusted_ = kernels_->summarize(logits_, draw_.vocab_size, with_sum);
}

void RowSampler::apply_penalties() {
  const SamplingRule& rule = *draw_.rule;
  // Tokens of the path with their number of occurrences, sorted by token.
  path_counts_.clear();
  for (const TokenId token : draw_.path) path_counts_.push_back({token, 1, false});
  std::sort(path_counts_.begin(), path_counts_.end(), [](const auto& a, const auto& b) { return a.token < b.token; });
  std::size_t unique = 0;
  for (const TokenCount& entry : path_counts_) {
    if (unique > 0 && path_counts_[unique - 1].token == entry.token) {
      path_counts_[unique - 1].in_output += 1;
    } else {
      path_counts_[unique++] = entry;
    }
  }
  path_counts_.resize(unique);

  for (int i = 0; i < rule.num_counts; ++i) {
    TokenCount entry = rule.counts[i];
    const auto found = std::lower_bound(path_counts_.begin(), path_counts_.end(), entry.token,
                                        [](const TokenCount& a, TokenId token) { return a.token < token; });
    if (found != path_counts_.end() && found->token == entry.token) {
      entry.in_output += found->in_output;
      found->in_output = 0;  // done here, not again below
    }
    float& logit = adjusted_logits_[static_cast<std::size_t>(entry.token)];
    logit = penalised(logit, rule, entry.in_output, entry.in_prompt);
  }
  for (const TokenCount& entry : path_counts_) {
    float& logit = adjusted_logits_[static_cast<std::size_t>(entry.token)];
    logit = penalised(logit, rule, entry.in_output, false);
  }
}

void RowSampler::filter() {
  filter_top_k();
  filter_top_p();
  filter_min_p();
}

void RowSampler::filter_top_k() {
  const int top_k = draw_.rule->top_k;
  if (top_k <= 0 || top_k >= draw_.vocab_size) return;
  select_top(logits_, top_k, false);
  candidates_.clear();
  for (const ScoredToken& scored : best_) candidates_.push_back(scored.token);
  filtered_ = true;
}

void RowSampler::filter_top_p() {
  const float top_p = draw_.rule->top_p;
  if (top_p >= 1.0f) return;
  const float temperature = draw_.rule->temperature;
  const auto weight = [&](float logit) { return std::exp(static_cast<double>((logit - adjusted_.top) / temperature)); };

  double mass = 0;
  if (filtered_) {  // after top-k: best_ is the set, best first
    for (const ScoredToken& scored : best_) mass += weight(scored.score);
  } else {
    const float scale = std::min(1.0f / temperature, std::numeric_limits<float>::max());
    mass = kernels_->sum_exp(logits_, draw_.vocab_size, adjusted_.top, scale);
    // Collect the most probable tokens, reaching deeper until they carry enough; the last reach takes every possible
    // one.
    for (const float reach : {2.0f, 4.0f, 8.0f, 16.0f, kInfinity}) {
      const float lowest = reach == kInfinity ? -kInfinity : adjusted_.top - reach * temperature;
      best_.clear();
      double reached = 0;
      visit_candidates(lowest, [&](TokenId token, float logit) {
        best_.push_back({token, logit});
        reached += weight(logit);
        return lowest;
      });
      if (reached >= top_p * mass) break;
    }
    std::sort(best_.begin(), best_.end(), better);
  }
  candidates_.clear();
  double cumulative = 0;
  for (const ScoredToken& scored : best_) {
    candidates_.push_back(scored.token);
    cumulative += weight(scored.score);
    if (cumulative >= top_p * mass) break;
  }
  filtered_ = true;
}

void RowSampler::filter_min_p() {
  const float min_p = draw_.rule->min_p;
  if (min_p <= 0.0f) return;
  // p >= min_p * p_max, in logits.
  const float lowest = adjusted_.top + draw_.rule->temperature * std::log(std::min(min_p, 1.0f));
  if (filtered_) {
    std::erase_if(candidates_, [&](TokenId token) { return logits_[token] < lowest; });
    return;
  }
  std::vector<TokenId>& kept = candidates_;
  kept.clear();
  visit_candidates(std::nextafter(lowest, -kInfinity), [&](TokenId token, float logit) {
    if (logit >= lowest) kept.push_back(token);
    return lowest;
  });
  filtered_ = true;
}

/// Calls visit(token, logit) for the tokens of the filtered set, or of the vocabulary in ascending order, whose logits
/// are above a threshold: `lowest_logit` first, then what visit() returned last. Tokens at -inf are never visited;
/// tokens at or below the threshold may be.
template <typename Visit>
void RowSampler::visit_candidates(float lowest_logit, Visit&& visit) {
  if (filtered_) {
    for (const TokenId token : candidates_) {
      if (logits_[token] > -kInfinity) visit(token, logits_[token]);
    }
    return;
  }
  gathered_.resize(kBlock);
  float threshold = lowest_logit;
  for (int first = 0; first < draw_.vocab_size; first += kBlock) {
    const int size = std::min(kBlock, draw_.vocab_size - first);
    const int count = kernels_->gather_above(logits_ + first, size, threshold, false, first, gathered_.data());
    for (int i = 0; i < count; ++i) {
      const TokenId token = gathered_[static_cast<std::size_t>(i)];
      threshold = visit(token, logits_[token]);
    }
  }
}

/// The `count` largest logits into best_, best first; those at -inf only where `impossible_too`.
void RowSampler::select_top(const float* logits, int count, bool impossible_too) {
  gathered_.resize(kBlock);
  TopTokens top(count, best_);
  for (int first = 0; first < draw_.vocab_size; first += kBlock) {
    const int size = std::min(kBlock, draw_.vocab_size - first);
    // A later token loses a tie, so once there are enough only larger logits matter.
    const bool inclusive = impossible_too && static_cast<int>(best_.size()) < count;
    const int found = kernels_->gather_above(logits + first, size, top.threshold(), inclusive, first, gathered_.data());
    for (int i = 0; i < found; ++i) {
      const TokenId token = gathered_[static_cast<std::size_t>(i)];
      top.offer({token, logits[token]});
    }
  }
  top.sort();
}

/// Visits the tokens [first, first + size) of an unfiltered row with their noise words: visit(words, first, size).
template <typename Visit>
void RowSampler::visit_noise(Visit&& visit) {
  // The kernels read whole vectors past the last token.
  words_.resize(kBlock + 64);
  const noise::DrawKey key{draw_.rule->seed, draw_.rule->sample_index, draw_.position};
  for (int first = 0; first < draw_.vocab_size; first += kBlock) {
    const int size = std::min(kBlock, draw_.vocab_size - first);
    if (draw_.token_ids == nullptr) {
      kernels_->noise_words(key, static_cast<std::uint32_t>(first) / 4, (size + 3) / 4, words_.data());
    } else {
      gather_noise(key, {draw_.token_ids + first, static_cast<std::size_t>(size)});
    }
    visit(first, size);
  }
}

/// Noise words of ascending tokens: those of all tokens between are made too, which costs less than one by one.
void RowSampler::gather_noise(const noise::DrawKey& key, std::span<const TokenId> tokens) {
  const std::uint32_t first_block = static_cast<std::uint32_t>(tokens.front()) / 4;
  const std::uint32_t num_blocks = static_cast<std::uint32_t>(tokens.back()) / 4 + 1 - first_block;
  spread_words_.resize(4 * std::size_t{num_blocks} + 64);
  kernels_->noise_words(key, first_block, static_cast<int>(num_blocks), spread_words_.data());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    words_[i] = spread_words_[static_cast<std::uint32_t>(tokens[i]) - 4 * first_block];
  }
}

/// The `count` best perturbed scores of the filtered set into best_. Over a whole vocabulary exact noise is computed
/// only for tokens that fast, bounded noise does not rule out, which changes nothing in the result.
void RowSampler::score(int count) {
  const float temperature = draw_.rule->temperature;
  const float top_logit = adjusted_.top;
  TopTokens top(count, best_);
  const auto offer = [&](TokenId token, std::uint32_t word) {
    top.offer({token, (logits_[token] - top_logit) / temperature + noise::gumbel(word)});
  };
  if (filtered_) {
    NoiseReader reader(draw_);
    for (const TokenId token : candidates_) {
      if (logits_[token] > -kInfinity) offer(token, reader.word(token));
    }
  } else {
    const float scale = std::min(1.0f / temperature, std::numeric_limits<float>::max());
    gathered_.resize(kBlock);
    visit_noise([&](int first, int size) {
      // In parts, so that the threshold is worth something from the second part on.
      for (int begin = 0; begin < size; begin += kPart) {
        const int part = std::min(kPart, size - begin);
        const int found = kernels_->gather_perturbed(logits_ + first + begin, words_.data() + begin, part, top_logit,
                                                     scale, top.threshold(), first + begin, gathered_.data());
        for (int i = 0; i < found; ++i) {
          const TokenId token = gathered_[static_cast<std::size_t>(i)];
          offer(token, words_[static_cast<std::size_t>(token - first)]);
        }
      }
    });
  }
  top.sort();
}

double RowSampler::perturbed_sum(float best_score) {
  const float temperature = draw_.rule->temperature;
  double sum = 0;
  if (filtered_) {
    NoiseReader reader(draw_);
    for (const TokenId token : candidates_) {
      const float base = (logits_[token] - adjusted_.top) / temperature;
      // exp(base + g) with g = -log(-log(u)).
      sum += std::exp(static_cast<double>(base - best_score)) / -std::log(noise::uniform(reader.word(token)));
    }
    return sum;
  }
  const float scale = std::min(1.0f / temperature, std::numeric_limits<float>::max());
  visit_noise([&](int first, int size) {
    sum += kernels_->perturbed_sum(logits_ + first, words_.data(), size, adjusted_.top, scale, best_score);
  });
  return sum;
}

float RowSampler::confidence(const ScoredToken& scored) {
  const float best_score = best_.front().score;
  if (score_sum_ == 0) {
    if (greedy_ && best_score == kInfinity) {
      for (int i = 0; i < draw_.vocab_size; ++i) score_sum_ += logits_[i] == kInfinity ? 1 : 0;
    } else {
      score_sum_ = greedy_ ? static_cast<double>(adjusted_.sum) : perturbed_sum(best_score);
    }
  }
  if (best_score == kInfinity) return scored.score == kInfinity ? static_cast<float>(1 / score_sum_) : 0.0f;
  return static_cast<float>(std::exp(static_cast<double>(scored.score - best_score)) / score_sum_);
}

float RowSampler::logprob(TokenId token) const {
  const float logit = draw_.logits[token];
  if (raw_.top == kInfinity) {
    if (logit != kInfinity) return -kInfinity;
    int count = 0;
    for (int i = 0; i < draw_.vocab_size; ++i) count += draw_.logits[i] == kInfinity ? 1 : 0;
    return -std::log(static_cast<float>(count));
  }
  return (logit - raw_.top) - std::log(raw_.sum);
}

void RowSampler::top_logprobs(int count, TopLogprob* result) {
  FS_CHECK(count <= draw_.vocab_size, "sampling: ", count, " top logprobs of a vocabulary of ", draw_.vocab_size);
  select_top(draw_.logits, count, true);
  for (int i = 0; i < count; ++i) {
    const TokenId token = best_[static_cast<std::size_t>(i)].token;
    result[i] = {token, logprob(token)};
  }
}

}  // namespace fastspec::cpu
