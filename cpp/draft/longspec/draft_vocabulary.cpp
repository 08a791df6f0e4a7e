// See draft_vocabulary.h.
#include "draft/longspec/draft_vocabulary.h"

#include <algorithm>

#include "base/check.h"

namespace fastspec {

bool DraftVocabulary::contains(TokenId token) const {
  return std::binary_search(ids_.begin(), ids_.end(), token);
}

TokenId DraftVocabulary::column(TokenId token) const {
  if (ids_.empty()) return token;
  const auto found = std::lower_bound(ids_.begin(), ids_.end(), token);
  FS_CHECK(found != ids_.end() && *found == token, "token ", token, " is not in the draft vocabulary");
  return static_cast<TokenId>(found - ids_.begin());
}

void DraftVocabulary::to_columns(const SamplingRule& rule, Rule& result) const {
  result.rule = rule;
  if (ids_.empty()) return;
  result.counts.clear();
  result.bias.clear();
  result.forbidden.clear();
  for (TokenCount count : std::span(rule.counts, static_cast<std::size_t>(rule.num_counts))) {
    if (!contains(count.token)) continue;
    count.token = column(count.token);
    result.counts.push_back(count);
  }
  for (LogitBias bias : std::span(rule.bias, static_cast<std::size_t>(rule.num_bias))) {
    if (!contains(bias.token)) continue;
    bias.token = column(bias.token);
    result.bias.push_back(bias);
  }
  for (const TokenId token : std::span(rule.forbidden, static_cast<std::size_t>(rule.num_forbidden))) {
    if (contains(token)) result.forbidden.push_back(column(token));
  }
  result.rule.counts = result.counts.data();
  result.rule.num_counts = static_cast<int>(result.counts.size());
  result.rule.bias = result.bias.data();
  result.rule.num_bias = static_cast<int>(result.bias.size());
  result.rule.forbidden = result.forbidden.data();
  result.rule.num_forbidden = static_cast<int>(result.forbidden.size());
}

}  // namespace fastspec
