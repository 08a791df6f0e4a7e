// Divides the memory of a device: one plan for weights, the K/V of target and draft, scratch rows, activations,
// workspaces and graphs. Arithmetic only.
#pragma once

#include <cstddef>

namespace fastspec {

/// What an engine takes beside the pools, in bytes.
struct MemoryNeeds {
  std::size_t weights = 0;        // allocated already
  std::size_t draft_weights = 0;  // allocated already
  std::size_t draft_own_kv = 0;   // K/V of a drafter beside the pools
  std::size_t activations = 0;    // of a largest pass, its logits and arrays
  std::size_t workspaces = 0;     // of the operations
  std::size_t graphs = 0;         // recorded passes
  std::size_t pending() const { return draft_own_kv + activations + workspaces + graphs; }
};

struct MemoryRequest {
  std::size_t kv_bytes_per_token = 0;        // of the target
  std::size_t draft_kv_bytes_per_token = 0;  // of a draft model in the same slot space
  std::size_t selector_bytes_per_page = 0;   // of what a selector keeps of each page
  int page_size = 16;
  int max_model_len = 0;
  int max_num_seqs = 0;
  int num_scratch_slots = 0;       // drafted rows of one step
  std::size_t kv_cache_bytes = 0;  // 0 = decide
  MemoryNeeds needs;
  std::size_t available_bytes = 0;  // of the device, now
  std::size_t total_bytes = 0;  // of a device with memory of its own; 0: it is the host's, of which a third is taken
  double utilization = 0.9;     // share of total_bytes that the engine may take
};

struct MemoryPlan {
  int num_pages = 0;  // for sequences
  int num_scratch_pages = 0;
  std::size_t bytes = 0;          // of all pools
  std::size_t draft_bytes = 0;    // of these, the draft model's
  std::size_t scratch_bytes = 0;  // of these, scratch slots
  std::size_t limit_bytes = 0;    // of everything the engine takes; 0 where the memory is the host's
};

/// @throws Error(kOutOfMemory) when not even one page fits, naming the budget and who takes what.
MemoryPlan plan_memory(const MemoryRequest& request);

}  // namespace fastspec
