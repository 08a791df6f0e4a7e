// Growth, end and output of one sample.
#include "engine/sequence.h"

#include <algorithm>

#include "base/check.h"

namespace fastspec {

namespace {

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Sequence::Sequence(SeqId id, std::shared_ptr<const RequestState> request, int sample,
                   std::shared_ptr<const Tokenizer> tokenizer)
    : id_(id),
      request_(std::move(request)),
      sample_(sample),
      tokens_(request_->prompt),
      visible_len_(prompt_len()),
      exact_len_(prompt_len()),
      text_(std::move(tokenizer), request_->sampling.stop, request_->sampling.min_tokens,
            request_->sampling.skip_special_tokens) {
  tokens_.reserve(request_->prompt.size() + request_->max_tokens);
  generated_.reserve(request_->max_tokens);
  stats.prompt_tokens = prompt_len();
  if (wants_penalties()) {
    for (const TokenId token : request_->prompt) history_.add_prompt(token);
  }
}

bool Sequence::wants_penalties() const {
  const SamplingParams& sampling = request_->sampling;
  return sampling.repetition_penalty != 1.0f || sampling.presence_penalty != 0.0f || sampling.frequency_penalty != 0.0f;
}

SamplingRule Sequence::rule() const {
  return rule_of(history_.counts(), num_generated());
}

SamplingRule Sequence::rule_before_provisional() {
  const auto counts = history_.counts();
  exact_counts_.assign(counts.begin(), counts.end());
  for (int position = shown_len(); position < len() && wants_penalties(); ++position) {
    const auto is_it = [&](const TokenCount& count) { return count.token == tokens_[position]; };
    --std::find_if(exact_counts_.begin(), exact_counts_.end(), is_it)->in_output;
  }
  return rule_of(exact_counts_, shown_len() - prompt_len());
}

SamplingRule Sequence::rule_of(std::span<const TokenCount> counts, int num_generated) const {
  const SamplingParams& sampling = request_->sampling;
  SamplingRule rule;
  rule.temperature = sampling.temperature;
  rule.top_k = sampling.top_k;
  rule.top_p = sampling.top_p;
  rule.min_p = sampling.min_p;
  rule.repetition_penalty = sampling.repetition_penalty;
  rule.presence_penalty = sampling.presence_penalty;
  rule.frequency_penalty = sampling.frequency_penalty;
  rule.seed = request_->seed;
  rule.sample_index = static_cast<std::uint32_t>(sample_);
  rule.counts = counts.data();
  rule.num_counts = static_cast<int>(counts.size());
  rule.bias = request_->logit_bias.data();
  rule.num_bias = static_cast<int>(request_->logit_bias.size());
  rule.forbidden = request_->end_tokens.data();
  rule.num_forbidden = static_cast<int>(request_->end_tokens.size());
  rule.num_generated = num_generated;
  rule.min_tokens = sampling.min_tokens;
  return rule;
}

void Sequence::find_end(Acceptance& acceptance, KvMode mode, double min_margin) {
  const bool is_provisional = mode == KvMode::kSparse && request_->guarantee == Guarantee::kExact;
  if (acceptance.finish == FinishReason::kError) {
    acceptance.needs_dense = is_provisional;
    if (is_provisional) acceptance.finish = FinishReason::kNone;
    return;
  }
  const std::vector<TokenId>& end_tokens = request_->end_tokens;
  const int first = (mode == KvMode::kDense ? shown_len() : len()) - prompt_len();
  const auto unsure = std::find_if(acceptance.tokens.begin(), acceptance.tokens.end(), [&](const auto& token) {
    return mode == KvMode::kSparse && token.margin < min_margin;
  });
  const auto sure = static_cast<std::size_t>(unsure - acceptance.tokens.begin());
  std::size_t kept = 0;
  while (kept < sure && acceptance.finish == FinishReason::kNone) {
    const TokenId token = acceptance.tokens[kept].token;
    const int index = first + static_cast<int>(kept);
    const bool text_stops = !request_->sampling.stop.empty() && text_.push(index, token);
    if (wants_penalties()) history_.prepare(token);
    ++kept;
    if (text_stops || std::binary_search(end_tokens.begin(), end_tokens.end(), token)) {
      acceptance.finish = FinishReason::kStop;
    } else if (index + 1 >= request_->max_tokens) {
      acceptance.finish = FinishReason::kLength;
    }
  }
  const bool is_unsure = unsure != acceptance.tokens.end() && acceptance.finish == FinishReason::kNone;
  acceptance.tokens.resize(kept);
  acceptance.num_drafts_accepted = static_cast<int>(std::min(acceptance.path.size(), kept));
  // The last token is a root to be: its K/V is not kept, whether it was drafted or not.
  acceptance.path.resize(std::min(acceptance.path.size(), std::max<std::size_t>(kept, 1) - 1));
  acceptance.needs_dense = is_unsure || (is_provisional && acceptance.finish != FinishReason::kNone);
  if (is_provisional) acceptance.finish = FinishReason::kNone;
}

void Sequence::commit(Acceptance& acceptance, KvMode mode) noexcept {
  if (mode == KvMode::kDense) drop_from(shown_len());
  const bool is_exact = mode == KvMode::kDense && exact_len_ == len();
  for (CommittedToken& token : acceptance.tokens) {
    tokens_.push_back(token.token);
    if (wants_penalties()) history_.add_output(token.token);
    generated_.push_back(std::move(token));
  }
  if (is_exact) exact_len_ = len();
}

void Sequence::truncate(int length) {
  FS_CHECK(length >= prompt_len(), "truncate to ", length, " inside a prompt of ", prompt_len());
  drop_from(std::min(length, shown_len()));
  exact_len_ = std::min(exact_len_, length);
  num_in_text_ = std::min(num_in_text_, num_generated());
}

void Sequence::drop_from(int length) {
  while (len() > length) {
    if (wants_penalties()) history_.remove_output(tokens_.back());
    tokens_.pop_back();
    generated_.pop_back();
  }
}

Output Sequence::take_output(FinishReason finish) {
  Output output;
  output.request = request_->id;
  output.sample = sample_;
  output.seed = request_->seed;
  output.finish_reason = finish;
  output.error = error;
  const int shown = shown_len();
  if (shown > exact_len_) output.guarantee = Guarantee::kSparse;
  for (int position = visible_len_; position < shown; ++position) {
    CommittedToken& token = generated_[position - prompt_len()];
    output.token_ids.push_back(token.token);
    output.min_margin = std::min(output.min_margin, token.margin);
    if (request_->sampling.logprobs) output.logprobs.push_back({token.logprob, std::move(token.top)});
  }
  if (visible_len_ == prompt_len() && shown > prompt_len()) {
    stats.seconds_to_first_token = seconds_since(request_->submitted);
  }
  visible_len_ = std::max(visible_len_, shown);
  const int num_shown = shown - prompt_len();
  for (; num_in_text_ < num_shown; ++num_in_text_) text_.push(num_in_text_, generated_[num_in_text_].token);
  output.text = text_.take(num_shown, finish != FinishReason::kNone);
  stats.completion_tokens = num_shown;
  if (finish != FinishReason::kNone) {
    stats.seconds = seconds_since(request_->submitted);
    output.stats = stats;
  }
  return output;
}

}  // namespace fastspec
