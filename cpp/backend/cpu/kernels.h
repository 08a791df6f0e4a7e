// The inner loops of the fast CPU path as tables of functions, one table an instruction set, chosen at run time. The
// loops are templates over a vector type (simd_*.h); each *_kernels.cpp instantiates them for one. Plain pointers only.
#pragma once

#include <cstdint>

#include "backend/cpu/half.h"
#include "backend/noise.h"
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
  /// Noise words of the tokens 4 * first_block .. of `num_blocks` blocks, as noise::token_block() gives them.
  void (*noise_words)(const noise::DrawKey& key, std::uint32_t first_block, int num_blocks, std::uint32_t* words);
  /// Indices, ascending, plus `base`, whose (logit - top) * scale + noise is not surely below `threshold`: the noise is
  /// taken with an error that is allowed for. Never one at -inf.
  int (*gather_perturbed)(const float* logits, const std::uint32_t* words, int size, float top, float scale,
                          float threshold, TokenId base, TokenId* indices);
  /// Sum of exp((logit - top) * scale + noise - shift), relative error below 1e-4.
  float (*perturbed_sum)(const float* logits, const std::uint32_t* words, int size, float top, float scale,
                         float shift);
  /// Sum of exp((x - top) * scale).
  float (*sum_exp)(const float* logits, int size, float top, float scale);
};

/// One thread's share of a linear layer: output columns [begin, end) of all rows.
struct LinearTask {
  const void* input = nullptr;  // [rows, in_features], float32 but for bfloat16_dot
  std::int64_t input_stride = 0;
  int rows = 0;
  const void* weight = nullptr;  // [out_features, in_features]
  int in_features = 0;
  int begin = 0;
  int end = 0;
  const float* bias = nullptr;  // [out_features] or null
  bool accumulate = false;
  float* output = nullptr;  // [rows, out_features]
  std::int64_t output_stride = 0;
};

struct LinearKernels {
  void (*float32)(const LinearTask& task);
  void (*bfloat16)(const LinearTask& task);
  void (*float16)(const LinearTask& task);
  /// bfloat16 input and weight, float32 sums; null where the processor has no such product.
  void (*bfloat16_dot)(const LinearTask& task);
};

/// Operations on one row or one head.
struct RowKernels {
  /// output = input / rms(input) * weight; in place allowed.
  void (*rms_norm)(const float* input, const float* weight, int size, float eps, float* output);
  /// output = gate / (1 + exp(-gate)) * up
  void (*silu_mul)(const float* gate, const float* up, int size, float* output);
  /// Rotates the pairs (i, i + half): cosines and sines [half]; in place allowed.
  void (*rotate)(const float* input, const float* cosines, const float* sines, int half, float* output);
  void (*widen_bfloat16)(const BFloat16* input, int size, float* output);
  void (*widen_float16)(const Float16* input, int size, float* output);

  void (*narrow_bfloat16)(const float* input, int size, BFloat16* output);
  void (*narrow_float16)(const float* input, int size, Float16* output);

  void widen(const BFloat16* input, int size, float* output) const { widen_bfloat16(input, size, output); }
  void widen(const Float16* input, int size, float* output) const { widen_float16(input, size, output); }
  void narrow(const float* input, int size, BFloat16* output) const { narrow_bfloat16(input, size, output); }
  void narrow(const float* input, int size, Float16* output) const { narrow_float16(input, size, output); }
  void narrow(const float* input, int size, float* output) const {
    for (int i = 0; i < size; ++i) output[i] = input[i];
  }
};

constexpr int kTileKeys = 64;  // keys that attention looks at together: the bits of one mask word

/// One tile of keys against a block of packed rows (row x heads of a group), folded into a running softmax. Dimensions
/// are padded to whole vectors, with zeros in the padding of query and values.
struct AttentionTile {
  int rows = 0;                           // packed rows
  int group_size = 1;                     // packed rows that share a row's mask
  int keys = 0;                           // 1 to kTileKeys
  int head_dim = 0;                       // padded
  const float* query = nullptr;           // [rows, head_dim] scaled
  const void* const* key_rows = nullptr;  // [kTileKeys] entries past `keys` repeat a valid one
  const void* const* value_rows = nullptr;
  const std::uint64_t* visible = nullptr;  // [rows / group_size] bit k: key k is seen; no bit at or past `keys`
  float* scores = nullptr;                 // [rows, kTileKeys] scratch
  float* top = nullptr;                    // [rows] running maximum, -inf before the first key
  float* sum = nullptr;                    // [rows] running sum of exp(score - top)
  float* output = nullptr;                 // [rows, head_dim] running sum of exp(score - top) * value
};

struct AttentionKernels {
  void (*float32)(const AttentionTile& tile);
  void (*bfloat16)(const AttentionTile& tile);
  void (*float16)(const AttentionTile& tile);
  void (*scores)(const AttentionTile& tile);  // of float32 keys: fills tile.scores and does nothing else
  int width;                                  // head_dim must be a multiple of this
};

struct Kernels {
  const char* name;  // "avx512_bf16", "avx512", "avx2", "portable"
  // Rows of a pass from which libtorch's float32 product is faster than ours, by measurement.
  int torch_rows;
  VocabKernels vocab;
  LinearKernels linear;
  RowKernels row;
  AttentionKernels attention;
};

/// The best table that this processor can run.
const Kernels& best_kernels();
/// All tables that this processor can run, best first; null-terminated.
const Kernels* const* runnable_kernels();

}  // namespace fastspec::cpu
