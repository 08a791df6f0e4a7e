// Flash attention of a libtorch that was built for CUDA. It is compiled into a module of its own, libfastspec_flash,
// that the CUDA backend loads when it is made: libfastspec then depends on no part of torch's CUDA libraries, and a run
// on the CPU does not load them. No torch type appears here.
#pragma once

#include "backend/params.h"

namespace fastspec {

/// Causal attention of ragged rows over dense keys: row i of a sequence's n rows sees its keys but the last n - 1 - i.
/// Pointers to device memory; bfloat16 or float16 throughout.
struct FlashAttentionParams {
  Matrix query;  // [rows, num_heads * head_dim]
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;  // a multiple of 8, at most 256
  float scale = 1;
  const void* keys = nullptr;                 // [num_keys, num_kv_heads, head_dim]
  const void* values = nullptr;               // [num_keys, num_kv_heads, head_dim]
  std::int64_t num_keys = 0;                  // of all sequences
  int num_sequences = 0;                      //
  const std::int32_t* row_offsets = nullptr;  // [num_sequences + 1] rows of `query`
  const std::int32_t* key_offsets = nullptr;  // [num_sequences + 1] rows of `keys`
  int first_row = 0;                          // row_offsets[0]
  int num_rows = 0;                           // row_offsets[num_sequences] - first_row
  int max_rows = 0;                           // of one sequence
  int max_keys = 0;                           // of one sequence
  Matrix output;                              // [rows, num_heads * head_dim]; the sequences' rows are written
  float* lse = nullptr;                       // [rows, num_heads] natural log, -inf where nothing is seen; or null
  int device = 0;
  void* stream = nullptr;  // a cudaStream_t
};

/// Name and type of the module's one function. It enqueues and does not wait; torch keeps the memory that it takes for
/// the output. @returns what went wrong, valid until the thread's next call, or null.
constexpr const char* kFlashAttentionSymbol = "fastspec_flash_attention";
using FlashAttentionFunction = const char*(const FlashAttentionParams&);

}  // namespace fastspec
