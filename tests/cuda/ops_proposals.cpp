// Cases of propose and grow_beam: random rules, vocabularies and levels against the reference, up to near-ties of
// scores.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "cpp/backend/sampling_case.h"
#include "cuda/ops_cases.h"
#include "cuda/ops_logits.h"
#include "support/beam_case.h"

namespace fastspec::gpu_check {

namespace {

using test::RandomRule;

/// Proposals of both sides for rows of random rules; the rules of the last rows are missing.
Outcome propose(Sides& sides, int vocab, int rows, int top_k, float spread, bool pruned, Random& random) {
  const int rows_per_rule = pick(random, 1, 4), path_length = pick(random, 0, 6);
  Logits logits(sides, normal(std::size_t(rows) * vocab, spread, random), vocab);
  std::vector<std::unique_ptr<RandomRule>> owners;
  std::vector<SamplingRule> rules;
  std::vector<std::int32_t> positions;
  std::vector<TokenId> paths, token_ids;  // of columns: every few tokens of a larger vocabulary
  for (int row = 0; row < rows; ++row) {
    if (row % rows_per_rule == 0 && (row == 0 || row + rows_per_rule < rows)) {
      owners.push_back(std::make_unique<RandomRule>(vocab, random));
      rules.push_back(owners.back()->rule);
    }
    positions.push_back(pick(random, 0, 5000));
    for (int i = 0; i < path_length; ++i) paths.push_back(pick(random, 0, vocab - 1));
  }
  for (TokenId token = pick(random, 0, 2); static_cast<int>(token_ids.size()) < vocab; token += pick(random, 1, 5)) {
    token_ids.push_back(token);
  }
  const Buffer device_token_ids = sides.put(token_ids), device_positions = sides.put(positions);
  const Buffer device_paths = sides.put(paths);
  const std::size_t count = std::size_t(rows) * top_k;
  const Buffer mapped_tokens = sides.gpu.device->allocate_host(count * sizeof(TokenId), "proposals");
  const Buffer mapped_confidences = sides.gpu.device->allocate_host(count * sizeof(float), "confidences");
  struct Result {
    std::vector<TokenId> tokens;
    std::vector<float> confidences;
  };
  const auto run_on_gpu = [&] {
    std::fill_n(mapped_tokens.as<TokenId>(), count, -9);
    std::fill_n(mapped_confidences.as<float>(), count, std::nanf(""));
    Ops& ops = *sides.gpu.ops;
    ops.set_rules({rules.data(), static_cast<int>(rules.size()), vocab});
    ops.propose({.logits = logits.device(),
                 .rows_per_rule = rows_per_rule,
                 .positions = device_positions.as<const std::int32_t>(),
                 .paths = device_paths.as<const TokenId>(),
                 .path_length = path_length,
                 .top_k = top_k,
                 .tokens = mapped_tokens.as<TokenId>(),
                 .confidences = mapped_confidences.as<float>(),
                 .token_ids = pruned ? device_token_ids.as<const TokenId>() : nullptr});
    ops.await_proposals();
    return Result{{mapped_tokens.as<TokenId>(), mapped_tokens.as<TokenId>() + count},
                  {mapped_confidences.as<float>(), mapped_confidences.as<float>() + count}};
  };
  const auto run_on_cpu = [&](const std::vector<SamplingRule>& with) {
    Result result{std::vector<TokenId>(count, -9), std::vector<float>(count, -9)};
    sides.cpu.ops->set_rules({with.data(), static_cast<int>(with.size()), vocab});
    sides.cpu.ops->propose({.logits = logits.host(),
                            .rows_per_rule = rows_per_rule,
                            .positions = positions.data(),
                            .paths = paths.data(),
                            .path_length = path_length,
                            .top_k = top_k,
                            .tokens = result.tokens.data(),
                            .confidences = result.confidences.data(),
                            .token_ids = pruned ? token_ids.data() : nullptr});
    return result;
  };
  const Result seen = run_on_gpu(), expected = run_on_cpu(rules);
  std::vector<Result> moved;
  for (const float direction : {-1.0f, 1.0f}) {
    std::vector<SamplingRule> with;
    for (const SamplingRule& rule : rules) with.push_back(nudged(rule, direction));
    moved.push_back(run_on_cpu(with));
  }
  const auto first_wrong = [&](const Result& other, int row) {
    for (std::size_t i = std::size_t(row) * top_k; i < std::size_t(row + 1) * top_k; ++i) {
      const float a = seen.confidences[i], b = other.confidences[i];
      if (seen.tokens[i] != other.tokens[i] || !(std::fabs(a - b) <= 1e-4f * (1e-2f + b))) return static_cast<int>(i);
    }
    return -1;
  };
  Outcome outcome;
  for (int row = 0; row < rows; ++row) {
    ++outcome.compared;
    const int wrong = first_wrong(expected, row);
    if (wrong < 0) continue;
    // Two neighbours that swapped have nearly the same confidence.
    const bool swapped =
        std::fabs(seen.confidences[wrong] - expected.confidences[wrong]) <= 2e-4f * expected.confidences[wrong] &&
        seen.tokens[wrong] != expected.tokens[wrong];
    if (swapped || first_wrong(moved[0], row) < 0 || first_wrong(moved[1], row) < 0) {
      ++outcome.near_ties;
    } else if (outcome.failure.empty()) {
      const SamplingRule rule =
          row / rows_per_rule < static_cast<int>(rules.size()) ? rules[row / rows_per_rule] : SamplingRule();
      outcome.failure =
          text("row ", row, " rank ", wrong % top_k, ": token ", seen.tokens[wrong], " at ", seen.confidences[wrong],
               ", expected ", expected.tokens[wrong], " at ", expected.confidences[wrong], "; temperature ",
               rule.temperature, " top_k ", rule.top_k, " top_p ", rule.top_p, " min_p ", rule.min_p);
    }
  }
  if (outcome.near_ties > 3 + outcome.compared * std::min(top_k, 50) / 50 && outcome.failure.empty()) {
    outcome.failure = "too many near-ties";
  }
  return outcome;
}

/// A level of random trees on both sides, into poisoned arrays. Scores may differ by the rounding of a logarithm.
Outcome grow_beam(Sides& sides, int round, Random& random) {
  const testing::BeamSizes sizes = testing::random_beam_sizes(round, random);
  const testing::BeamInputs inputs(sizes, random);
  testing::BeamOutputs expected(sizes), seen(sizes);
  GrowBeamParams params = inputs.params(sizes);
  expected.add_to(sizes, params);
  sides.cpu.ops->grow_beam(params);

  const Buffer proposals = sides.put(inputs.proposals), confidences = sides.put(inputs.confidences);
  const Buffer scores = sides.put(inputs.scores), slots = sides.put(inputs.slots);
  const Buffer ancestors = sides.put(inputs.ancestors), paths = sides.put(inputs.paths);
  const Buffer token_ids = sides.put(inputs.token_ids);
  const Buffer tokens = sides.put(seen.tokens), child_paths = sides.put(seen.paths);
  const Buffer child_scores = sides.put(seen.scores), child_ancestors = sides.put(seen.ancestors);
  const std::size_t node_bytes = seen.nodes.size() * sizeof(BeamNode);
  const Buffer nodes = sides.gpu.device->allocate_host(node_bytes, "drafted nodes");
  std::memcpy(nodes.data(), seen.nodes.data(), node_bytes);
  params.proposals = proposals.as<const TokenId>();
  params.confidences = confidences.as<const float>();
  params.scores = sizes.depth == 0 ? nullptr : scores.as<const double>();
  params.slots = slots.as<const Slot>();
  params.ancestors = ancestors.as<const Slot>();
  params.paths = paths.as<const TokenId>();
  params.token_ids = sizes.prunes ? token_ids.as<const TokenId>() : nullptr;
  params.nodes = nodes.as<BeamNode>();
  params.child_tokens = sizes.is_last ? nullptr : tokens.as<TokenId>();
  params.child_scores = child_scores.as<double>();
  params.child_ancestors = child_ancestors.as<Slot>();
  params.child_paths = child_paths.as<TokenId>();
  sides.gpu.ops->grow_beam(params);
  sides.gpu.ops->await_proposals();
  std::memcpy(seen.nodes.data(), nodes.data(), node_bytes);
  const auto get = [&](const Buffer& buffer, auto& values) {
    sides.gpu.device->copy_to_host(values.data(), buffer.data(), values.size() * sizeof(values[0]));
  };
  get(tokens, seen.tokens);
  get(child_paths, seen.paths);
  get(child_scores, seen.scores);
  get(child_ancestors, seen.ancestors);

  Outcome outcome;
  outcome.compared = sizes.num_trees * sizes.width;
  const auto fail = [&](const char* what, std::size_t at) {
    if (outcome.failure.empty()) {
      outcome.failure = text(what, " ", at, " differs: ", sizes.num_trees, " trees, ", sizes.num_parents,
                             " parents, top_k ", sizes.top_k, ", width ", sizes.width, ", depth ", sizes.depth);
    }
  };
  for (std::size_t i = 0; i < seen.nodes.size(); ++i) {
    const BeamNode &a = seen.nodes[i], &b = expected.nodes[i];
    if (a.token != b.token || a.parent != b.parent || a.confidence != b.confidence) fail("node", i);
    const double error = seen.scores[i] == expected.scores[i] ? 0 : std::fabs(seen.scores[i] - expected.scores[i]);
    if (!(error <= 1e-12 * (1 + std::fabs(expected.scores[i])))) fail("score", i);
  }
  if (seen.tokens != expected.tokens) fail("token", 0);
  if (seen.paths != expected.paths) fail("path", 0);
  if (seen.ancestors != expected.ancestors) fail("ancestor", 0);
  return outcome;
}

}  // namespace

void check_proposals(Sides& sides, Report& report) {
  Random random(304);
  for (const int vocab : {1, 7, 61, 3000, 40000}) {
    for (const int top_k : {1, 2, 3, 10, 100}) {
      const int rows = vocab > 10000 ? 12 : 60;
      for (const bool pruned : {false, true}) {
        report.run(text("propose vocab ", vocab, pruned ? " pruned" : "", " rows ", rows, " top_k ", top_k),
                   [&] { return propose(sides, vocab, rows, top_k, top_k % 2 == 0 ? 1.0f : 4.0f, pruned, random); });
      }
    }
  }
  report.run("propose vocab 9000 top_k 9000", [&] { return propose(sides, 9000, 2, 9000, 2, false, random); });
  report.run("propose vocab 3000 rows 700, in slices", [&] { return propose(sides, 3000, 700, 16, 2, false, random); });
  for (int round = 0; round < 200; ++round) {
    report.run(text("grow_beam ", round), [&] { return grow_beam(sides, round, random); });
  }
}

}  // namespace fastspec::gpu_check
