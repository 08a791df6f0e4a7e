// See scorer.h.
#include "backend/cuda/scorer.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/cuda_error.h"
#include "base/check.h"
#include "sparse/sparse.h"

namespace fastspec::cuda {
namespace {

// Of logits: sequences that do not fit together are scored one slice after another, and one sequence always fits.
constexpr std::size_t kPreferredBytes = std::size_t{128} << 20;

/// Bytes for some sequences of one size: all of them, or what is preferred, or one.
std::size_t bytes_for(std::size_t sequence_bytes, int num_sequences) {
  const std::size_t all = sequence_bytes * static_cast<std::size_t>(num_sequences);
  return std::min(all, std::max(kPreferredBytes, sequence_bytes));
}

}  // namespace

Scorer::Scorer(std::shared_ptr<CudaContext> context, DType dtype)
    : context_(std::move(context)), logit_bytes_(dtype == DType::kFloat32 ? sizeof(float) : 2) {}

std::size_t Scorer::workspace_bytes(const WorkspaceLimits& limits) const {
  const std::int64_t key_stride = (limits.max_keys + kScoreChunk - 1) / kScoreChunk * kScoreChunk;
  return bytes_for(score_bytes(key_stride, limits.max_scored_rows, logit_bytes_), limits.max_sequences);
}

void Scorer::grow(std::size_t bytes) {
  if (bytes <= workspace_.bytes()) return;
  if (workspace_.bytes() > 0) outgrown_.push_back(std::move(workspace_));
  workspace_ = context_->allocate(bytes, "workspace of scores");
}

void Scorer::score(const ScoreKeysParams& params, const void* bounds) {
  if (params.num_sequences == 0) return;
  ScoreWork work;
  if (!cut_into_units(params, work)) {
    fail(ErrorCode::kUnsupported, "scores of ", params.max_rows_per_sequence, " rows a sequence and ",
         params.num_scored_heads, " heads at once: name fewer heads or rows");
  }
  const std::size_t sequence_bytes = score_bytes(work.key_stride, work.num_packed, logit_bytes_);
  grow(bytes_for(sequence_bytes, params.num_sequences));
  const std::size_t most =
      sequence_bytes == 0 ? static_cast<std::size_t>(params.num_sequences) : workspace_.bytes() / sequence_bytes;
  for (ScoreSlice slice; slice.first < params.num_sequences; slice.first += slice.count) {
    const auto left = static_cast<std::size_t>(params.num_sequences - slice.first);
    slice.count = static_cast<int>(std::min(left, most));
    const ScoreMemory memory = score_memory_at(workspace_.data(), work, slice.count, logit_bytes_);
    launch_score_logits(params, bounds, work, memory, slice, context_->stream());
    check_launch("logits of scores");
    launch_score_pool(params, work, memory, slice, context_->stream());
    check_launch("pooling of scores");
  }
}

void Scorer::select_slots(const SelectSlotsParams& params) {
  FS_CHECK(params.max_keys <= kMostSelectedKeys, "select_slots: ", params.max_keys, " keys, at most ",
           kMostSelectedKeys);
  check_cuda(launch_select_slots(params, context_->architecture(), context_->stream()),
             "launch of select_slots: ", params.num_sequences, " sequences of ", params.max_keys, " keys");
}

void Scorer::update_page_bounds(const PageBoundsParams& params) {
  launch_page_bounds(params, context_->stream());
  check_launch("update_page_bounds");
}

}  // namespace fastspec::cuda
