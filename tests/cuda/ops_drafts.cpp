// Whole drafts of LongSpec on the GPU, recorded, against those of the reference: outputs of an engine would be the same
// whatever was drafted.
#include <algorithm>
#include <memory>
#include <numeric>

#include "cuda/ops_cases.h"
#include "draft/longspec/longspec_drafter.h"
#include "support/tiny_model.h"

namespace fastspec::gpu_check {

namespace {

constexpr int kVocab = 61;
constexpr int kPages = 60;
constexpr int kPageSize = 4;
constexpr int kWindow = 12;
constexpr int kSequences = 3;
constexpr std::uint64_t kTargetSeed = 11;

/// A drafter on one side, over K/V of the target that both sides share.
class Side {
 public:
  Side(Backend& backend, const std::vector<float>& keys, const std::vector<TokenId>& vocabulary)
      : weights_(testing::tiny_weights(config_, kTargetSeed, DType::kFloat32, *backend.device)),
        kv_(*backend.device, {config_.num_layers, config_.num_kv_heads, config_.head_dim, DType::kFloat32}, kPages,
            kPageSize) {
    const KvView& view = kv_.layers().back();
    const std::size_t count = static_cast<std::size_t>(view.page_stride) * kPages;
    backend.device->copy_to_device(view.base, keys.data(), count * sizeof(float));
    const LongSpecDrafter::Limits limits{
        .tree_widths = {3, 5, 4, 4},
        .max_drafted = 255,
        .pass = {.max_rows = 64, .max_sequences = kSequences, .max_list_entries = kSequences * kPages},
        .page_size = kPageSize};
    drafter_ = std::make_unique<LongSpecDrafter>(
        testing::tiny_longspec(config_, kTargetSeed, kWindow, DType::kFloat32, *backend.device, vocabulary), config_,
        weights_, view, backend, DType::kFloat32, limits);
    drafter_->record_graphs(kSequences);
  }
  LongSpecDrafter& drafter() { return *drafter_; }

  static std::size_t num_keys() {
    const ModelConfig config = testing::tiny_config(kVocab);
    return std::size_t{2} * config.num_kv_heads * config.head_dim * kPages * kPageSize;
  }

 private:
  ModelConfig config_ = testing::tiny_config(kVocab);
  Weights weights_;
  KvPool kv_;
  std::unique_ptr<LongSpecDrafter> drafter_;
};

/// Products of confidences along the paths of all nodes, the largest first.
std::vector<float> survivals(const TokenTree& tree) {
  std::vector<float> survival = tree.confidence;
  for (std::size_t node = 1; node < survival.size(); ++node) {
    survival[node] *= survival[static_cast<std::size_t>(tree.parents[node])];
  }
  std::sort(survival.rbegin(), survival.rend());
  return survival;
}

void compare(const TokenTree& seen, const TokenTree& expected, Outcome& outcome) {
  ++outcome.compared;
  const std::vector<float> a = survivals(seen), b = survivals(expected);
  bool close = a.size() == b.size();
  for (std::size_t i = 0; close && i < a.size(); ++i) {
    const double error = std::fabs(a[i] - b[i]) / (1e-4 + b[i]);
    outcome.error = std::max(outcome.error, error);
    close = error <= 1e-3;
  }
  const bool same = seen.tokens == expected.tokens && seen.parents == expected.parents;
  if (!close && outcome.failure.empty()) {
    outcome.failure = text("a tree of ", a.size(), " nodes, expected ", b.size(), ", with other confidences");
  }
  if (close && !same) ++outcome.near_ties;  // nodes of nearly equal score changed places
}

Outcome drafts(Sides& sides, const SamplingRule& rule, const std::vector<TokenId>& vocabulary) {
  Random random(7);
  const std::vector<float> keys = normal(Side::num_keys(), 1, random);
  Side gpu(sides.gpu, keys, vocabulary), cpu(sides.cpu, keys, vocabulary);
  std::vector<PageId> pages(kPages);
  std::iota(pages.rbegin(), pages.rend(), 0);
  std::vector<std::vector<TokenId>> tokens(kSequences);
  for (int i = 0; i < kSequences; ++i) {
    for (int k = 2 + 15 * i; k > 0; --k) tokens[i].push_back(pick(random, 0, kVocab - 1));
  }
  Outcome outcome;
  for (int round = 0; round < 25; ++round) {
    std::vector<DraftRequest> requests;
    std::vector<TokenTree> seen, expected;
    for (int i = 0; i <= round % kSequences; ++i) {
      requests.push_back({.seq = i,
                          .tokens = tokens[i],
                          .pages = pages,
                          .max_drafted = pick(random, 0, 3) > 0 ? 255 : pick(random, 1, 9),
                          .max_depth = pick(random, 0, 3) > 0 ? 4 : 2,
                          .rule = rule});
      seen.emplace_back(tokens[i].back());
    }
    expected = seen;
    gpu.drafter().draft(requests, seen);
    cpu.drafter().draft(requests, expected);
    for (std::size_t i = 0; i < seen.size(); ++i) {
      compare(seen[i], expected[i], outcome);
      std::vector<TokenId> path;
      int node = pick(random, 0, expected[i].num_drafted());
      for (; node > 0; node = expected[i].parents[static_cast<std::size_t>(node)]) {
        path.push_back(expected[i].tokens[static_cast<std::size_t>(node)]);
      }
      tokens[i].insert(tokens[i].end(), path.rbegin(), path.rend());
      tokens[i].push_back(pick(random, 0, kVocab - 1));
    }
  }
  const GraphUse use = gpu.drafter().graphs();
  if (outcome.failure.empty() && use.replays < 10) outcome.failure = text(use.replays, " drafts replayed");
  if (outcome.failure.empty() && outcome.near_ties * 10 > outcome.compared) outcome.failure = "too many near-ties";
  return outcome;
}

}  // namespace

void check_drafts(Sides& sides, Report& report) {
  SamplingRule greedy, noisy, filtered, changed;
  greedy.temperature = 0;
  noisy.seed = filtered.seed = changed.seed = 5;
  filtered.top_k = 3;
  filtered.top_p = 0.9f;
  const std::vector<TokenCount> counts = {{.token = 3, .in_output = 2}, {.token = 40, .in_output = 1}};
  const std::vector<LogitBias> bias = {{.token = 11, .bias = 1.5f}, {.token = 59, .bias = -2.0f}};
  changed.repetition_penalty = 1.3f;
  changed.counts = counts.data();
  changed.num_counts = 2;
  changed.bias = bias.data();
  changed.num_bias = 2;
  std::vector<TokenId> vocabulary;
  for (TokenId token = 0; token < kVocab; token += 2) vocabulary.push_back(token + 1 < kVocab ? token + 1 : token);
  const std::pair<const char*, SamplingRule> rules[] = {
      {"greedy", greedy}, {"noise", noisy}, {"filters", filtered}, {"penalties and bias", changed}};
  for (const auto& [name, rule] : rules) {
    for (const bool pruned : {false, true}) {
      report.run(text("draft ", name, pruned ? ", pruned vocabulary" : ""),
                 [&] { return drafts(sides, rule, pruned ? vocabulary : std::vector<TokenId>()); });
    }
  }
}

}  // namespace fastspec::gpu_check
