// The one place where memory is divided.
#include "memory/memory_planner.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace fastspec {

MemoryPlan plan_memory(const MemoryRequest& request) {
  const std::size_t page_bytes = request.kv_bytes_per_token * request.page_size;
  const auto pages_for = [&](std::size_t tokens) { return (tokens + request.page_size - 1) / request.page_size; };
  const std::size_t scratch_pages = pages_for(request.num_scratch_slots);
  const std::size_t wanted_pages = pages_for(request.max_model_len) * request.max_num_seqs;

  std::size_t budget = request.kv_cache_bytes;
  if (budget == 0) budget = std::min((wanted_pages + scratch_pages) * page_bytes, request.available_bytes / 3);
  const std::size_t total_pages = budget / page_bytes;
  if (total_pages <= scratch_pages) {
    fail(ErrorCode::kOutOfMemory, "the KV cache may take ", budget, " bytes, but one page of ", request.page_size,
         " tokens takes ", page_bytes, " and the scratch rows of a step ", scratch_pages * page_bytes,
         ": raise kv_cache_bytes or lower max_num_seqs, max_draft_tokens or page_size");
  }
  if (request.kv_cache_bytes > request.available_bytes) {
    fail(ErrorCode::kOutOfMemory, "kv_cache_bytes is ", request.kv_cache_bytes, ", available are ",
         request.available_bytes, " bytes");
  }
  MemoryPlan plan;
  plan.num_scratch_pages = static_cast<int>(scratch_pages);
  // More pages than every sequence at full length could hold would never be used.
  plan.num_pages = static_cast<int>(
      std::min<std::size_t>({total_pages - scratch_pages, wanted_pages, std::numeric_limits<int>::max() / 2}));
  plan.bytes = (plan.num_pages + scratch_pages) * page_bytes;
  return plan;
}

}  // namespace fastspec
