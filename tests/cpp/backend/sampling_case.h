// Random logits, rules and trees for the sampling tests, owning their memory.
#pragma once

#include <random>
#include <vector>

#include "backend/params.h"

namespace fastspec::test {

inline std::vector<float> random_logits(int vocab_size, float spread, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(static_cast<std::size_t>(vocab_size));
  for (float& logit : logits) logit = normal(random);
  return logits;
}

/// A rule with any combination of filters, penalties, bias and forbidden tokens.
class RandomRule {
 public:
  RandomRule(int vocab_size, std::mt19937_64& random) {
    const auto pick = [&](int limit) { return static_cast<int>(random() % static_cast<std::uint64_t>(limit)); };
    constexpr float kTemperatures[] = {0.0f, 0.3f, 0.7f, 1.0f, 1.0f, 2.5f};
    rule.temperature = kTemperatures[pick(6)];
    if (pick(3) == 0) rule.top_k = 1 + pick(pick(2) == 0 ? 10 : 2 * vocab_size);
    if (pick(3) == 0) rule.top_p = static_cast<float>(pick(1000) + 1) / 1001.0f;
    if (pick(3) == 0) rule.min_p = static_cast<float>(pick(1000)) / 2000.0f;
    if (pick(2) == 0) {
      rule.repetition_penalty = 0.5f + static_cast<float>(pick(100)) / 50.0f;
      if (pick(2) == 0) rule.presence_penalty = static_cast<float>(pick(200)) / 50.0f - 2.0f;
      if (pick(2) == 0) rule.frequency_penalty = static_cast<float>(pick(200)) / 100.0f - 1.0f;
    }
    for (TokenId token = 0; token < vocab_size; ++token) {
      if (pick(5) == 0) counts.push_back({token, pick(3), pick(2) == 0});
    }
    for (int i = pick(4); i > 0; --i) bias.push_back({pick(vocab_size), static_cast<float>(pick(80)) / 10.0f - 4.0f});
    if (pick(2) == 0) {
      forbidden = {pick(vocab_size), pick(vocab_size)};
      rule.num_generated = pick(6);
      rule.min_tokens = pick(10);
    }
    rule.seed = random();
    rule.sample_index = static_cast<std::uint32_t>(pick(4));
    rule.counts = counts.data();
    rule.num_counts = static_cast<int>(counts.size());
    rule.bias = bias.data();
    rule.num_bias = static_cast<int>(bias.size());
    rule.forbidden = forbidden.data();
    rule.num_forbidden = static_cast<int>(forbidden.size());
  }
  RandomRule(const RandomRule&) = delete;
  RandomRule& operator=(const RandomRule&) = delete;

  SamplingRule rule;
  std::vector<TokenCount> counts;
  std::vector<LogitBias> bias;
  std::vector<TokenId> forbidden;
};

/// A tree for accept() with room for its results.
struct TreeCase {
  TreeCase(std::vector<TokenId> tree_tokens, std::vector<std::int32_t> tree_parents, const SamplingRule& rule,
           int top_logprobs = 0)
      : tokens(std::move(tree_tokens)), parents(std::move(tree_parents)) {
    const auto nodes = tokens.size();
    for (std::size_t node = 0; node < nodes; ++node) rows.push_back(static_cast<std::int32_t>(node));
    path.resize(nodes, -7);
    sampled.resize(nodes + 1);
    top.resize((nodes + 1) * static_cast<std::size_t>(top_logprobs));
    tree = {static_cast<int>(nodes), tokens.data(), parents.data(), rows.data(), 100, rule, true, top_logprobs};
    result.num_accepted = -1;
    result.path = path.data();
    result.sampled = sampled.data();
    if (top_logprobs > 0) result.top_logprobs = top.data();
  }
  TreeCase(const TreeCase&) = delete;
  TreeCase& operator=(const TreeCase&) = delete;

  std::vector<TokenId> tokens;
  std::vector<std::int32_t> parents, rows, path;
  std::vector<SampledToken> sampled;
  std::vector<TopLogprob> top;
  AcceptTree tree;
  AcceptResult result;
};

}  // namespace fastspec::test
