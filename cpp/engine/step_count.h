// What a step adds to the statistics. Counts only.
#pragma once

#include <fastspec/engine.h>

#include <cstddef>

#include "engine/step.h"

namespace fastspec {

/// Adds a collected step to the engine's totals and to those of its sequences.
/// @param kv_bytes_per_token of the target.
void count(const Step& step, std::size_t kv_bytes_per_token, EngineStats& stats);

}  // namespace fastspec
