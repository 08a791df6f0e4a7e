// Makes the selector that a configuration names: the only place that knows them all.
#pragma once

#include <fastspec/config.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "memory/kv_pool.h"
#include "model/lookahead.h"
#include "model/model_config.h"
#include "model/transformer.h"
#include "sparse/device_selector.h"
#include "sparse/kv_selector.h"
#include "sparse/srh_manifest.h"

namespace fastspec {

/// The loaded models, which a manifest must have been made for.
struct SelectorModels {
  const ModelConfig& target;
  std::string fingerprint;  // of the target; both are asked for only where there is a manifest
  std::string draft_kind;   // "" = nothing drafts
  SrhModel drafter;         // of a draft model
};

/// How a configured selector works on these models, known before memory is divided.
struct SelectorPlan {
  std::vector<LayerHeads> history;    // of the target; by their page bounds, or whole (the oracle: all of them)
  std::vector<LayerHeads> lookahead;  // of the drafter
  SelectionShape shape;
  RowPooling pooling = RowPooling::kMean;

  /// Whose queries the target's passes keep, and the drafter's.
  std::vector<int> target_layers() const;
  std::vector<int> draft_layers() const;
};

/// nullopt when sparse passes are off. @throws Error(kUnsupported) for a target whose layers see windows of their own;
/// what reading and checking a manifest throws.
std::optional<SelectorPlan> plan_selector(const SparseConfig& config, const SelectorModels& models);

/// What the engine allows a selector.
struct SelectorLimits {
  int max_sequences = 0;
  int max_keys = 0;  // of a sequence
  int page_size = 0;
  int pass_rows = 0;       // of a sparse sequence in a pass, at most
  int lookahead_rows = 0;  // of a sequence in Drafter::lookahead(), at most
};

/// What a selector takes of the device, in bytes, and of the operations.
struct SelectorNeeds {
  std::size_t memory = 0;
  std::size_t bytes_per_page = 0;  // of the cache
  int max_scored_rows = 0;         // see WorkspaceLimits
};
SelectorNeeds selector_needs(const SparseConfig& config, const SelectorPlan& plan, const ModelConfig& target,
                             std::size_t element_size, DType kv_dtype, const SelectorLimits& limits);

/// What selectors read, which outlives them.
struct SelectorParts {
  Transformer& target;
  const KvPool& kv;
  int num_pages = 0;  // of the pool
  const Lookahead* lookahead = nullptr;
};

std::unique_ptr<KvSelector> make_selector(const SparseConfig& config, const SelectorPlan& plan, Backend& backend,
                                          const SelectorParts& parts, const SelectorLimits& limits);

}  // namespace fastspec
