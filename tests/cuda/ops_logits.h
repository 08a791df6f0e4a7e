// Rows of logits on both sides, and rules a little beside a rule.
#pragma once

#include <algorithm>

#include "cuda/ops_gpu.h"

namespace fastspec::gpu_check {

/// Logits on both sides.
struct Logits {
  Logits(Sides& sides, std::vector<float> numbers, int vocab_size, int row_padding = 0)
      : values(std::move(numbers)), vocab(vocab_size), stride(vocab_size + row_padding), buffer(sides.put(values)) {}
  int rows() const { return static_cast<int>(values.size()) / stride; }
  Matrix host() { return {values.data(), DType::kFloat32, rows(), vocab, stride}; }
  Matrix device() const { return {buffer.data(), DType::kFloat32, rows(), vocab, stride}; }
  bool unchanged(Sides& sides) {
    return to_bytes(sides.get(buffer, values.size(), DType::kFloat32), DType::kFloat32) ==
           to_bytes(values, DType::kFloat32);
  }

  std::vector<float> values;
  int vocab, stride;
  Buffer buffer;
};

/// The rule with its thresholds moved a little, by `direction`.
inline SamplingRule nudged(SamplingRule rule, float direction) {
  if (rule.top_p < 1) rule.top_p = std::min(0.99999994f, rule.top_p * (1 + direction * 1e-6f) + direction * 1e-7f);
  rule.min_p *= 1 + direction * 1e-6f;
  return rule;
}

}  // namespace fastspec::gpu_check
