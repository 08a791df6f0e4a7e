// Gathers trees into one call of Ops::accept and its results into values.
#include "verify/acceptance.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace fastspec {

namespace {

Acceptance to_acceptance(const AcceptRequest& request, const AcceptResult& result) {
  Acceptance acceptance;
  if (result.failed) {
    acceptance.finish = FinishReason::kError;
    acceptance.error = "no token can be drawn at position " + std::to_string(request.root_position + 1) +
                       ": the logits hold NaN, or every token is excluded";
    return acceptance;
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
  return acceptance;
}

}  // namespace

std::vector<Acceptance> accept_trees(Ops& ops, const Matrix& logits, std::span<const AcceptRequest> requests) {
  int num_rows = 0;
  std::size_t num_top = 0;
  for (const AcceptRequest& request : requests) {
    num_rows += request.tree->num_nodes();
    num_top += std::size_t(request.num_top_logprobs) * request.tree->num_nodes();
  }
  FS_CHECK(num_rows == logits.rows, num_rows, " nodes, ", logits.rows, " rows of logits");

  std::vector<std::int32_t> logit_rows(num_rows);
  std::iota(logit_rows.begin(), logit_rows.end(), 0);
  std::vector<std::int32_t> parents;
  std::vector<std::int32_t> paths(num_rows);
  std::vector<SampledToken> sampled(num_rows);
  std::vector<TopLogprob> top(num_top);
  parents.reserve(num_rows);

  std::vector<AcceptTree> trees;
  std::vector<AcceptResult> results;
  trees.reserve(requests.size());
  results.reserve(requests.size());
  std::size_t first_top = 0;
  for (const AcceptRequest& request : requests) {
    const std::size_t first = parents.size();
    parents.insert(parents.end(), request.tree->parents.begin(), request.tree->parents.end());
    trees.push_back({.num_nodes = request.tree->num_nodes(),
                     .tokens = request.tree->tokens.data(),
                     .parents = parents.data() + first,
                     .logit_rows = logit_rows.data() + first,
                     .root_position = request.root_position,
                     .rule = request.rule,
                     .wants_logprob = request.wants_logprob,
                     .num_top_logprobs = request.num_top_logprobs});
    AcceptResult& result = results.emplace_back();
    result.path = paths.data() + first;
    result.sampled = sampled.data() + first;
    result.top_logprobs = request.num_top_logprobs > 0 ? top.data() + first_top : nullptr;
    first_top += std::size_t(request.num_top_logprobs) * request.tree->num_nodes();
  }
  ops.accept({.logits = logits,
              .trees = trees.data(),
              .results = results.data(),
              .num_trees = static_cast<int>(trees.size())});

  std::vector<Acceptance> acceptances;
  acceptances.reserve(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) acceptances.push_back(to_acceptance(requests[i], results[i]));
  return acceptances;
}

}  // namespace fastspec
