// The list of selectors.
#include "sparse/selector_factory.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "sparse/history_selector.h"
#include "sparse/oracle_selector.h"
#include "sparse/quest_selector.h"
#include "sparse/streaming_selector.h"

namespace fastspec {

namespace {

constexpr int kUnprofiledLayers = 4;

LayerHeads all_heads(int layer, const ModelConfig& target) {
  LayerHeads all{.layer = layer, .heads = std::vector<int>(static_cast<std::size_t>(target.num_heads))};
  std::iota(all.heads.begin(), all.heads.end(), 0);
  return all;
}

/// Without a profile: all heads of a few layers, in the middle of equal parts of the model.
std::vector<LayerHeads> unprofiled_layers(const ModelConfig& target, int count) {
  std::vector<LayerHeads> layers;
  count = std::min(count, target.num_layers);
  for (int i = 0; i < count; ++i) layers.push_back(all_heads((2 * i + 1) * target.num_layers / (2 * count), target));
  return layers;
}

std::vector<int> numbers_of(const std::vector<LayerHeads>& layers) {
  std::vector<int> numbers;
  for (const LayerHeads& layer : layers) numbers.push_back(layer.layer);
  return numbers;
}

int most_heads(const std::vector<LayerHeads>& layers) {
  std::size_t most = 0;
  for (const LayerHeads& layer : layers) most = std::max(most, layer.heads.size());
  return static_cast<int>(most);
}

void refuse_windows(const ModelConfig& target) {
  const auto windowed = std::find_if(target.window.begin(), target.window.end(), [](int window) { return window > 0; });
  if (windowed == target.window.end()) return;
  fail(ErrorCode::kUnsupported, "sparse passes with a ", target.architecture, " whose layer ",
       windowed - target.window.begin(), " sees a sliding window of ", *windowed,
       " tokens: one choice of keys for all layers needs layers that see all; leave sparse off");
}

void apply_manifest(const SparseConfig& config, const SelectorModels& models, SelectorPlan& plan) {
  const SrhManifest manifest = read_srh_manifest(config.manifest);
  check_target(manifest, {models.fingerprint, models.target.num_layers, models.target.num_heads});
  plan.history = manifest.target_layers;
  plan.pooling = manifest.pooling;
  if (config.selector != "dustin") return;
  check_drafter(manifest, models.draft_kind, models.drafter);
  if (!manifest.drafter || manifest.lookahead_slots == 0) return;
  // Another budget than that of the search is shared out in the same proportion.
  const std::int64_t slots = std::int64_t{manifest.lookahead_slots} * config.kv_budget / manifest.budget;
  plan.shape.lookahead_slots =
      static_cast<int>(std::min<std::int64_t>(slots, config.kv_budget - config.sinks - config.recent));
  if (plan.shape.lookahead_slots > 0) plan.lookahead = manifest.drafter->layers;
}

DeviceSelector::Limits device_limits(const SparseConfig& config, const SelectorPlan& plan,
                                     const SelectorLimits& limits) {
  return {.max_sequences = limits.max_sequences,
          .max_keys = limits.max_keys,
          .page_size = limits.page_size,
          .history_rows = config.selector == "oracle" ? limits.pass_rows : 1,
          .lookahead_rows = plan.lookahead.empty() ? 0 : limits.lookahead_rows};
}

std::vector<ScoredLayer> scored_target(const SelectorPlan& plan, const SelectorParts& parts) {
  const ModelConfig& config = parts.target.config();
  std::vector<ScoredLayer> scored;
  for (const LayerHeads& layer : plan.history) {
    scored.push_back({.queries = columns_of(parts.target.kept_queries(), scored.size(), config.q_size()),
                      .kv = parts.kv.layer(layer.layer),
                      .num_heads = config.num_heads,
                      .heads = {layer.heads.begin(), layer.heads.end()}});
  }
  return scored;
}

std::vector<ScoredLayer> scored_drafter(const SelectorPlan& plan, const SelectorParts& parts) {
  std::vector<ScoredLayer> scored;
  if (plan.lookahead.empty()) return scored;
  FS_CHECK(parts.lookahead != nullptr && parts.lookahead->layers.size() == plan.lookahead.size(),
           "the drafter keeps no queries of the layers that are looked at");
  for (const LayerHeads& layer : plan.lookahead) {
    const Lookahead::Layer& own = parts.lookahead->layers[scored.size()];
    scored.push_back({.queries = own.queries,
                      .kv = own.kv,
                      .num_heads = parts.lookahead->num_heads,
                      .heads = {layer.heads.begin(), layer.heads.end()}});
  }
  return scored;
}

}  // namespace

std::vector<int> SelectorPlan::target_layers() const {
  return numbers_of(history);
}

std::vector<int> SelectorPlan::draft_layers() const {
  return numbers_of(lookahead);
}

std::optional<SelectorPlan> plan_selector(const SparseConfig& config, const SelectorModels& models) {
  if (!config.enabled()) return std::nullopt;
  refuse_windows(models.target);
  SelectorPlan plan{.shape = {.budget = config.kv_budget, .sinks = config.sinks, .recent = config.recent}};
  if (!config.manifest.empty()) {
    apply_manifest(config, models, plan);
  } else if (config.selector == "oracle") {
    plan.history = unprofiled_layers(models.target, models.target.num_layers);
  } else if (config.selector != "streaming") {
    plan.history = unprofiled_layers(models.target, kUnprofiledLayers);
  }
  if (most_heads(plan.history) > kMaxScoredHeads) {
    fail(ErrorCode::kUnsupported, "sparse \"", config.selector_text(), "\" with a ", models.target.architecture, " of ",
         models.target.num_heads, " query heads: at most ", kMaxScoredHeads, " of a layer are looked at");
  }
  return plan;
}

SelectorNeeds selector_needs(const SparseConfig& config, const SelectorPlan& plan, const ModelConfig& target,
                             std::size_t element_size, DType kv_dtype, const SelectorLimits& limits) {
  SelectorNeeds needs;
  if (config.selector == "streaming") return needs;
  const DeviceSelector::Limits own = device_limits(config, plan, limits);
  needs.memory = DeviceSelector::device_bytes(own);
  needs.max_scored_rows = std::max(own.history_rows * most_heads(plan.history),  //
                                   own.lookahead_rows * most_heads(plan.lookahead));
  if (config.selector == "oracle") return needs;
  const int cols = static_cast<int>(plan.history.size()) * target.q_size();
  needs.memory += QueryStore::device_bytes(cols, element_size, limits.max_sequences);
  if (config.selector == "quest") {
    const KvView keys{.dtype = kv_dtype, .num_kv_heads = target.num_kv_heads, .head_dim = target.head_dim};
    needs.bytes_per_page = plan.history.size() * PageBounds::device_bytes(keys, 1);
  }
  return needs;
}

std::unique_ptr<KvSelector> make_selector(const SparseConfig& config, const SelectorPlan& plan, Backend& backend,
                                          const SelectorParts& parts, const SelectorLimits& limits) {
  if (config.selector == "streaming") return std::make_unique<StreamingSelector>(config.sinks, limits.page_size);
  const DeviceSelector::Limits own = device_limits(config, plan, limits);
  std::vector<ScoredLayer> history = scored_target(plan, parts);
  if (config.selector == "oracle") {
    return std::make_unique<OracleSelector>(backend, plan.shape, own, parts.target, parts.kv, std::move(history));
  }
  const Matrix pass_queries = parts.target.kept_queries();
  if (config.selector == "quest") {
    return std::make_unique<QuestSelector>(backend, plan.shape, own, pass_queries, std::move(history), parts.num_pages);
  }
  FS_CHECK(config.selector == "history" || config.selector == "dustin", "selector \"", config.selector, "\"");
  return std::make_unique<HistorySelector>(config.selector, backend, plan.shape, own, pass_queries, std::move(history),
                                           scored_drafter(plan, parts), plan.pooling, parts.lookahead);
}

}  // namespace fastspec
