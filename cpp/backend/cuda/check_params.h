// Refuses operation arguments that contradict each other or the kernels' needs, before anything is launched. Looks at
// shapes, element types and alignment; what lies in device memory is not read. A failure is a bug of the caller:
// Error(kInternal) naming the operation and the sizes.
#pragma once

#include "backend/params.h"

namespace fastspec::cuda {

/// @param dtype the backend's element type: of activations, weights and K/V.
void check_params(const EmbeddingParams& params, DType dtype);
void check_params(const CopyRowsParams& params, DType dtype);
void check_params(const RmsNormParams& params, DType dtype);
/// The output may be float32 whatever the dtype.
void check_params(const LinearParams& params, DType dtype);
void check_params(const SiluMulParams& params, DType dtype);
void check_params(const RopeStoreParams& params, DType dtype);
void check_params(const AttentionParams& params, DType dtype);
void check_params(const ScoreKeysParams& params, DType dtype);
void check_params(const ScorePagesParams& params, DType dtype);
void check_params(const PageBoundsParams& params, DType dtype);
void check_params(const SelectSlotsParams& params);
void check_params(const MergeParams& params, DType dtype);
void check_params(const CopySlotsParams& params, DType dtype);

}  // namespace fastspec::cuda
