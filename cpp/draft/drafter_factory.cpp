// The list of drafters.
#include "draft/drafter_factory.h"

#include <limits>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "draft/dflash/dflash_drafter.h"
#include "draft/longspec/longspec_drafter.h"
#include "draft/ngram_drafter.h"
#include "draft/standalone_drafter.h"

namespace fastspec {

namespace {

constexpr int kChainLength = 8;  // tokens that a drafter of chains proposes unless told

/// Token ids mean the same to both models; padding of the vocabulary may differ.
void check_same_tokenizer(const std::string& directory, const Tokenizer* target) {
  std::shared_ptr<const Tokenizer> draft;
  try {
    draft = Tokenizer::load(directory);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
  }
  if (target == nullptr && draft == nullptr) return;  // both are driven by token ids
  if (target == nullptr || draft == nullptr) {
    log(LogLevel::kWarning, "only one of target and draft model has a tokenizer.json: that token ids of ", directory,
        " mean the same cannot be checked");
    return;
  }
  const int count = std::max(target->vocab_size(), draft->vocab_size());
  for (TokenId id = 0; id < count; ++id) {
    const std::string expected = id < target->vocab_size() ? target->id_to_token(id) : "";
    const std::string seen = id < draft->vocab_size() ? draft->id_to_token(id) : "";
    if (expected != seen) {
      fail(ErrorCode::kInvalidArgument, "draft model ", directory, " has another tokenizer than the target: token ", id,
           " is \"", seen, "\", the target's is \"", expected, "\"");
    }
  }
}

}  // namespace

const ModelConfig* transformer_of(const DraftModel& model) {
  if (const auto* dflash = std::get_if<DFlashModel>(&model)) return &dflash->config.decoder;
  const auto* standalone = std::get_if<StandaloneModel>(&model);
  return standalone == nullptr ? nullptr : &standalone->config;
}

std::optional<DraftModel> load_draft_model(const EngineConfig& config, const ModelConfig& target,
                                           const Weights& target_weights, DType dtype, Device& device,
                                           const Tokenizer* target_tokenizer, const LoadProgress& progress) {
  const DrafterConfig& drafter = config.speculation.drafter;
  if (drafter.kind == "longspec") {
    return load_longspec(drafter.model, target, target_weights, dtype, device, progress);
  }
  if (drafter.kind == "dflash") {
    return load_dflash(drafter.model, target, target_weights, dtype, device, progress);
  }
  if (drafter.kind != "standalone") return std::nullopt;
  StandaloneModel model;
  model.config = load_model_config(drafter.model);  // first: a directory without one is no model at all
  check_same_tokenizer(drafter.model, target_tokenizer);
  model.weights = load_weights(drafter.model, model.config, dtype, device, progress, LoadPlan::Values::kChecked);
  return model;
}

DraftShape draft_shape(const SpeculationConfig& speculation, const std::optional<DraftModel>& model) {
  if (speculation.drafter.kind == "longspec") {
    return LongSpecDrafter::shape_of(speculation.drafter.tree_widths,
                                     speculation.max_draft_tokens.value_or(std::numeric_limits<int>::max()));
  }
  int chain = speculation.max_draft_tokens.value_or(kChainLength);
  if (const auto* dflash = model ? std::get_if<DFlashModel>(&*model) : nullptr) {
    const int block = dflash->config.block_size - 1;
    chain = std::min(block, speculation.max_draft_tokens.value_or(block));
  }
  return {.max_nodes = chain, .max_depth = chain};
}

namespace {

LongSpecDrafter::Limits longspec_limits(const SpeculationConfig& speculation, const DrafterLimits& limits) {
  return {.tree_widths = speculation.drafter.tree_widths,
          .coupled = speculation.drafter.coupled,
          .max_drafted = draft_shape(speculation, std::nullopt).max_nodes,
          .pass = limits.pass,
          .page_size = limits.page_size,
          .graphs = limits.graphs,
          .keeps_lookahead = !limits.lookahead_layers.empty()};
}

StandaloneDrafter::Limits standalone_limits(const ModelConfig& target, int max_drafted, const DrafterLimits& limits) {
  return {.max_drafted = max_drafted,
          .pass = limits.pass,
          .vocab_size = target.vocab_size,
          .num_pages = limits.num_pages,
          .page_size = limits.page_size,
          .graphs = limits.graphs,
          .lookahead_layers = limits.lookahead_layers};
}

DFlashDrafter::Limits dflash_limits(const SpeculationConfig& speculation, int max_drafted,
                                    const DrafterLimits& limits) {
  return {.max_drafted = max_drafted,
          .context = {.window = speculation.drafter.window, .sinks = speculation.drafter.sinks},
          .rebases_positions = speculation.drafter.rebase_positions,
          .pass = limits.pass,
          .num_pages = limits.num_pages,
          .page_size = limits.page_size,
          .graphs = limits.graphs};
}

}  // namespace

DraftNeeds draft_needs(const SpeculationConfig& speculation, const std::optional<DraftModel>& model,
                       const ModelConfig& target, const Backend& backend, DType dtype, const DrafterLimits& limits) {
  const std::size_t element = size_of(backend.ops->activation_dtype());
  if (const auto* dflash = std::get_if<DFlashModel>(&*model)) {
    const DFlashDrafter::Limits own = dflash_limits(speculation, draft_shape(speculation, model).max_nodes, limits);
    return {.weights = dflash->bytes(),
            .shared_kv_bytes_per_token = DFlashDrafter::shared_kv_bytes_per_token(dflash->config, dtype, own),
            .own_kv = DFlashDrafter::own_kv_bytes(dflash->config, dtype, own),
            .activations = DFlashDrafter::activation_bytes(*dflash, element, own),
            .num_layers = dflash->config.decoder.num_layers,
            .hidden_layers = dflash->config.target_layers};
  }
  if (const auto* longspec = std::get_if<LongSpecModel>(&*model)) {
    const LongSpecDrafter::Limits own = longspec_limits(speculation, limits);
    return {.weights = longspec->weights.bytes(),
            .own_kv = LongSpecDrafter::kv_bytes(longspec->config, target, dtype, own),
            .activations = LongSpecDrafter::activation_bytes(*longspec, target, element, own),
            .num_layers = 1,
            .lookahead_rows = LongSpecDrafter::lookahead_rows(own)};
  }
  const StandaloneModel& small = std::get<StandaloneModel>(*model);
  const ModelConfig& config = small.config;
  return {.weights = small.weights.bytes(),
          .shared_kv_bytes_per_token =
              KvShape{config.num_layers, config.num_kv_heads, config.head_dim, dtype}.bytes_per_token(),
          .activations = StandaloneDrafter::activation_bytes(
              config, element, standalone_limits(target, draft_shape(speculation, model).max_nodes, limits)),
          .num_layers = config.num_layers,
          .lookahead_rows = draft_shape(speculation, model).max_nodes};
}

std::unique_ptr<Drafter> make_drafter(const SpeculationConfig& speculation, std::optional<DraftModel> model,
                                      const TargetParts& target, Backend& backend, DType dtype,
                                      const DrafterLimits& limits) {
  const DrafterConfig& drafter = speculation.drafter;
  if (drafter.kind.empty()) return nullptr;
  const int max_drafted = draft_shape(speculation, model).max_nodes;
  if (drafter.kind == "ngram") {
    return std::make_unique<NgramDrafter>(drafter.ngram_min, drafter.ngram_max, max_drafted);
  }
  FS_CHECK(model.has_value(), drafter.kind, " drafter without a model");
  if (drafter.kind == "longspec") {
    return std::make_unique<LongSpecDrafter>(std::get<LongSpecModel>(std::move(*model)), target.config, target.weights,
                                             target.kv.layers().back(), backend, dtype,
                                             longspec_limits(speculation, limits));
  }
  if (drafter.kind == "dflash") {
    return std::make_unique<DFlashDrafter>(std::get<DFlashModel>(std::move(*model)), target.hidden, backend, dtype,
                                           dflash_limits(speculation, max_drafted, limits));
  }
  StandaloneModel small = std::get<StandaloneModel>(std::move(*model));
  return std::make_unique<StandaloneDrafter>(small.config, std::move(small.weights), backend, dtype,
                                             standalone_limits(target.config, max_drafted, limits));
}

}  // namespace fastspec
