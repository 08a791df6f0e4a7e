// See oracle_sampling.h.
#include "support/oracle_sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "backend/noise.h"

namespace fastspec::oracle {
namespace {
constexpr double kInfinity = std::numeric_limits<double>::infinity();
}

std::vector<double> adjusted_logits(std::span<const float> logits, const SamplingRule& rule,
                                    std::span<const TokenId> path) {
  std::vector<double> result(logits.begin(), logits.end());
  std::map<TokenId, int> output;
  std::map<TokenId, bool> seen;
  for (int i = 0; i < rule.num_counts; ++i) {
    if (rule.counts[i].in_output > 0) output[rule.counts[i].token] += rule.counts[i].in_output;
    if (rule.counts[i].in_output > 0 || rule.counts[i].in_prompt) seen[rule.counts[i].token] = true;
  }
  for (const TokenId token : path) {
    output[token] += 1;
    seen[token] = true;
  }
  for (const auto& [token, yes] : seen) {
    double& logit = result[static_cast<std::size_t>(token)];
    if (yes) logit = logit > 0 ? logit / rule.repetition_penalty : logit * rule.repetition_penalty;
  }
  for (const auto& [token, count] : output) {
    result[static_cast<std::size_t>(token)] -= rule.presence_penalty + rule.frequency_penalty * count;
  }
  for (int i = 0; i < rule.num_bias; ++i) result[static_cast<std::size_t>(rule.bias[i].token)] += rule.bias[i].bias;
  if (rule.num_generated + static_cast<int>(path.size()) < rule.min_tokens) {
    for (int i = 0; i < rule.num_forbidden; ++i) result[static_cast<std::size_t>(rule.forbidden[i])] = -kInfinity;
  }
  return result;
}

std::vector<double> probabilities(const std::vector<double>& values) {
  const double top = *std::max_element(values.begin(), values.end());
  std::vector<double> result;
  double sum = 0;
  for (const double value : values) {
    result.push_back(std::exp(value - top));
    sum += result.back();
  }
  for (double& value : result) value /= sum;
  return result;
}

std::vector<TokenId> ranking(const std::vector<double>& values) {
  std::vector<TokenId> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  return order;
}

std::vector<bool> filtered_set(const std::vector<double>& logits, const SamplingRule& rule) {
  const std::vector<TokenId> order = ranking(logits);
  std::vector<double> tempered;
  for (const double logit : logits) tempered.push_back(logit / rule.temperature);
  if (rule.top_k > 0) {
    for (std::size_t i = static_cast<std::size_t>(rule.top_k); i < order.size(); ++i) {
      tempered[static_cast<std::size_t>(order[i])] = -kInfinity;
    }
  }
  if (rule.top_p < 1) {
    const std::vector<double> probability = probabilities(tempered);
    double cumulative = 0;
    bool full = false;
    for (const TokenId token : order) {
      if (full) tempered[static_cast<std::size_t>(token)] = -kInfinity;
      cumulative += probability[static_cast<std::size_t>(token)];
      full = full || cumulative >= rule.top_p;
    }
  }
  const std::vector<double> probability = probabilities(tempered);
  const double best = *std::max_element(probability.begin(), probability.end());
  std::vector<bool> left;
  for (const double p : probability) left.push_back(p > 0 && p >= rule.min_p * best);
  return left;
}

std::vector<double> scores(std::span<const float> logits, const SamplingRule& rule, std::span<const TokenId> path,
                           std::uint32_t position) {
  std::vector<double> result = adjusted_logits(logits, rule, path);
  if (rule.temperature == 0) return result;
  const std::vector<bool> left = filtered_set(result, rule);
  for (std::size_t token = 0; token < result.size(); ++token) {
    const noise::Words words =
        noise::token_block({rule.seed, rule.sample_index, position}, static_cast<std::uint32_t>(token / 4));
    const double uniform = (static_cast<double>(words.word[token % 4] / 256) + 0.5) / 16777216.0;
    result[token] = left[token] ? result[token] / rule.temperature - std::log(-std::log(uniform)) : -kInfinity;
  }
  return result;
}

}  // namespace fastspec::oracle
