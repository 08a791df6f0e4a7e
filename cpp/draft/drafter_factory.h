// Makes the drafter that a configuration names: the only place that knows them all.
#pragma once

#include <fastspec/config.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "backend/backend.h"
#include "draft/dflash/dflash_model.h"
#include "draft/drafter.h"
#include "draft/longspec/longspec_model.h"
#include "memory/kv_pool.h"
#include "model/model_config.h"
#include "model/pass.h"
#include "model/weights.h"

namespace fastspec {

/// A small model, whose K/V shares the target's slot space.
struct StandaloneModel {
  ModelConfig config;
  Weights weights;
};

/// A drafter's own model, loaded before memory is divided.
using DraftModel = std::variant<StandaloneModel, LongSpecModel, DFlashModel>;

/// What a draft model takes of the device, in bytes.
struct DraftNeeds {
  std::size_t weights = 0;                    // allocated already
  std::size_t shared_kv_bytes_per_token = 0;  // K/V in each slot of the target's slot space
  std::size_t own_kv = 0;                     // K/V beside them, whatever the context
  std::size_t activations = 0;                // of its largest pass, with logits and arrays
  int num_layers = 0;                         // of its recorded passes
  std::vector<int> hidden_layers;             // see DrafterNeeds
  int lookahead_rows = 0;                     // of a sequence in Drafter::lookahead(), at most
};

/// Loads the draft model that `config` names; nullopt for drafters without one.
/// @throws Error naming the directory; kInvalidArgument when it was made for another tokenizer or target.
std::optional<DraftModel> load_draft_model(const EngineConfig& config, const ModelConfig& target,
                                           const Weights& target_weights, DType dtype, Device& device,
                                           const Tokenizer* target_tokenizer, const LoadProgress& progress);

/// The transformer in it whose passes are like the target's; null where there is none.
const ModelConfig* transformer_of(const DraftModel& model);

/// What drafters may read of the target, which outlives them.
struct TargetParts {
  const ModelConfig& config;
  const Weights& weights;
  const KvPool& kv;
  Matrix hidden;  // what it keeps for a drafter that asks for hidden layers
};

struct DrafterLimits {
  PassLimits pass;
  int num_pages = 0;  // scratch pages included
  int page_size = 0;
  GraphLimits graphs;                 // of a draft model's passes
  std::vector<int> lookahead_layers;  // of the draft model, whose queries Drafter::lookahead() gives; ascending
};

/// The largest tree that the drafter of an enabled speculation proposes, known before it is made.
/// @param model the drafter's own, where it has one.
DraftShape draft_shape(const SpeculationConfig& speculation, const std::optional<DraftModel>& model);

/// @param model is there.
DraftNeeds draft_needs(const SpeculationConfig& speculation, const std::optional<DraftModel>& model,
                       const ModelConfig& target, const Backend& backend, DType dtype, const DrafterLimits& limits);

/// nullptr when speculation is off.
std::unique_ptr<Drafter> make_drafter(const SpeculationConfig& speculation, std::optional<DraftModel> model,
                                      const TargetParts& target, Backend& backend, DType dtype,
                                      const DrafterLimits& limits);

}  // namespace fastspec
