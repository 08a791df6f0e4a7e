// What verification of one sequence gave. Data only.
#pragma once

#include <fastspec/request.h>

#include <string>
#include <vector>

#include "base/types.h"

namespace fastspec {

/// One committed token and what is reported about it.
struct CommittedToken {
  TokenId token = 0;
  float logprob = 0;
  float margin = 0;
  std::vector<TokenLogprob> top;
};

struct Acceptance {
  std::vector<int> path;               // accepted nodes of the tree in order, root excluded, cut where the output ends
  std::vector<CommittedToken> tokens;  // the path's tokens and the bonus; shorter when the output ends inside the path
  int num_drafts_accepted = 0;         // of the tokens, those that were drafted
  FinishReason finish = FinishReason::kNone;
  std::string error;         // for kError; no tokens then
  bool needs_dense = false;  // what comes next only a dense pass can say: an end, or a token that just wins

  /// Back to nothing; memory stays.
  void clear() {
    path.clear();
    tokens.clear();
    num_drafts_accepted = 0;
    finish = FinishReason::kNone;
    error.clear();
    needs_dense = false;
  }
};

}  // namespace fastspec
