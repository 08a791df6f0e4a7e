// Coupled acceptance (cpp/README.md, "Promises"): the target's own draw at every node, going on while a child carries
// it. The output is plain decoding's, whatever was proposed.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "step/acceptance.h"
#include "step/token_tree.h"

namespace fastspec {

struct AcceptRequest {
  const TokenTree* tree = nullptr;
  int root_position = 0;
  SamplingRule rule;
  bool wants_logprob = false;
  int num_top_logprobs = 0;
};

/// Walks every tree. `logits` holds one row a node, trees one after another. finish is kError where nothing could be
/// drawn, kNone otherwise: ends of the output are not looked at here.
std::vector<Acceptance> accept_trees(Ops& ops, const Matrix& logits, std::span<const AcceptRequest> requests);

}  // namespace fastspec
