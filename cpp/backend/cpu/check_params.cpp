// See check_params.h.
#include "backend/cpu/check_params.h"

#include "backend/check_sparse.h"
#include "base/check.h"

namespace fastspec::cpu {
namespace {

void check_matrix(const Matrix& matrix, const char* name) {
  FS_CHECK(matrix.dtype == DType::kFloat32, name, ": activations are float32 on the CPU, got ",
           to_string(matrix.dtype));
  FS_CHECK(matrix.rows >= 0 && matrix.cols > 0 && matrix.stride >= matrix.cols, name, ": rows ", matrix.rows, ", cols ",
           matrix.cols, ", stride ", matrix.stride);
  FS_CHECK(matrix.data != nullptr || matrix.rows == 0, name, ": no data");
}

void check_kv(const KvView& kv, const char* name) {
  FS_CHECK(kv.base != nullptr, name, ": no K/V pool");
  FS_CHECK(kv.num_kv_heads > 0 && kv.head_dim > 0 && kv.head_dim % 8 == 0, name, ": num_kv_heads ", kv.num_kv_heads,
           ", head_dim ", kv.head_dim, " (a multiple of 8)");
  FS_CHECK(kv.page_shift >= 0 && kv.page_shift < 31, name, ": page_shift ", kv.page_shift);
}

void check_vector(const Vector& vector, int size, const char* name) {
  FS_CHECK(vector.data == nullptr || vector.size == size, name, ": size ", vector.size, ", expected ", size);
}

/// @param row_index null: all rows. @param least -1 where rows may be left out.
void check_row_index(const std::int32_t* row_index, const Matrix& input, const Matrix& output, const char* name,
                     int least = 0) {
  if (row_index == nullptr) {
    FS_CHECK(input.rows == output.rows, name, ": rows ", input.rows, " and ", output.rows);
    return;
  }
  for (int row = 0; row < output.rows; ++row) {
    FS_CHECK(row_index[row] >= least && row_index[row] < input.rows, name, ": row_index[", row, "] = ", row_index[row],
             ", input rows ", input.rows);
  }
}

}  // namespace

void check_params(const EmbeddingParams& params) {
  check_matrix(params.output, "embed output");
  FS_CHECK(params.table.in_features == params.output.cols, "embed: table width ", params.table.in_features,
           ", output width ", params.output.cols);
  for (int row = 0; row < params.output.rows; ++row) {
    FS_CHECK(params.tokens[row] >= 0 && params.tokens[row] < params.table.out_features, "embed: row ", row, " token ",
             params.tokens[row], ", vocabulary ", params.table.out_features);
  }
}

void check_params(const CopyRowsParams& params) {
  check_matrix(params.input, "copy_rows input");
  check_matrix(params.output, "copy_rows output");
  FS_CHECK(params.input.cols == params.output.cols, "copy_rows: widths ", params.input.cols, " and ",
           params.output.cols);
  check_row_index(params.row_index, params.input, params.output, "copy_rows", -1);
}

void check_params(const RmsNormParams& params) {
  check_matrix(params.input, "rms_norm input");
  check_matrix(params.output, "rms_norm output");
  FS_CHECK(params.input.cols == params.output.cols, "rms_norm: widths ", params.input.cols, " and ",
           params.output.cols);
  FS_CHECK(params.weight.data != nullptr, "rms_norm: no weight");
  check_vector(params.weight, params.input.cols, "rms_norm weight");
  check_row_index(params.row_index, params.input, params.output, "rms_norm");
}

void check_params(const LinearParams& params) {
  check_matrix(params.input, "linear input");
  check_matrix(params.output, "linear output");
  FS_CHECK(params.input.rows == params.output.rows, "linear: rows ", params.input.rows, " and ", params.output.rows);
  FS_CHECK(params.weight.data != nullptr && params.weight.in_features == params.input.cols &&
               params.weight.out_features == params.output.cols,
           "linear: weight [", params.weight.out_features, ", ", params.weight.in_features, "], input width ",
           params.input.cols, ", output width ", params.output.cols);
  check_vector(params.bias, params.weight.out_features, "linear bias");
}

void check_params(const SiluMulParams& params) {
  check_matrix(params.gate_up, "silu_mul gate_up");
  check_matrix(params.output, "silu_mul output");
  FS_CHECK(params.gate_up.rows == params.output.rows && params.gate_up.cols == 2 * params.output.cols,
           "silu_mul: gate_up [", params.gate_up.rows, ", ", params.gate_up.cols, "], output [", params.output.rows,
           ", ", params.output.cols, "]");
}

void check_params(const RopeStoreParams& params) {
  check_matrix(params.qkv, "rope_store qkv");
  if (params.num_heads > 0) check_matrix(params.query, "rope_store query");
  check_kv(params.kv, "rope_store");
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
  for (int row = 0; row < params.qkv.rows; ++row) {
    FS_CHECK(params.positions[row] >= 0, "rope_store: row ", row, " position ", params.positions[row]);
    FS_CHECK(params.slots == nullptr || params.slots[row] >= 0, "rope_store: row ", row, " slot ", params.slots[row]);
  }
}

void check_params(const AttentionParams& params) {
  check_matrix(params.query, "attention query");
  check_matrix(params.output, "attention output");
  check_kv(params.kv, "attention");
  const KvView& kv = params.kv;
  FS_CHECK(params.num_heads > 0 && params.num_heads % kv.num_kv_heads == 0 &&
               params.query.cols == params.num_heads * kv.head_dim && params.output.cols == params.query.cols &&
               params.output.rows == params.query.rows,
           "attention: query [", params.query.rows, ", ", params.query.cols, "], output [", params.output.rows, ", ",
           params.output.cols, "], num_heads ", params.num_heads, ", num_kv_heads ", kv.num_kv_heads, ", head_dim ",
           kv.head_dim);
  FS_CHECK(params.window >= 0 && params.sinks >= 0, "attention: window ", params.window, ", sinks ", params.sinks);
  if (params.num_sequences == 0) {
    FS_CHECK(params.query.rows == 0, "attention: ", params.query.rows, " rows and no sequence");
    return;
  }
  FS_CHECK(params.num_sequences > 0 && params.row_offsets[0] == 0 &&
               params.row_offsets[params.num_sequences] <= params.query.rows,
           "attention: row_offsets of ", params.num_sequences, " sequences go beyond ", params.query.rows, " rows");
  for (int s = 0; s < params.num_sequences; ++s) {
    const int rows = params.row_offsets[s + 1] - params.row_offsets[s];
    FS_CHECK(rows >= 0 && params.lists[s].length >= 0, "attention: sequence ", s, " has ", rows, " rows and ",
             params.lists[s].length, " cached keys");
    FS_CHECK(params.masks[s] != NewMask::kAncestor || rows <= 64 * kMaskWords, "attention: sequence ", s, " has ", rows,
             " rows under an ancestor mask, which holds ", 64 * kMaskWords);
  }
}

void check_params(const ScoreKeysParams& params) {
  check_matrix(params.query, "score_keys query");
  check_kv(params.kv, "score_keys");
  check_scoring(params);
  for (int s = 0; s < params.num_sequences; ++s) {
    const int begin = params.row_offsets[s];
    const int rows = params.row_offsets[s + 1] - begin;
    FS_CHECK(rows >= 0 && rows <= params.max_rows_per_sequence, "score_keys: sequence ", s, " has ", rows,
             " rows, at most ", params.max_rows_per_sequence);
    FS_CHECK(params.lists[s].length >= 0 && params.lists[s].length <= params.max_keys, "score_keys: sequence ", s,
             " has ", params.lists[s].length, " keys, at most ", params.max_keys);
    for (int at = begin; at < begin + rows; ++at) {
      const int row = params.rows != nullptr ? params.rows[at] : at;
      FS_CHECK(row >= 0 && row < params.query.rows, "score_keys: entry ", at, " is row ", row, " of ",
               params.query.rows);
      FS_CHECK(params.row_weights == nullptr || params.row_weights[at] >= 0, "score_keys: entry ", at, " has weight ",
               params.row_weights[at]);
    }
  }
}

void check_params(const ScorePagesParams& params) {
  check_params(params.scoring);
  FS_CHECK(params.bounds != nullptr, "score_pages: no bounds");
  for (int s = 0; s < params.scoring.num_sequences; ++s) {
    FS_CHECK(params.scoring.lists[s].pages, "score_pages: sequence ", s, " has a list of slots");
  }
}

void check_params(const PageBoundsParams& params) {
  check_kv(params.kv, "update_page_bounds");
  FS_CHECK(params.bounds != nullptr || params.num_pages == 0, "update_page_bounds: no bounds");
  for (int i = 0; i < params.num_pages; ++i) {
    FS_CHECK(params.pages[i].page >= 0 && params.pages[i].num_slots >= 0 &&
                 params.pages[i].num_slots <= 1 << params.kv.page_shift,
             "update_page_bounds: page ", params.pages[i].page, " with ", params.pages[i].num_slots, " slots of ",
             1 << params.kv.page_shift);
  }
}

void check_params(const SelectSlotsParams& params) {
  check_selection(params);
  for (int s = 0; s < params.num_sequences; ++s) {
    FS_CHECK(params.lists[s].length >= 0 && params.lists[s].length <= params.max_keys, "select_slots: sequence ", s,
             " has ", params.lists[s].length, " keys, at most ", params.max_keys);
  }
}

void check_params(const MergeParams& params) {
  check_matrix(params.output, "merge output");
  check_matrix(params.other_output, "merge other_output");
  FS_CHECK(params.output.rows == params.other_output.rows && params.output.cols == params.other_output.cols, "merge: [",
           params.output.rows, ", ", params.output.cols, "] and [", params.other_output.rows, ", ",
           params.other_output.cols, "]");
  FS_CHECK(params.num_heads > 0 && params.output.cols % params.num_heads == 0, "merge: ", params.num_heads,
           " heads in width ", params.output.cols);
}

void check_params(const CopySlotsParams& params) {
  for (int layer = 0; layer < params.num_layers; ++layer) check_kv(params.layers[layer], "copy_slots");
  for (int move = 0; move < params.num_moves; ++move) {
    FS_CHECK(params.moves[move].source >= 0 && params.moves[move].destination >= 0, "copy_slots: move ", move, " from ",
             params.moves[move].source, " to ", params.moves[move].destination);
  }
}

}  // namespace fastspec::cpu
