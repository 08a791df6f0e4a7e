// Gathers trees into one call of Ops::accept and its results into values.
#include "verify/acceptance.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace fastspec {

void TreeWalks::launch(Ops& ops, const Matrix& logits, std::span<const AcceptRequest> requests) {
  int num_rows = 0;
  std::size_t num_top = 0;
  for (const AcceptRequest& request : requests) {
    num_rows += request.tree->num_nodes();
    num_top += std::size_t(request.num_top_logprobs) * request.tree->num_nodes();
  }
  FS_CHECK(num_rows == logits.rows, num_rows, " nodes, ", logits.rows, " rows of logits");

  logit_rows_.resize(num_rows);
  std::iota(logit_rows_.begin(), logit_rows_.end(), 0);
  parents_.clear();
  parents_.reserve(num_rows);
  paths_.resize(num_rows);
  sampled_.resize(num_rows);
  top_.resize(num_top);
  requests_.clear();
  trees_.clear();
  results_.clear();
  std::size_t first_top = 0;
  for (const AcceptRequest& request : requests) {
    const std::size_t first = parents_.size();
    parents_.insert(parents_.end(), request.tree->parents.begin(), request.tree->parents.end());
    requests_.push_back({request.root_position, request.num_top_logprobs});
    trees_.push_back({.num_nodes = request.tree->num_nodes(),
                      .tokens = request.tree->tokens.data(),
                      .parents = parents_.data() + first,
                      .logit_rows = logit_rows_.data() + first,
                      .root_position = request.root_position,
                      .rule = request.rule,
                      .wants_logprob = request.wants_logprob,
                      .num_top_logprobs = request.num_top_logprobs});
    AcceptResult& result = results_.emplace_back();
    result.path = paths_.data() + first;
    result.sampled = sampled_.data() + first;
    result.top_logprobs = request.num_top_logprobs > 0 ? top_.data() + first_top : nullptr;
    first_top += std::size_t(request.num_top_logprobs) * request.tree->num_nodes();
  }
  ops.accept({.logits = logits,
              .trees = trees_.data(),
              .results = results_.data(),
              .num_trees = static_cast<int>(trees_.size())});
}

void TreeWalks::read(int index, Acceptance& acceptance) const {
  const Request& request = requests_[index];
  const AcceptResult& result = results_[index];
  acceptance.clear();
  if (result.failed) {
    acceptance.finish = FinishReason::kError;
    acceptance.error = "no token can be drawn at position " + std::to_string(request.root_position + 1) +
                       ": the logits hold NaN, or every token is excluded";
    return;
  }
  acceptance.path.assign(result.path, result.path + result.num_accepted);
  acceptance.tokens.reserve(static_cast<std::size_t>(result.num_accepted) + 1);
  for (int i = 0; i <= result.num_accepted; ++i) {
    CommittedToken token{result.sampled[i].token, result.sampled[i].logprob, result.sampled[i].margin, {}};
    for (int rank = 0; rank < request.num_top_logprobs; ++rank) {
      const TopLogprob& top = result.top_logprobs[i * request.num_top_logprobs + rank];
      token.top.push_back({top.token, top.logprob});
    }
    acceptance.tokens.push_back(std::move(token));
  }
}

}  // namespace fastspec
