// Refuses operation arguments that contradict each other before anything is written. A failure is a bug of the caller:
// Error(kInternal) naming the operation and the sizes.
#pragma once

#include "backend/params.h"

namespace fastspec::cpu {

void check_params(const EmbeddingParams& params);
void check_params(const CopyRowsParams& params);
void check_params(const RmsNormParams& params);
void check_params(const LinearParams& params);
void check_params(const SiluMulParams& params);
void check_params(const RopeStoreParams& params);
void check_params(const AttentionParams& params);
void check_params(const ScoreKeysParams& params);
void check_params(const ScorePagesParams& params);
void check_params(const PageBoundsParams& params);
void check_params(const SelectSlotsParams& params);
void check_params(const MergeParams& params);
void check_params(const CopySlotsParams& params);

}  // namespace fastspec::cpu
