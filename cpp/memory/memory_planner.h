// Divides a byte budget into pages: one plan for the target's and the draft's K/V and the scratch rows. Arithmetic
// only.
#pragma once

#include <cstddef>

namespace fastspec {

struct MemoryRequest {
  std::size_t kv_bytes_per_token = 0;  // of all models that share the slot space
  int page_size = 16;
  int max_model_len = 0;
  int max_num_seqs = 0;
  int num_scratch_slots = 0;        // drafted rows of one step
  std::size_t kv_cache_bytes = 0;   // 0 = decide
  std::size_t available_bytes = 0;  // of the device, after weights
};

struct MemoryPlan {
  int num_pages = 0;  // for sequences
  int num_scratch_pages = 0;
  std::size_t bytes = 0;  // of all pools
};

/// @throws Error(kOutOfMemory) when not even one page fits, naming the budget and what one page and the scratch rows
/// take.
MemoryPlan plan_memory(const MemoryRequest& request);

}  // namespace fastspec
