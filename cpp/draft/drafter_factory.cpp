// The list of drafters.
#include "draft/drafter_factory.h"

#include <limits>
#include <optional>

#include "base/check.h"
#include "base/log.h"
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

std::size_t weight_bytes(const DraftModel& model) {
  return std::visit([](const auto& loaded) { return loaded.weights.bytes(); }, model);
}

std::size_t shared_kv_bytes_per_token(const DraftModel& model, DType dtype) {
  const auto* standalone = std::get_if<StandaloneModel>(&model);
  if (standalone == nullptr) return 0;
  const ModelConfig& config = standalone->config;
  return KvShape{config.num_layers, config.num_kv_heads, config.head_dim, dtype}.bytes_per_token();
}

std::optional<DraftModel> load_draft_model(const EngineConfig& config, const ModelConfig& target,
                                           const Weights& target_weights, DType dtype, Device& device,
                                           const Tokenizer* target_tokenizer, const LoadProgress& progress) {
  const DrafterConfig& drafter = config.speculation.drafter;
  if (drafter.kind == "longspec") {
    return load_longspec(drafter.model, target, target_weights, dtype, device, progress);
  }
  if (drafter.kind != "standalone") return std::nullopt;
  StandaloneModel model;
  model.config = load_model_config(drafter.model);  // first: a directory without one is no model at all
  check_same_tokenizer(drafter.model, target_tokenizer);
  model.weights = load_weights(drafter.model, model.config, dtype, device, progress);
  return model;
}

DraftShape draft_shape(const SpeculationConfig& speculation) {
  if (speculation.drafter.kind == "longspec") {
    return LongSpecDrafter::shape_of(speculation.drafter.tree_widths,
                                     speculation.max_draft_tokens.value_or(std::numeric_limits<int>::max()));
  }
  const int chain = speculation.max_draft_tokens.value_or(kChainLength);
  return {.max_nodes = chain, .max_depth = chain};
}

std::unique_ptr<Drafter> make_drafter(const SpeculationConfig& speculation, std::optional<DraftModel> model,
                                      const TargetParts& target, Backend& backend, DType dtype,
                                      const DrafterLimits& limits) {
  const DrafterConfig& drafter = speculation.drafter;
  if (drafter.kind.empty()) return nullptr;
  const int max_drafted = draft_shape(speculation).max_nodes;
  if (drafter.kind == "ngram") {
    return std::make_unique<NgramDrafter>(drafter.ngram_min, drafter.ngram_max, max_drafted);
  }
  FS_CHECK(model.has_value(), drafter.kind, " drafter without a model");
  if (drafter.kind == "longspec") {
    return std::make_unique<LongSpecDrafter>(std::get<LongSpecModel>(std::move(*model)), target.config, target.weights,
                                             target.kv.layers().back(), backend, dtype,
                                             LongSpecDrafter::Limits{.tree_widths = drafter.tree_widths,
                                                                     .max_drafted = max_drafted,
                                                                     .pass = limits.pass,
                                                                     .page_size = limits.page_size});
  }
  StandaloneModel small = std::get<StandaloneModel>(std::move(*model));
  if (small.config.max_position_embeddings < limits.max_model_len) {
    log(LogLevel::kWarning, "the draft model was made for ", small.config.max_position_embeddings,
        " positions, sequences may reach ", limits.max_model_len, ": drafts beyond are rarely accepted");
  }
  return std::make_unique<StandaloneDrafter>(small.config, std::move(small.weights), backend, dtype,
                                             StandaloneDrafter::Limits{.max_drafted = max_drafted,
                                                                       .pass = limits.pass,
                                                                       .vocab_size = target.config.vocab_size,
                                                                       .num_pages = limits.num_pages,
                                                                       .page_size = limits.page_size});
}

}  // namespace fastspec
