// The one surface of compute. Every method reads and writes only what its params point to; none allocates device memory
// beyond workspace_bytes(), none waits for the device. A backend is an Ops and a Device (backend.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "backend/params.h"

namespace fastspec {

/// The largest passes of one model, which workspaces are sized for.
struct WorkspaceLimits {
  int max_rows = 0;
  int max_sequences = 0;
  std::int64_t max_keys = 0;  // of one sequence, cached and new
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int hidden_size = 0;
  int max_scored_rows = 0;  // of one sequence in one score_keys or score_pages: rows times heads; 0 = neither is called
};

class Ops {
 public:
  virtual ~Ops() = default;

  virtual void embed(const EmbeddingParams& params) = 0;
  virtual void copy_rows(const CopyRowsParams& params) = 0;
  virtual void rms_norm(const RmsNormParams& params) = 0;
  virtual void linear(const LinearParams& params) = 0;
  virtual void rope_store(const RopeStoreParams& params) = 0;
  virtual void attention(const AttentionParams& params) = 0;
  virtual void merge(const MergeParams& params) = 0;
  virtual void score_keys(const ScoreKeysParams& params) = 0;
  virtual void score_pages(const ScorePagesParams& params) = 0;
  virtual void update_page_bounds(const PageBoundsParams& params) = 0;
  virtual void select_slots(const SelectSlotsParams& params) = 0;
  virtual void silu_mul(const SiluMulParams& params) = 0;
  virtual void copy_slots(const CopySlotsParams& params) = 0;
  /// Issues the draws and walks of trees. What `params` points to may change when this returns, but for the results:
  /// they are written by await_accept() at the latest.
  virtual void accept(const AcceptParams& params) = 0;
  /// Waits for the last accept(), if one was issued and not waited for: its results can be read.
  virtual void await_accept() = 0;
  /// Says which rules the calls of propose() that follow are under, those in recordings too. The rules and what they
  /// point to stay as they are until await_proposals(). @returns their class: which work they ask for. What was
  /// recorded under rules of one class serves no other.
  virtual int set_rules(const ProposalRules& rules) = 0;
  virtual void propose(const ProposeParams& params) = 0;
  virtual void grow_beam(const GrowBeamParams& params) = 0;
  /// Waits for what was issued: results of propose() and grow_beam() in the host's memory can be read.
  virtual void await_proposals() = 0;

  /// Element type of activations (Matrix) that this backend computes in.
  virtual DType activation_dtype() const = 0;
  /// Device memory that operations take beside what they are given, at most, for passes within the limits.
  virtual std::size_t workspace_bytes([[maybe_unused]] const WorkspaceLimits& limits) const { return 0; }
  /// Allocates the large parts of it. @throws Error(kOutOfMemory).
  virtual void reserve([[maybe_unused]] const WorkspaceLimits& limits) {}
  /// What answers attention of long prompt chunks, for people.
  virtual std::string prompt_attention() const { return "own kernels"; }
};

}  // namespace fastspec
