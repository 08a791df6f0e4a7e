// See device_rules.h.
#include "backend/cuda/device_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace fastspec::cuda {

void check_token(TokenId token, int vocab_size, const char* what) {
  FS_CHECK(token >= 0 && token < vocab_size, "sampling: ", what, " token ", token, ", vocabulary ", vocab_size);
}

void DeviceRules::clear() {
  rules_.clear();
  firsts_.clear();
  counts_.clear();
  bias_.clear();
  forbidden_.clear();
}

int DeviceRules::add(const SamplingRule& rule, int vocab_size) {
  firsts_.push_back({counts_.size(), bias_.size(), forbidden_.size()});
  DeviceRule packed{};
  packed.temperature = rule.temperature;
  packed.top_k = rule.top_k;
  packed.top_p = rule.top_p;
  packed.min_p_offset = rule.min_p > 0 ? rule.temperature * std::log(std::min(rule.min_p, 1.0f))
                                       : -std::numeric_limits<float>::infinity();
  packed.repetition_penalty = rule.repetition_penalty;
  packed.presence_penalty = rule.presence_penalty;
  packed.frequency_penalty = rule.frequency_penalty;
  packed.sample_index = rule.sample_index;
  packed.seed = rule.seed;
  packed.penalises = rule.repetition_penalty != 1.0f || rule.presence_penalty != 0.0f || rule.frequency_penalty != 0.0f;
  packed.filters = rule.temperature != 0 && (rule.top_k > 0 || rule.top_p < 1.0f);  // min-p is no search
  packed.is_used = true;
  if (packed.penalises) {
    packed.num_counts = rule.num_counts;
    for (int i = 0; i < rule.num_counts; ++i) check_token(rule.counts[i].token, vocab_size, "history");
    counts_.insert(counts_.end(), rule.counts, rule.counts + rule.num_counts);
  }
  packed.num_bias = rule.num_bias;
  for (int i = 0; i < rule.num_bias; ++i) check_token(rule.bias[i].token, vocab_size, "logit_bias");
  bias_.insert(bias_.end(), rule.bias, rule.bias + rule.num_bias);
  std::stable_sort(bias_.begin() + static_cast<std::ptrdiff_t>(firsts_.back().bias), bias_.end(),
                   [](const LogitBias& a, const LogitBias& b) { return a.token < b.token; });
  packed.num_forbidden = rule.num_forbidden;
  packed.num_forbidding = std::max(0, rule.min_tokens - rule.num_generated);
  for (int i = 0; i < rule.num_forbidden; ++i) check_token(rule.forbidden[i], vocab_size, "forbidden");
  forbidden_.insert(forbidden_.end(), rule.forbidden, rule.forbidden + rule.num_forbidden);
  rules_.push_back(packed);
  return static_cast<int>(rules_.size()) - 1;
}

void DeviceRules::point_to(const TokenCount* counts, const LogitBias* bias, const TokenId* forbidden) {
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    rules_[i].counts = counts + firsts_[i].count;
    rules_[i].bias = bias + firsts_[i].bias;
    rules_[i].forbidden = forbidden + firsts_[i].forbidden;
  }
}

}  // namespace fastspec::cuda
