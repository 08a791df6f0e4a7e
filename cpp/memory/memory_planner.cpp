// The one place where memory is divided.
#include "memory/memory_planner.h"

#include <algorithm>
#include <limits>
#include <sstream>
#include <string>

#include "base/check.h"

namespace fastspec {

namespace {

std::string mebibytes(std::size_t bytes) {
  return std::to_string(bytes >> 20) + " MiB";
}

std::string needs_text(const MemoryNeeds& needs) {
  std::ostringstream text;
  text << "weights " << mebibytes(needs.weights);
  if (needs.draft_weights > 0) text << ", draft weights " << mebibytes(needs.draft_weights);
  if (needs.draft_own_kv > 0) text << ", draft window " << mebibytes(needs.draft_own_kv);
  text << ", activations " << mebibytes(needs.activations) << ", workspaces " << mebibytes(needs.workspaces)
       << ", graphs " << mebibytes(needs.graphs);
  return text.str();
}

/// Everything that the engine may take of a device with memory of its own.
std::size_t limit_of(const MemoryRequest& request) {
  const MemoryNeeds& needs = request.needs;
  const auto share = static_cast<std::size_t>(static_cast<double>(request.total_bytes) * request.utilization);
  return std::min(share, request.available_bytes + needs.weights + needs.draft_weights);
}

/// What the pools may take.
std::size_t pool_budget(const MemoryRequest& request, std::size_t wanted) {
  const MemoryNeeds& needs = request.needs;
  if (request.total_bytes == 0) {
    if (request.kv_cache_bytes > request.available_bytes) {
      fail(ErrorCode::kOutOfMemory, "kv_cache_bytes is ", request.kv_cache_bytes, ", available are ",
           request.available_bytes, " bytes");
    }
    return request.kv_cache_bytes > 0 ? request.kv_cache_bytes : std::min(wanted, request.available_bytes / 3);
  }
  if (request.kv_cache_bytes > 0) {  // given bytes count, not the share
    if (request.kv_cache_bytes + needs.pending() > request.available_bytes) {
      fail(ErrorCode::kOutOfMemory, "kv_cache_bytes is ", request.kv_cache_bytes, ", available on the device are ",
           request.available_bytes, " bytes, of which the engine takes ", needs.pending(),
           " beside: ", needs_text(needs));
    }
    return request.kv_cache_bytes;
  }
  const std::size_t limit = limit_of(request);
  const std::size_t taken = needs.weights + needs.draft_weights + needs.pending();
  if (taken >= limit) {
    fail(ErrorCode::kOutOfMemory, "the engine may take ", mebibytes(limit), " of the device's ",
         mebibytes(request.total_bytes), " (gpu_memory_utilization ", request.utilization, ", available ",
         mebibytes(request.available_bytes), "), and nothing of it is left for the KV cache: ", needs_text(needs),
         "; raise gpu_memory_utilization, or lower max_batch_rows, max_num_seqs or max_draft_tokens");
  }
  return std::min(wanted, limit - taken);
}

}  // namespace

MemoryPlan plan_memory(const MemoryRequest& request) {
  const std::size_t page_size = static_cast<std::size_t>(request.page_size);
  const std::size_t page_bytes =
      (request.kv_bytes_per_token + request.draft_kv_bytes_per_token) * page_size + request.selector_bytes_per_page;
  const auto pages_for = [&](int tokens) { return (static_cast<std::size_t>(tokens) + page_size - 1) / page_size; };
  const std::size_t scratch_pages = pages_for(request.num_scratch_slots);
  const std::size_t wanted_pages = pages_for(request.max_model_len) * static_cast<std::size_t>(request.max_num_seqs);

  const std::size_t budget = pool_budget(request, (wanted_pages + scratch_pages) * page_bytes);
  const std::size_t total_pages = budget / page_bytes;
  if (total_pages <= scratch_pages) {
    fail(ErrorCode::kOutOfMemory, "the KV cache may take ", budget, " bytes, but one page of ", request.page_size,
         " tokens takes ", page_bytes, " and the scratch rows of a step ", scratch_pages * page_bytes,
         ": raise kv_cache_bytes or lower max_num_seqs, max_draft_tokens or page_size",
         request.total_bytes > 0 ? " (beside it: " + needs_text(request.needs) + ")" : "");
  }
  MemoryPlan plan;
  plan.num_scratch_pages = static_cast<int>(scratch_pages);
  // More pages than every sequence at full length could hold would never be used.
  plan.num_pages = static_cast<int>(
      std::min<std::size_t>({total_pages - scratch_pages, wanted_pages, std::numeric_limits<int>::max() / 2}));
  const std::size_t pages = static_cast<std::size_t>(plan.num_pages) + scratch_pages;
  plan.bytes = pages * page_bytes;
  plan.draft_bytes = pages * page_size * request.draft_kv_bytes_per_token;
  plan.scratch_bytes = scratch_pages * page_bytes;
  plan.limit_bytes = request.total_bytes == 0 ? 0 : limit_of(request);
  return plan;
}

}  // namespace fastspec
