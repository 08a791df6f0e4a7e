// What a step adds to the statistics. Counts only.
#pragma once

#include <fastspec/engine.h>

#include "engine/step.h"

namespace fastspec {

/// Adds a collected step to the engine's totals and to those of its sequences.
void count(const Step& step, EngineStats& stats);

}  // namespace fastspec
