// The row-invariant backend: plain float32 loops in which a row's result is bitwise independent of the other rows, of
// chunking, and of where the cached prefix ends and the new rows begin. Threads share out rows, heads and output
// features, which changes no result. Must be compiled without floating-point contraction.
#pragma once

#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/key_scores.h"

namespace fastspec::cpu {

class ReferenceOps final : public CpuOps {
 public:
  explicit ReferenceOps(int num_threads);

  void rms_norm(const RmsNormParams& params) override;
  void linear(const LinearParams& params) override;
  void rope_store(const RopeStoreParams& params) override;
  void attention(const AttentionParams& params) override;
  void score_keys(const ScoreKeysParams& params) override;
  void score_pages(const ScorePagesParams& params) override;
  void silu_mul(const SiluMulParams& params) override;

 private:
  /// Scratch of one thread; grows to the largest shape seen and stays.
  struct Scratch {
    std::vector<float> widened;  // one weight row, or one K or V row
    std::vector<float> scores;   // [visible keys]
    std::vector<float> sums;     // [2, head_dim]
    std::vector<Slot> visible;   // slots that the current row sees, in order of position
  };
  std::vector<Scratch> scratch_;
  ScoredRows scored_;
};

}  // namespace fastspec::cpu
