// A pruned vocabulary: the tokens that the drafter's LM head has columns for. Changes proposals only. Host only.
#pragma once

#include <span>
#include <vector>

#include "backend/params.h"
#include "base/types.h"

namespace fastspec {

class DraftVocabulary {
 public:
  /// @param ids ascending; empty: every token is its own column.
  explicit DraftVocabulary(std::vector<TokenId> ids) : ids_(std::move(ids)) {}

  TokenId token(TokenId column) const { return ids_.empty() ? column : ids_[static_cast<std::size_t>(column)]; }
  /// Of a token that is in the vocabulary.
  TokenId column(TokenId token) const;

  /// A rule that speaks of columns, and the arrays it points to.
  struct Rule {
    SamplingRule rule;
    std::vector<TokenCount> counts;
    std::vector<LogitBias> bias;
    std::vector<TokenId> forbidden;
  };
  /// What the rule says of tokens without a column is left out: they are not proposed anyway.
  void to_columns(const SamplingRule& rule, Rule& result) const;

 private:
  bool contains(TokenId token) const;

  std::vector<TokenId> ids_;
};

}  // namespace fastspec
