// How often each token occurs in one sequence, for penalties. Kept only where a penalty is on.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "backend/params.h"

namespace fastspec {

class TokenHistory {
 public:
  void add_prompt(TokenId token) { entry(token).in_prompt = true; }
  /// Makes room for a token that add_output() may follow for.
  void prepare(TokenId token) { entry(token); }
  void add_output(TokenId token) noexcept { ++entry(token).in_output; }
  void remove_output(TokenId token) { --entry(token).in_output; }

  std::span<const TokenCount> counts() const { return counts_; }

 private:
  TokenCount& entry(TokenId token) {
    const auto [place, inserted] = places_.try_emplace(token, counts_.size());
    if (inserted) counts_.push_back({.token = token, .in_output = 0, .in_prompt = false});
    return counts_[place->second];
  }

  std::vector<TokenCount> counts_;
  std::unordered_map<TokenId, std::size_t> places_;
};

}  // namespace fastspec
