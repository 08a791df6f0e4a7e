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

/// Walks of trees between their launch and their results. Keeps its memory from one to the next.
class TreeWalks {
 public:
  /// Issues the walk of every tree. `logits` holds one row a node, trees one after another. Trees and rules may change
  /// when this returns.
  void launch(Ops& ops, const Matrix& logits, std::span<const AcceptRequest> requests);
  /// Waits until the results of the last launch can be read.
  void wait(Ops& ops) const { ops.await_accept(); }
  /// What the walk of request `index` gave. finish is kError where nothing could be drawn, kNone otherwise: ends of the
  /// output are not looked at here.
  void read(int index, Acceptance& acceptance) const;

 private:
  struct Request {
    int root_position;
    int num_top_logprobs;
  };

  std::vector<Request> requests_;
  std::vector<std::int32_t> logit_rows_, parents_, paths_;
  std::vector<SampledToken> sampled_;
  std::vector<TopLogprob> top_;
  std::vector<AcceptTree> trees_;
  std::vector<AcceptResult> results_;
};

}  // namespace fastspec
