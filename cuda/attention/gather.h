// Copies the keys and values of some sequences from the pool into dense arrays, for kernels that know no lists.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/params.h"

namespace fastspec::cuda {

struct GatherKvParams {
  KvView kv;
  int num_sequences = 0;
  const std::int32_t* row_offsets = nullptr;  // [num_sequences + 1] rows of the pass
  const KvList* lists = nullptr;              // [num_sequences]
  const Slot* entries = nullptr;              // see KvList
  const Slot* slots = nullptr;                // [rows of the pass]
  int max_keys = 0;                           // at least those of the longest sequence, cached and new
  void* keys = nullptr;                       // [num_keys, num_kv_heads, head_dim] written, sequence by sequence
  void* values = nullptr;                     // the same
  std::int32_t* key_offsets = nullptr;        // [num_sequences + 1] written: first key of each sequence
};

/// Each sequence's list, then its new rows. One launch; addresses and strides are multiples of 16 bytes.
cudaError_t launch_gather_kv(const GatherKvParams& params, cudaStream_t stream);

}  // namespace fastspec::cuda
