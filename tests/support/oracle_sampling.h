// The oracle of sampling: whole-vocabulary arrays in double, sorted where a filter needs order, no shortcuts. Written
// from the comments of backend/params.h; shares only the noise generator with the backend, which has published test
// vectors.
#pragma once

#include <span>
#include <vector>

#include "backend/params.h"

namespace fastspec::oracle {

/// Logits after penalties, bias and forbidden tokens, [vocab_size].
std::vector<double> adjusted_logits(std::span<const float> logits, const SamplingRule& rule,
                                    std::span<const TokenId> path);

/// Which tokens top-k, top-p and min-p leave, given adjusted logits.
std::vector<bool> filtered_set(const std::vector<double>& logits, const SamplingRule& rule);

/// logit / temperature + noise for the tokens left, -inf for the others; the adjusted logits at temperature 0.
std::vector<double> scores(std::span<const float> logits, const SamplingRule& rule, std::span<const TokenId> path,
                           std::uint32_t position);

/// Softmax.
std::vector<double> probabilities(const std::vector<double>& scores);

/// Indices by descending value, ties to the lower index.
std::vector<TokenId> ranking(const std::vector<double>& values);

}  // namespace fastspec::oracle
