// Kernels of a layer besides attention and matrix products. Every launcher enqueues one kernel on `stream` and returns:
// no allocation, no synchronisation, no host read of device data; a launch can be captured. Pointers inside the params
// are device pointers, shapes as in backend/params.h. Element types of activations, weights and K/V of one call are the
// same (norm weights and biases are float32); arithmetic is float32. Rows of matrices are at least 4-byte aligned.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/params.h"

namespace fastspec::cuda {

/// Rows of the table, copied.
void launch_embedding(const EmbeddingParams& params, cudaStream_t stream);

/// Rows taken through row_index where given, copied.
void launch_copy_rows(const CopyRowsParams& params, cudaStream_t stream);

/// input * weight / rms(input), rows taken through row_index where given. `output` may be `input` without row_index.
void launch_rms_norm(const RmsNormParams& params, cudaStream_t stream);

/// Splits q, k, v; norm and rotation of q and k; K and V into their slots. Rows' slots are distinct.
void launch_rope_store(const RopeStoreParams& params, cudaStream_t stream);

/// gate / (1 + exp(-gate)) * up.
void launch_silu_mul(const SiluMulParams& params, cudaStream_t stream);

/// output = bias in every row, or output += bias.
void launch_bias(const Matrix& output, const Vector& bias, bool accumulate, cudaStream_t stream);

/// See MergeParams.
void launch_merge(const MergeParams& params, cudaStream_t stream);

/// K and V of all layers in one launch. `layers` [num_layers] and `moves` [num_moves] lie in device memory here; bases
/// and strides of K/V are multiples of 16 bytes.
void launch_copy_slots(const CopySlotsParams& params, cudaStream_t stream);

}  // namespace fastspec::cuda
