// What every backend refuses of scoring and selection: contradictions between sizes that the host knows. Arrays of the
// device are not read. A failure is a bug of the caller: Error(kInternal) naming the operation and the sizes.
#pragma once

#include "backend/params.h"

namespace fastspec {

void check_scoring(const ScoreKeysParams& params);
void check_selection(const SelectSlotsParams& params);

}  // namespace fastspec
