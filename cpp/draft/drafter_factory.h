// Makes the drafter that a configuration names: the only place that knows them all.
#pragma once

#include <fastspec/config.h>

#include <cstddef>
#include <memory>
#include <optional>

#include "backend/backend.h"
#include "draft/drafter.h"
#include "memory/kv_pool.h"
#include "model/model_config.h"
#include "model/pass.h"
#include "model/weights.h"

namespace fastspec {

/// A drafter's own model, loaded before memory is divided because its K/V shares the slot space.
struct DraftModel {
  ModelConfig config;
  Weights weights;
};

/// Loads the draft model that `speculation` names; nullopt for drafters without one.
/// @throws Error naming the directory; kInvalidArgument when its tokenizer is not the target's.
std::optional<DraftModel> load_draft_model(const EngineConfig& config, DType dtype, Device& device,
                                           const Tokenizer* target_tokenizer, const LoadProgress& progress);

struct DrafterLimits {
  PassLimits pass;
  int vocab_size = 0;
  int num_pages = 0;  // scratch pages included
  int page_size = 0;
  GraphLimits graphs;  // of a draft model's passes
};

/// nullptr when speculation is off.
std::unique_ptr<Drafter> make_drafter(const SpeculationConfig& speculation, std::optional<DraftModel> model,
                                      Backend& backend, DType dtype, const DrafterLimits& limits);

}  // namespace fastspec
