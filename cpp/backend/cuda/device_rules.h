// Sampling rules as kernels read them. Pure host code: no device.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/params.h"
#include "sampling/sampling.h"

namespace fastspec::cuda {

/// Rules, and the arrays that they point to once those have a place on the device.
class DeviceRules {
 public:
  /// Empties every array and keeps its memory.
  void clear();
  /// @returns the rule's number. @throws Error(kInternal) for tokens outside the vocabulary.
  int add(const SamplingRule& rule, int vocab_size);
  /// Lets the rules point to these copies of counts(), bias() and forbidden().
  void point_to(const TokenCount* counts, const LogitBias* bias, const TokenId* forbidden);

  const std::vector<DeviceRule>& rules() const { return rules_; }
  const std::vector<TokenCount>& counts() const { return counts_; }
  const std::vector<LogitBias>& bias() const { return bias_; }
  const std::vector<TokenId>& forbidden() const { return forbidden_; }

 private:
  struct First {
    std::size_t count, bias, forbidden;
  };
  std::vector<DeviceRule> rules_;
  std::vector<First> firsts_;  // of each rule
  std::vector<TokenCount> counts_;
  std::vector<LogitBias> bias_;
  std::vector<TokenId> forbidden_;
};

/// @throws Error(kInternal) naming what the token is for.
void check_token(TokenId token, int vocab_size, const char* what);

}  // namespace fastspec::cuda
