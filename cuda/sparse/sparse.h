// Kernels of sparse passes: scores of keys and pages, page bounds, selection of slots. Every launcher enqueues on
// `stream` and returns: no allocation, no synchronisation, no host read of device data; a launch can be captured, and
// replayed with other lengths and rows up to the stated maxima. Shapes as in backend/params.h.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/params.h"
#include "sparse/score_layout.h"

namespace fastspec::cuda {

/// Sequences [first, first + count) of a call.
struct ScoreSlice {
  int first = 0;
  int count = 0;
};

/// Logits of all named heads and rows: K is read once for every unit. K and query have one element type.
/// @param bounds null: of keys; else of page bounds, see ScorePagesParams.
void launch_score_logits(const ScoreKeysParams& params, const void* bounds, const ScoreWork& work,
                         const ScoreMemory& memory, ScoreSlice slice, cudaStream_t stream);

/// Softmax, pooling and mean of these logits, into the scores.
void launch_score_pool(const ScoreKeysParams& params, const ScoreWork& work, const ScoreMemory& memory,
                       ScoreSlice slice, cudaStream_t stream);

constexpr std::int32_t kMostSelectedKeys = (1 << 24) - 2;  // of one list

/// One launch.
/// @param architecture compute capability, 90 for 9.0: from 90 on several blocks share a sequence.
/// @returns what the launch says.
cudaError_t launch_select_slots(const SelectSlotsParams& params, int architecture, cudaStream_t stream);

void launch_page_bounds(const PageBoundsParams& params, cudaStream_t stream);

}  // namespace fastspec::cuda
