// The next level of draft trees, see GrowBeamParams. One implementation for both CPU paths.
#pragma once

#include "backend/params.h"

namespace fastspec::cpu {

/// @throws Error(kInternal) for sizes that contradict each other.
void grow_beam(const GrowBeamParams& params);

}  // namespace fastspec::cpu
