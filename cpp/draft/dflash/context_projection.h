// Makes a block drafter's context of the target's hidden states (arXiv 2602.06036): features of committed tokens become
// K and V of every draft layer, once. Computes rows that it is given; knows no sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "backend/graph_cache.h"
#include "draft/dflash/dflash_model.h"
#include "memory/kv_pool.h"
#include "model/pass.h"
#include "step/row_batch.h"

namespace fastspec {

/// A token whose K and V are computed.
struct ContextRow {
  std::int32_t source = 0;  // row of the features
  std::int32_t position = 0;
  Slot slot = 0;
};

class ContextProjection {
 public:
  struct Limits {
    int max_rows = 0;       // of one pass
    Slot padding_slot = 0;  // takes the K/V of rows that fill a recorded pass up
    GraphLimits graphs;
  };
  /// @param config, weights of the decoder; fc and hidden_norm as DFlashModel has them. All outlive this, as `kv` does.
  ContextProjection(const ModelConfig& decoder, const Weights& weights, const Weight& fc, const Vector& hidden_norm,
                    Backend& backend, const KvPool& kv, const Limits& limits);
  /// Device memory of the activations.
  static std::size_t activation_bytes(const ModelConfig& decoder, const Weight& fc, std::size_t element_size,
                                      int max_rows);

  /// K and V of hidden_norm(fc(features)). @param features [rows, fc.in_features], at the same place in every call.
  void project(const Matrix& features, std::span<const ContextRow> rows);
  /// K and V of contexts that context() gave. @param contexts [rows, hidden_size], at the same place in every call.
  void project_again(const Matrix& contexts, std::span<const ContextRow> rows);
  /// hidden_norm(fc(features)) of row `index` of the last pass of project(), which has at most max_rows rows.
  Matrix context(int index) const;

  GraphUse graphs() const;
  /// Records the passes of project() of up to `max_rows` rows; those of project_again().
  void record(const Matrix& features, int max_rows) { record_all(features, true, max_rows); }
  void record_again(const Matrix& contexts, int max_rows) { record_all(contexts, false, max_rows); }

 private:
  void record_all(const Matrix& source, bool is_features, int max_rows);
  void run(const Matrix& source, bool is_features, std::span<const ContextRow> rows, bool only_record);
  void compute(const Pass& pass, const Matrix& source, bool is_features);
  Matrix rows(const Buffer& buffer, int num_rows, int cols) const;

  const ModelConfig& decoder_;
  const Weights& weights_;
  const Weight& fc_;
  const Vector& hidden_norm_;
  Backend& backend_;
  const KvPool& kv_;
  Limits limits_;
  PassBuffers buffers_;
  RowBatch batch_;
  GraphCache graphs_, graphs_again_;
  Buffer inverse_frequencies_, gathered_, context_, normed_, key_value_;
};

}  // namespace fastspec
