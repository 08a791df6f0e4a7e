// Double-precision oracles of the backend operations, written from the comments of backend/params.h alone. They share
// no code with the backends: own addressing, own conversions, one obvious loop each. Slow on purpose.
#pragma once

#include <vector>

#include "backend/params.h"

namespace fastspec::oracle {

/// Element `index` of an array of `dtype`, exact.
double read_element(const void* data, DType dtype, std::int64_t index);
/// Rounds to nearest even into element `index` of an array of `dtype`.
void write_element(void* data, DType dtype, std::int64_t index, double value);

/// All oracles return the whole result, row-major and dense, and write nothing.
std::vector<double> embed(const EmbeddingParams& params);
std::vector<double> rms_norm(const RmsNormParams& params);
std::vector<double> linear(const LinearParams& params);  // reads output before the call where it accumulates
std::vector<double> silu_mul(const SiluMulParams& params);

struct RopeResult {
  std::vector<double> query;  // [rows, num_heads, head_dim]
  std::vector<double> key;    // [rows, num_kv_heads, head_dim], not rounded to the K/V type
  std::vector<double> value;  // [rows, num_kv_heads, head_dim]
};
RopeResult rope_store(const RopeStoreParams& params);

struct AttentionResult {
  std::vector<double> output;  // [rows, num_heads, head_dim]
  std::vector<double> lse;     // [rows, num_heads]
};
AttentionResult attention(const AttentionParams& params);

/// Position of K (which 0) or V (which 1) element d of a slot in the pool, in elements.
std::int64_t kv_index(const KvView& kv, Slot slot, int kv_head, int which, int d);

}  // namespace fastspec::oracle
