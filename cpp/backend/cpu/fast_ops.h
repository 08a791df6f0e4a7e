// The fast CPU backend: own vector kernels where weights or K/V are read once for a few rows, libtorch for large matrix
// products. A row's rounding may vary with the number of rows of its pass.
#pragma once

#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/fast_attention.h"
#include "backend/cpu/fast_scores.h"
#include "backend/cpu/kernels.h"

namespace fastspec::cpu {

class FastOps final : public CpuOps {
 public:
  explicit FastOps(int num_threads, const Kernels& kernels = best_kernels());

  void rms_norm(const RmsNormParams& params) override;
  void linear(const LinearParams& params) override;
  void rope_store(const RopeStoreParams& params) override;
  void attention(const AttentionParams& params) override;
  void score_keys(const ScoreKeysParams& params) override;
  void score_pages(const ScorePagesParams& params) override;
  void silu_mul(const SiluMulParams& params) override;

 private:
  /// Cosines and sines of a pass's rows. All layers of a pass share them: rebuilt only when an argument changes.
  struct RopeTable {
    std::vector<std::int32_t> positions;
    std::vector<float> inverse_frequencies;
    float attention_factor = 0;
    std::vector<float> cosines, sines;  // [rows, head_dim / 2]

    void update(const RopeStoreParams& params);
  };

  void linear_on_torch(const LinearParams& params);
  const BFloat16* narrow_input(const Matrix& input);
  void rope_row(const RopeStoreParams& params, int row, float* scratch) const;

  const Kernels& kernels_;
  FastAttention attention_;
  FastScores scores_;
  RopeTable rope_;
  std::vector<float> head_scratch_;     // [threads, head_dim]
  std::vector<BFloat16> narrow_input_;  // [rows, in_features] activations of a prompt chunk
};

}  // namespace fastspec::cpu
