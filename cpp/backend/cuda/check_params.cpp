// See check_params.h.
#include "backend/cuda/check_params.h"

#include <cstdint>

#include "backend/check_sparse.h"
#include "base/check.h"

namespace fastspec::cuda {
namespace {

bool is_aligned(const void* pointer, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

void check_matrix(const Matrix& matrix, DType dtype, const char* name) {
  FS_CHECK(matrix.dtype == dtype, name, ": ", to_string(matrix.dtype), " on a backend of ", to_string(dtype));
  FS_CHECK(matrix.rows >= 0 && matrix.cols > 0 && matrix.stride >= matrix.cols, name, ": rows ", matrix.rows, ", cols ",
           matrix.cols, ", stride ", matrix.stride);
  FS_CHECK(matrix.data != nullptr || matrix.rows == 0, name, ": no data");
}

/// Kernels that read pairs of elements.
void check_pairs(const Matrix& matrix, const char* name) {
  FS_CHECK(matrix.stride % 2 == 0 && is_aligned(matrix.data, 2 * size_of(matrix.dtype)), name, ": stride ",
           matrix.stride, ", rows must be whole pairs of elements");
}

void check_kv(const KvView& kv, DType dtype, const char* name) {
  FS_CHECK(kv.base != nullptr && kv.dtype == dtype, name, ": K/V pool of ", to_string(kv.dtype), " on a backend of ",
           to_string(dtype));
  FS_CHECK(kv.num_kv_heads > 0 && kv.head_dim > 0 && kv.head_dim % 8 == 0, name, ": num_kv_heads ", kv.num_kv_heads,
           ", head_dim ", kv.head_dim, " (a multiple of 8)");
  FS_CHECK(kv.page_shift >= 0 && kv.page_shift < 31, name, ": page_shift ", kv.page_shift);
  const auto whole = static_cast<std::int64_t>(16 / size_of(kv.dtype));
  FS_CHECK(is_aligned(kv.base, 16) && kv.page_stride % whole == 0 && kv.head_stride % whole == 0 &&
               kv.value_offset % whole == 0 && kv.slot_stride % whole == 0,
           name, ": strides of the K/V pool must be multiples of 16 bytes, in elements they are ", kv.page_stride, ", ",
           kv.head_stride, ", ", kv.value_offset, ", ", kv.slot_stride);
}

void check_vector(const Vector& vector, int size, const char* name) {
  FS_CHECK(vector.data == nullptr || vector.size == size, name, ": size ", vector.size, ", expected ", size);
}

}  // namespace

void check_params(const EmbeddingParams& params, DType dtype) {
  check_matrix(params.output, dtype, "embed output");
  FS_CHECK(params.table.dtype == dtype, "embed: table of ", to_string(params.table.dtype), " on a backend of ",
           to_string(dtype));
  FS_CHECK(params.table.in_features == params.output.cols, "embed: table width ", params.table.in_features,
           ", output width ", params.output.cols);
}

void check_params(const CopyRowsParams& params, DType dtype) {
  check_matrix(params.input, dtype, "copy_rows input");
  check_matrix(params.output, dtype, "copy_rows output");
  FS_CHECK(params.input.cols == params.output.cols, "copy_rows: widths ", params.input.cols, " and ",
           params.output.cols);
  FS_CHECK(params.row_index != nullptr || params.input.rows == params.output.rows, "copy_rows: rows ",
           params.input.rows, " and ", params.output.rows);
}

void check_params(const RmsNormParams& params, DType dtype) {
  check_matrix(params.input, dtype, "rms_norm input");
  check_matrix(params.output, dtype, "rms_norm output");
  FS_CHECK(params.input.cols == params.output.cols, "rms_norm: widths ", params.input.cols, " and ",
           params.output.cols);
  FS_CHECK(params.weight.data != nullptr, "rms_norm: no weight");
  check_vector(params.weight, params.input.cols, "rms_norm weight");
  FS_CHECK(params.row_index != nullptr || params.input.rows == params.output.rows, "rms_norm: rows ", params.input.rows,
           " and ", params.output.rows);
}

void check_params(const LinearParams& params, DType dtype) {
  check_matrix(params.input, dtype, "linear input");
  check_matrix(params.output, params.output.dtype == DType::kFloat32 ? DType::kFloat32 : dtype, "linear output");
  FS_CHECK(params.input.rows == params.output.rows, "linear: rows ", params.input.rows, " and ", params.output.rows);
  FS_CHECK(params.weight.data != nullptr && params.weight.dtype == dtype &&
               params.weight.in_features == params.input.cols && params.weight.out_features == params.output.cols,
           "linear: weight [", params.weight.out_features, ", ", params.weight.in_features, "] of ",
           to_string(params.weight.dtype), ", input width ", params.input.cols, ", output width ", params.output.cols);
  check_vector(params.bias, params.weight.out_features, "linear bias");
}

void check_params(const SiluMulParams& params, DType dtype) {
  check_matrix(params.gate_up, dtype, "silu_mul gate_up");
  check_matrix(params.output, dtype, "silu_mul output");
  FS_CHECK(params.gate_up.rows == params.output.rows && params.gate_up.cols == 2 * params.output.cols,
           "silu_mul: gate_up [", params.gate_up.rows, ", ", params.gate_up.cols, "], output [", params.output.rows,
           ", ", params.output.cols, "]");
}

void check_params(const RopeStoreParams& params, DType dtype) {
  check_matrix(params.qkv, dtype, "rope_store qkv");
  check_pairs(params.qkv, "rope_store qkv");
  if (params.num_heads > 0) {
    check_matrix(params.query, dtype, "rope_store query");
    check_pairs(params.query, "rope_store query");
  }
  check_kv(params.kv, dtype, "rope_store");
  const KvView& kv = params.kv;
  const int num_stored = params.slots != nullptr ? 2 * kv.num_kv_heads : 0;
  FS_CHECK(params.num_heads + num_stored > 0 && params.qkv.cols == (params.num_heads + num_stored) * kv.head_dim &&
               (params.num_heads == 0 ||
                (params.query.rows == params.qkv.rows && params.query.cols == params.num_heads * kv.head_dim)),
           "rope_store: qkv [", params.qkv.rows, ", ", params.qkv.cols, "], query [", params.query.rows, ", ",
           params.query.cols, "], num_heads ", params.num_heads, ", num_kv_heads ", kv.num_kv_heads, ", head_dim ",
           kv.head_dim);
  check_vector(params.q_norm, kv.head_dim, "rope_store q_norm");
  check_vector(params.k_norm, kv.head_dim, "rope_store k_norm");
}

void check_params(const AttentionParams& params, DType dtype) {
  check_matrix(params.query, dtype, "attention query");
  check_matrix(params.output, dtype, "attention output");
  check_kv(params.kv, dtype, "attention");
  const KvView& kv = params.kv;
  FS_CHECK(params.num_heads > 0 && params.num_heads % kv.num_kv_heads == 0 &&
               params.query.cols == params.num_heads * kv.head_dim && params.output.cols == params.query.cols &&
               params.output.rows == params.query.rows,
           "attention: query [", params.query.rows, ", ", params.query.cols, "], output [", params.output.rows, ", ",
           params.output.cols, "], num_heads ", params.num_heads, ", num_kv_heads ", kv.num_kv_heads, ", head_dim ",
           kv.head_dim);
  FS_CHECK(params.window >= 0 && params.sinks >= 0, "attention: window ", params.window, ", sinks ", params.sinks);
  FS_CHECK(params.num_sequences > 0 || params.query.rows == 0, "attention: ", params.query.rows,
           " rows and no sequence");
}

void check_params(const ScoreKeysParams& params, DType dtype) {
  check_matrix(params.query, dtype, "score_keys query");
  check_pairs(params.query, "score_keys query");
  check_kv(params.kv, dtype, "score_keys");
  check_scoring(params);
}

void check_params(const ScorePagesParams& params, DType dtype) {
  check_params(params.scoring, dtype);
  FS_CHECK(params.bounds != nullptr, "score_pages: no bounds");
}

void check_params(const PageBoundsParams& params, DType dtype) {
  check_kv(params.kv, dtype, "update_page_bounds");
  FS_CHECK(params.bounds != nullptr || params.num_pages == 0, "update_page_bounds: no bounds");
}

void check_params(const SelectSlotsParams& params) {
  check_selection(params);
}

void check_params(const MergeParams& params, DType dtype) {
  check_matrix(params.output, dtype, "merge output");
  check_matrix(params.other_output, dtype, "merge other_output");
  FS_CHECK(params.output.rows == params.other_output.rows && params.output.cols == params.other_output.cols, "merge: [",
           params.output.rows, ", ", params.output.cols, "] and [", params.other_output.rows, ", ",
           params.other_output.cols, "]");
  FS_CHECK(params.num_heads > 0 && params.output.cols % params.num_heads == 0, "merge: ", params.num_heads,
           " heads in width ", params.output.cols);
}

void check_params(const CopySlotsParams& params, DType dtype) {
  for (int layer = 0; layer < params.num_layers; ++layer) check_kv(params.layers[layer], dtype, "copy_slots");
  for (int move = 0; move < params.num_moves; ++move) {
    FS_CHECK(params.moves[move].source >= 0 && params.moves[move].destination >= 0, "copy_slots: move ", move, " from ",
             params.moves[move].source, " to ", params.moves[move].destination);
  }
}

}  // namespace fastspec::cuda
