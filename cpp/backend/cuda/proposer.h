// Proposals of draft models and the growth of their trees on the GPU. What they read lies in device memory, and what
// they write may be pinned memory, so that a whole draft can be recorded; the rules come in beside the recording.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "backend/cuda/cuda_context.h"
#include "backend/cuda/device_rules.h"
#include "backend/cuda/pinned_pack.h"
#include "backend/cuda/sampling_memory.h"
#include "backend/params.h"

namespace fastspec::cuda {

class Proposer {
 public:
  /// Device memory that calls of any size take at most: lists and histograms of a slice, statistics of its rows, and
  /// what was outgrown.
  static constexpr std::size_t kMostBytes = std::size_t{96} << 20;

  explicit Proposer(std::shared_ptr<CudaContext> context);

  /// See Ops::set_rules. @throws Error(kInternal) for tokens outside the vocabulary, Error(kUnsupported) for too many.
  int set_rules(const ProposalRules& rules);
  void propose(const ProposeParams& params);
  void grow_beam(const GrowBeamParams& params);
  void await_proposals();

 private:
  void upload_rules();
  SamplingBatch make_batch(const ProposeParams& params, int slice_rows);
  /// Rows that are worked on together.
  int slice_rows(const ProposeParams& params) const;
  void run_slice(const SamplingBatch& batch) const;

  std::shared_ptr<CudaContext> context_;
  DeviceRules rules_;
  PinnedPack pack_;                 // arrays that the rules point to
  Buffer pinned_rules_;             // DeviceRule [kMostRules]
  Buffer device_rules_;             // the same, where recorded work reads them
  int num_uploaded_ = 0;            // rules that are there
  bool is_awaited_ = true;          // nothing reads pinned memory any more
  bool adjusts_ = false;            // any of the rules changes logits
  bool filters_ = false;            // any of them has top-k or top-p
  std::vector<Buffer> workspaces_;  // the last is the largest; recorded work may use the others
  FilterMemory filter_memory_;
};

}  // namespace fastspec::cuda
