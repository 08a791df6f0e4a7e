// Makes the selector that a configuration names: the only place that knows them all.
#pragma once

#include <fastspec/config.h>

#include <memory>

#include "model/model_config.h"
#include "sparse/kv_selector.h"

namespace fastspec {

/// nullptr when sparse passes are off. @throws Error(kUnsupported) for a target whose layers see windows of their own.
std::unique_ptr<KvSelector> make_selector(const SparseConfig& config, const ModelConfig& target, int page_size);

}  // namespace fastspec
