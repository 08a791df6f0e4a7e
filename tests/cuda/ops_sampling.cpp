// Cases of accept: random rules, trees and vocabularies against the reference. Draws must be equal except
// where the reference's margin is within float noise, or where moving top-p or min-p by a millionth gives the same.
#include <algorithm>
#include <limits>
#include <memory>
#include <set>

#include "cpp/backend/sampling_case.h"
#include "cuda/ops_cases.h"
#include "cuda/ops_logits.h"

namespace fastspec::gpu_check {

namespace {

using test::RandomRule;
using test::TreeCase;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNearTie = 1e-4f;

/// What a tree gave, or how two results differ.
std::string difference(const TreeCase& seen, const TreeCase& expected, bool& near_tie) {
  near_tie = false;
  if (seen.result.failed != expected.result.failed) {
    return text("failed ", seen.result.failed, ", expected ", expected.result.failed);
  }
  if (expected.result.failed) return {};
  const int common = std::min(seen.result.num_accepted, expected.result.num_accepted);
  for (int i = 0; i <= common; ++i) {
    const SampledToken &a = seen.sampled[i], &b = expected.sampled[i];
    if (a.token != b.token) {
      near_tie = b.margin < kNearTie;
      return text("draw ", i, ": token ", a.token, " (margin ", a.margin, "), expected ", b.token, " (margin ",
                  b.margin, ")");
    }
    const bool margins = a.margin == b.margin || std::fabs(a.margin - b.margin) <= kNearTie * (1 + std::fabs(b.margin));
    const bool logprobs =
        a.logprob == b.logprob || std::fabs(a.logprob - b.logprob) <= kNearTie * (1 + std::fabs(b.logprob));
    if (!margins) return text("draw ", i, ": margin ", a.margin, ", expected ", b.margin);
    if (!logprobs) return text("draw ", i, ": logprob ", a.logprob, ", expected ", b.logprob);
    if (i < common && seen.path[i] != expected.path[i]) {
      return text("path ", i, ": ", seen.path[i], ", expected ", expected.path[i]);
    }
    for (int rank = 0; rank < expected.tree.num_top_logprobs; ++rank) {
      const TopLogprob& x = seen.top[std::size_t(i) * expected.tree.num_top_logprobs + rank];
      const TopLogprob& y = expected.top[std::size_t(i) * expected.tree.num_top_logprobs + rank];
      const bool close =
          x.logprob == y.logprob || std::fabs(x.logprob - y.logprob) <= 1e-4f * (1 + std::fabs(y.logprob));
      if (x.token != y.token || !close) {
        return text("draw ", i, " top ", rank, ": ", x.token, " at ", x.logprob, ", expected ", y.token, " at ",
                    y.logprob);
      }
    }
  }
  if (seen.result.num_accepted != expected.result.num_accepted) {
    return text("accepted ", seen.result.num_accepted, ", expected ", expected.result.num_accepted);
  }
  return {};
}

std::unique_ptr<TreeCase> copy_of(const TreeCase& other, const SamplingRule& rule) {
  auto copy = std::make_unique<TreeCase>(other.tokens, other.parents, rule, other.tree.num_top_logprobs);
  copy->rows = other.rows;
  copy->tree.logit_rows = copy->rows.data();
  copy->tree.root_position = other.tree.root_position;
  copy->tree.wants_logprob = other.tree.wants_logprob;
  return copy;
}

void accept_all(Ops& ops, const Matrix& logits, const std::vector<TreeCase*>& cases) {
  std::vector<AcceptTree> trees;
  std::vector<AcceptResult> results;
  for (TreeCase* one : cases) {
    trees.push_back(one->tree);
    results.push_back(one->result);
  }
  ops.accept({logits, trees.data(), results.data(), static_cast<int>(trees.size())});
  ops.await_accept();
  for (std::size_t i = 0; i < cases.size(); ++i) cases[i]->result = results[i];
}

/// Draws every tree on both sides and compares.
Outcome compare_trees(Sides& sides, Logits& logits, const std::vector<std::unique_ptr<TreeCase>>& trees) {
  std::vector<std::unique_ptr<TreeCase>> expected;
  std::vector<TreeCase*> seen_pointers, expected_pointers;
  for (const auto& tree : trees) {
    expected.push_back(copy_of(*tree, tree->tree.rule));
    seen_pointers.push_back(tree.get());
    expected_pointers.push_back(expected.back().get());
  }
  accept_all(*sides.gpu.ops, logits.device(), seen_pointers);
  accept_all(*sides.cpu.ops, logits.host(), expected_pointers);
  Outcome outcome;
  for (std::size_t i = 0; i < trees.size(); ++i) {
    ++outcome.compared;
    bool near_tie = false;
    const std::string wrong = difference(*trees[i], *expected[i], near_tie);
    if (wrong.empty()) continue;
    for (const float direction : {-1.0f, 1.0f}) {
      if (near_tie) break;
      const auto moved = copy_of(*trees[i], nudged(trees[i]->tree.rule, direction));
      accept_all(*sides.cpu.ops, logits.host(), {moved.get()});
      near_tie = difference(*trees[i], *moved, near_tie).empty();
    }
    const SamplingRule& rule = trees[i]->tree.rule;
    if (near_tie) {
      ++outcome.near_ties;
    } else if (outcome.failure.empty()) {
      outcome.failure = text("tree ", i, ": ", wrong, "; temperature ", rule.temperature, " top_k ", rule.top_k,
                             " top_p ", rule.top_p, " min_p ", rule.min_p, " penalties ", rule.repetition_penalty, " ",
                             rule.presence_penalty, " ", rule.frequency_penalty, " bias ", rule.num_bias);
    }
  }
  if (outcome.near_ties > 2 + outcome.compared / 50 && outcome.failure.empty()) outcome.failure = "too many near-ties";
  if (outcome.failure.empty() && !logits.unchanged(sides)) outcome.failure = "the logits were changed";
  return outcome;
}

/// A random tree whose children often carry the tokens that are likely to be drawn.
std::unique_ptr<TreeCase> random_tree(const SamplingRule& rule, const Logits& logits, int first_row, int nodes, int top,
                                      Random& random) {
  std::vector<TokenId> tokens{0};
  std::vector<std::int32_t> parents{-1};
  for (int node = 1; node < nodes; ++node) {
    const int parent = pick(random, 0, 2) == 0 ? pick(random, 0, node - 1) : node - 1;
    const float* row = logits.values.data() + std::size_t(first_row + parent) * logits.stride;
    const bool likely = pick(random, 0, 4) > 0;
    tokens.push_back(likely ? static_cast<TokenId>(std::max_element(row, row + logits.vocab) - row)
                            : pick(random, 0, logits.vocab - 1));
    parents.push_back(parent);
  }
  auto tree = std::make_unique<TreeCase>(tokens, parents, rule, top);
  for (int node = 0; node < nodes; ++node) tree->rows[node] = first_row + node;
  tree->tree.root_position = pick(random, 0, 100000);
  tree->tree.wants_logprob = pick(random, 0, 1) == 0;
  return tree;
}

Outcome random_rules(Sides& sides, int vocab, int num_trees, int max_nodes, float spread, Random& random) {
  const int padding = pick(random, 0, 3);
  std::vector<int> nodes;
  int rows = 0;
  for (int i = 0; i < num_trees; ++i) rows += nodes.emplace_back(pick(random, 1, max_nodes));
  Logits logits(sides, normal(std::size_t(rows) * (vocab + padding), spread, random), vocab, padding);
  std::vector<std::unique_ptr<RandomRule>> rules;
  std::vector<std::unique_ptr<TreeCase>> trees;
  int first_row = 0;
  for (int i = 0; i < num_trees; ++i) {
    rules.push_back(std::make_unique<RandomRule>(vocab, random));
    const int top = pick(random, 0, 3) == 0 ? pick(random, 1, std::min(vocab, 25)) : 0;
    trees.push_back(random_tree(rules.back()->rule, logits, first_row, nodes[i], top, random));
    first_row += nodes[i];
  }
  return compare_trees(sides, logits, trees);
}

/// One row, one node.
Outcome one_row(Sides& sides, std::vector<float> row, const SamplingRule& rule, int top = 0) {
  const int vocab = static_cast<int>(row.size());
  Logits logits(sides, std::move(row), vocab);
  std::vector<std::unique_ptr<TreeCase>> trees;
  trees.push_back(std::make_unique<TreeCase>(std::vector<TokenId>{0}, std::vector<std::int32_t>{-1}, rule, top));
  return compare_trees(sides, logits, trees);
}

void check_special_rows(Sides& sides, Report& report, Random& random) {
  const auto run = [&](const std::string& name, const std::vector<float>& row, const SamplingRule& rule, int top = 0) {
    report.run("accept " + name, [&] { return one_row(sides, row, rule, top); });
  };
  SamplingRule greedy, plain, top_k, top_p, both, min_p;
  greedy.temperature = 0;
  for (SamplingRule* rule : {&plain, &top_k, &top_p, &both, &min_p}) rule->seed = random();
  top_k.top_k = both.top_k = 50;
  top_p.top_p = both.top_p = 0.9f;
  min_p.min_p = 0.05f;
  const std::pair<const char*, SamplingRule> rules[] = {{"greedy", greedy}, {"plain", plain}, {"top-k", top_k},
                                                        {"top-p", top_p},   {"both", both},   {"min-p", min_p}};
  for (const auto& [name, rule] : rules) {
    const auto with = [&](const char* what) { return text(what, ", ", name); };
    std::vector<float> row = normal(5000, 2, random);
    run(with("normal 5000"), row, rule, 7);
    row[4321] = std::nanf("");
    run(with("NaN"), row, rule);
    row[4321] = kInfinity;
    run(with("one infinity"), row, rule, 3);
    row[17] = kInfinity;
    run(with("two infinities"), row, rule, 3);
    run(with("all equal"), std::vector<float>(5000, 1.25f), rule, 4);
    run(with("all -infinity"), std::vector<float>(5000, -kInfinity), rule);
    run(with("flat 152064"), normal(152064, 1e-3f, random), rule);
    run(with("equal 152064"), std::vector<float>(152064, -3.0f), rule, 3);
    std::vector<float> far = normal(152064, 2, random);
    for (int i = 0; i < 1000; ++i) far[i * 7] = i % 2 == 0 ? -1e9f : -kInfinity;
    run(with("outliers 152064"), far, rule, 20);
    std::vector<float> few(3000, -kInfinity);
    few[2999] = 1;
    run(with("one possible"), few, rule, 5);
    few[5] = 1;
    run(with("two equal possible"), few, rule, 5);
    std::vector<float> zeros(70, 0.0f);
    for (int i = 0; i < 70; i += 3) zeros[i] = -0.0f;
    run(with("signed zeros"), zeros, rule, 70);
    run(with("one token"), {0.5f}, rule, 1);
  }
  SamplingRule extreme = both;
  extreme.top_k = 3000;
  extreme.top_p = 0.9999f;
  run("top-k 3000 and top-p 0.9999", normal(152064, 2, random), extreme);
  extreme = plain;
  for (const float value : {0.0f, 1e-9f, 0.5f, 0.999999f, 0.99999994f}) {
    extreme.top_p = value;
    run(text("top-p ", value), normal(9000, 2, random), extreme);
  }
  extreme = plain;
  for (const float temperature : {1e-30f, 1e-3f, 50.0f, 1e30f}) {
    extreme.temperature = temperature;
    run(text("temperature ", temperature), normal(9000, 2, random), extreme);
    extreme.top_p = 0.7f;
    run(text("temperature ", temperature, " top-p"), normal(9000, 2, random), extreme);
    extreme.top_p = 1;
  }
}

Outcome everything_forbidden(Sides& sides) {
  SamplingRule rule;
  const std::vector<TokenId> all = {0, 1, 2};
  rule.forbidden = all.data();
  rule.num_forbidden = 3;
  rule.min_tokens = 2;
  // The second node may not draw either: what the root drew stands.
  Logits logits(sides, {1, 2, 3, 1, 2, 3}, 3);
  std::vector<std::unique_ptr<TreeCase>> trees;
  trees.push_back(std::make_unique<TreeCase>(std::vector<TokenId>{0}, std::vector<std::int32_t>{-1}, rule));
  rule.num_forbidden = 0;
  trees.push_back(
      std::make_unique<TreeCase>(std::vector<TokenId>{0, 0, 1, 2}, std::vector<std::int32_t>{-1, 0, 0, 0}, rule));
  trees.back()->rows = {0, 1, 1, 1};
  std::vector<float> with_nan = {1, 2, 3, 1, std::nanf(""), 3};
  Outcome first = compare_trees(sides, logits, trees);
  if (!first.failure.empty()) return first;
  Logits failing(sides, with_nan, 3);
  return compare_trees(sides, failing, trees);
}

}  // namespace

void check_sampling(Sides& sides, Report& report) {
  Random random(303);
  for (int round = 0; round < 12; ++round) {
    for (const int vocab : {1, 2, 5, 61, 90, 3000}) {
      const float spread = round % 3 == 0 ? 0.3f : round % 3 == 1 ? 1.5f : 5.0f;
      const int trees = pick(random, 1, 60), nodes = pick(random, 1, round % 4 == 0 ? 40 : 6);
      report.run(text("accept vocab ", vocab, " trees ", trees, " nodes <= ", nodes, " spread ", spread),
                 [&] { return random_rules(sides, vocab, trees, nodes, spread, random); });
    }
  }
  report.run("accept vocab 49152 trees 40", [&] { return random_rules(sides, 49152, 40, 3, 3, random); });
  report.run("accept vocab 152064 trees 12", [&] { return random_rules(sides, 152064, 12, 2, 3, random); });
  report.run("accept vocab 20000 trees 1500, in slices",
             [&] { return random_rules(sides, 20000, 1500, 1, 2, random); });
  report.run("accept everything forbidden, a node that fails", [&] { return everything_forbidden(sides); });
  check_special_rows(sides, report, random);
}

}  // namespace fastspec::gpu_check
