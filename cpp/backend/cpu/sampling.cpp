// See sampling.h.
#include "backend/cpu/sampling.h"

#include <algorithm>

#include "backend/cpu/kernels.h"
#include "base/check.h"

namespace fastspec::cpu {
namespace {

void check_logits(const Matrix& logits, const char* name) {
  FS_CHECK(logits.dtype == DType::kFloat32, name, ": logits are float32 on the CPU, got ", to_string(logits.dtype));
  FS_CHECK(logits.rows >= 0 && logits.cols > 0 && logits.stride >= logits.cols, name, ": logits [", logits.rows, ", ",
           logits.cols, "], stride ", logits.stride);
}

void check_tree(const AcceptTree& tree, int index, const Matrix& logits) {
  FS_CHECK(tree.num_nodes > 0, "accept: tree ", index, " has ", tree.num_nodes, " nodes");
  for (int node = 0; node < tree.num_nodes; ++node) {
    FS_CHECK(node == 0 ? tree.parents[node] == -1 : tree.parents[node] >= 0 && tree.parents[node] < node,
             "accept: tree ", index, " node ", node, " has parent ", tree.parents[node]);
    FS_CHECK(tree.logit_rows[node] >= 0 && tree.logit_rows[node] < logits.rows, "accept: tree ", index, " node ", node,
             " has logit row ", tree.logit_rows[node], " of ", logits.rows);
  }
}

/// The first child of `node` that carries `token`, or -1.
int find_child(const AcceptTree& tree, int node, TokenId token) {
  for (int child = node + 1; child < tree.num_nodes; ++child) {
    if (tree.parents[child] == node && tree.tokens[child] == token) return child;
  }
  return -1;
}

}  // namespace

Sampler::Sampler(ThreadPool& pool)
    : pool_(pool),
      workers_(static_cast<std::size_t>(pool.num_threads()), Worker{RowSampler(best_kernels().vocab), {}}) {}

void Sampler::accept(const AcceptParams& params) {
  check_logits(params.logits, "accept");
  pool_.parallel_for(params.num_trees, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    for (int tree = static_cast<int>(begin); tree < end; ++tree) {
      accept_tree(params, tree, workers_[static_cast<std::size_t>(thread)]);
    }
  });
}

void Sampler::accept_tree(const AcceptParams& params, int index, Worker& worker) {
  const AcceptTree& tree = params.trees[index];
  AcceptResult& result = params.results[index];
  check_tree(tree, index, params.logits);
  result.failed = false;
  result.num_accepted = 0;
  worker.path.clear();
  int node = 0;
  for (;;) {
    const int depth = result.num_accepted;
    RowDraw draw;
    draw.row = tree.logit_rows[node];
    draw.logits = params.logits.row<float>(draw.row);
    draw.vocab_size = params.logits.cols;
    draw.rule = &tree.rule;
    draw.position = static_cast<std::uint32_t>(tree.root_position + 1 + depth);
    draw.path = worker.path;
    draw.wants_logprob = tree.wants_logprob || tree.num_top_logprobs > 0;
    const std::optional<SampledToken> drawn = worker.sampler.draw(draw);
    if (!drawn) {
      // Tokens drawn before stand, the last as the bonus: the next step fails at its root, as plain decoding would.
      result.failed = depth == 0;
      result.num_accepted = std::max(0, depth - 1);
      return;
    }
    result.sampled[depth] = *drawn;
    if (tree.num_top_logprobs > 0) {
      worker.sampler.top_logprobs(tree.num_top_logprobs,
                                  result.top_logprobs + std::int64_t{depth} * tree.num_top_logprobs);
    }
    const int child = find_child(tree, node, result.sampled[depth].token);
    if (child < 0) return;
    result.path[depth] = child;
    result.num_accepted += 1;
    worker.path.push_back(tree.tokens[child]);
    node = child;
  }
}

int Sampler::set_rules(const ProposalRules& rules) {
  rules_.assign(rules.rules, rules.rules + rules.num_rules);
  return 0;
}

void Sampler::propose(const ProposeParams& params) {
  check_logits(params.logits, "propose");
  FS_CHECK(params.top_k > 0 && params.rows_per_rule > 0, "propose: top_k ", params.top_k, ", ", params.rows_per_rule,
           " rows a rule");
  pool_.parallel_for(params.logits.rows, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    for (int row = static_cast<int>(begin); row < end; ++row) {
      propose_row(params, row, workers_[static_cast<std::size_t>(thread)].sampler);
    }
  });
}

void Sampler::propose_row(const ProposeParams& params, int row, RowSampler& sampler) const {
  const auto rule = static_cast<std::size_t>(row / params.rows_per_rule);
  std::span<const ScoredToken> best;
  if (rule < rules_.size()) {
    RowDraw draw;
    draw.row = row;
    draw.logits = params.logits.row<float>(row);
    draw.vocab_size = params.logits.cols;
    draw.rule = &rules_[rule];
    draw.position = static_cast<std::uint32_t>(params.positions[row] + 1);
    if (params.path_length > 0) {
      draw.path = {params.paths + std::int64_t{row} * params.path_length, static_cast<std::size_t>(params.path_length)};
    }
    draw.token_ids = params.token_ids;
    best = sampler.best(draw, params.top_k);
  }
  const std::int64_t at = std::int64_t{row} * params.top_k;
  for (int i = 0; i < params.top_k; ++i) {
    const bool found = static_cast<std::size_t>(i) < best.size();
    params.tokens[at + i] = found ? best[static_cast<std::size_t>(i)].token : kNoToken;
    params.confidences[at + i] = found ? sampler.confidence(best[static_cast<std::size_t>(i)]) : 0.0f;
  }
}

}  // namespace fastspec::cpu
