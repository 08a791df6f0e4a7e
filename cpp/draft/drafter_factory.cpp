// The list of drafters.
#include "draft/drafter_factory.h"

#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "draft/ngram_drafter.h"
#include "draft/standalone_drafter.h"

namespace fastspec {

namespace {

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

std::optional<DraftModel> load_draft_model(const EngineConfig& config, DType dtype, Device& device,
                                           const Tokenizer* target_tokenizer, const LoadProgress& progress) {
  const DrafterConfig& drafter = config.speculation.drafter;
  if (drafter.kind != "standalone") return std::nullopt;
  DraftModel model;
  model.config = load_model_config(drafter.model);  // first: a directory without one is no model at all
  check_same_tokenizer(drafter.model, target_tokenizer);
  model.weights = load_weights(drafter.model, model.config, dtype, device, progress);
  return model;
}

std::unique_ptr<Drafter> make_drafter(const SpeculationConfig& speculation, std::optional<DraftModel> model,
                                      Backend& backend, DType dtype, const DrafterLimits& limits) {
  const DrafterConfig& drafter = speculation.drafter;
  if (drafter.kind.empty()) return nullptr;
  if (drafter.kind == "ngram") {
    return std::make_unique<NgramDrafter>(drafter.ngram_min, drafter.ngram_max, speculation.max_draft_tokens);
  }
  if (drafter.kind == "standalone") {
    FS_CHECK(model.has_value(), "standalone drafter without a model");
    return std::make_unique<StandaloneDrafter>(model->config, std::move(model->weights), backend, dtype,
                                               StandaloneDrafter::Limits{.max_drafted = speculation.max_draft_tokens,
                                                                         .pass = limits.pass,
                                                                         .vocab_size = limits.vocab_size,
                                                                         .num_pages = limits.num_pages,
                                                                         .page_size = limits.page_size,
                                                                         .graphs = limits.graphs});
  }
  fail(ErrorCode::kInvalidArgument, "drafter \"", drafter.kind, "\": expected none, ngram or standalone:DIR");
}

}  // namespace fastspec
