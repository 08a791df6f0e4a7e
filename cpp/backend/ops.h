// The one surface of compute. Every method reads and writes only what its params point to; none allocates device memory
// after reserve(), none waits for the device. A backend is an Ops and a Device (backend.h).
#pragma once

#include "backend/params.h"

namespace fastspec {

class Ops {
 public:
  virtual ~Ops() = default;

  virtual void embed(const EmbeddingParams& params) = 0;
  virtual void rms_norm(const RmsNormParams& params) = 0;
  virtual void linear(const LinearParams& params) = 0;
  virtual void rope_store(const RopeStoreParams& params) = 0;
  virtual void attention(const AttentionParams& params) = 0;
  virtual void merge(const MergeParams& params) = 0;
  virtual void silu_mul(const SiluMulParams& params) = 0;
  virtual void copy_slots(const CopySlotsParams& params) = 0;
  /// Issues the draws and walks of trees. What `params` points to may change when this returns, but for the results:
  /// they are written by await_accept() at the latest.
  virtual void accept(const AcceptParams& params) = 0;
  /// Waits for the last accept(), if one was issued and not waited for: its results can be read.
  virtual void await_accept() = 0;
  /// Proposals of a draft model; readable by the host when it returns.
  virtual void propose(const ProposeParams& params) = 0;

  /// Element type of activations (Matrix) that this backend computes in.
  virtual DType activation_dtype() const = 0;
};

}  // namespace fastspec
