// The inner loops of the fast CPU path as tables of functions, one table an instruction set, chosen at run time. The
// loops are templates over a vector type (simd_*.h); each kernels_*.cpp instantiates them for one. Plain pointers only.
#pragma once

#include <cstdint>

#include "backend/cpu/half.h"
#include "base/types.h"

namespace fastspec::cpu {

/// What one pass over a row of logits tells.
struct LogitSummary {
  float top = 0;         // largest value
  TokenId token = 0;     // its lowest index
  float second = 0;      // largest value at any other index; -inf for one entry
  float sum = 0;         // sum of exp(x - top) where asked for; 0 where top is infinite
  bool has_nan = false;  // the other fields mean nothing then
};

struct VocabKernels {
  LogitSummary (*summarize)(const float* logits, int size, bool with_sum);
  /// Indices with logits[i] > threshold (>= where `inclusive`), ascending, plus `base`; returns how many.
  int (*gather_above)(const float* logits, int size, float threshold, bool inclusive, TokenId base, TokenId* indices);
  /// Sum of exp((x - top) * scale).
  float (*sum_exp)(const float* logits, int size, float top, float scale);
};

struct Kernels {
  const char* name;  // "avx512", "avx2", "portable"
  VocabKernels vocab;
};

/// The best table that this processor can run.
const Kernels& best_kernels();
/// All tables that this processor can run, best first; null-terminated.
const Kernels* const* runnable_kernels();

}  // namespace fastspec::cpu
