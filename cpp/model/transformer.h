// A decoder-only transformer: one data-driven layer loop for every family that ModelConfig describes. Computes a pass;
// owns weights and activations, no K/V and no sequence.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/backend.h"
#include "memory/kv_pool.h"
#include "model/model_config.h"
#include "model/pass.h"
#include "model/weights.h"

namespace fastspec {

/// What is kept for every row of a pass until the next one. Layers ascend.
struct PassTaps {
  std::vector<int> hidden_layers;  // their outputs
  std::vector<int> query_layers;   // their queries, normed and rotated
};

class Transformer {
 public:
  /// Activations for passes of up to `max_rows` rows with logits of up to `max_logit_rows` are allocated here, once.
  Transformer(const ModelConfig& config, Weights weights, Backend& backend, int max_rows, int max_logit_rows,
              PassTaps taps = {});

  /// Device memory that the constructor takes; `element_size` of an activation.
  static std::size_t activation_bytes(const ModelConfig& config, std::size_t element_size, int max_rows,
                                      int max_logit_rows, const PassTaps& taps = {});

  /// Computes the pass: K and V of every row go to the row's slot of `kv`, the result is the logits of the rows that
  /// `pass.logit_rows` names, float32 [num_logit_rows, vocab_size], valid until the next pass.
  Matrix forward(const Pass& pass, const KvPool& kv);
  /// The first rows of the last pass's logits, which stay where they are from pass to pass.
  Matrix logits(int num_rows) const;
  /// What the tapped layers gave for the rows of the last pass, one layer after another, [max_rows, hidden_layers *
  /// hidden_size], always at the same place; rows beyond those of the pass hold nothing.
  Matrix kept_hidden() const;
  /// The same of their queries, [max_rows, query_layers * q_size].
  Matrix kept_queries() const;

  const ModelConfig& config() const { return config_; }
  int max_logit_rows() const { return max_logit_rows_; }
  const Weights& weights() const { return weights_; }
  KvShape kv_shape(DType dtype) const { return {config_.num_layers, config_.num_kv_heads, config_.head_dim, dtype}; }

 private:
  void attention_block(int layer, const Pass& pass, const KvView& kv);
  void mlp_block(int layer, int num_rows);
  /// Copies `values` into the columns of `kept` that the layer has among `layers`, if it is one of them.
  void keep(int layer, const std::vector<int>& layers, const Matrix& values, Matrix kept);
  Matrix rows(const Buffer& buffer, int num_rows, int cols) const;

  ModelConfig config_;
  Weights weights_;
  Backend& backend_;
  int max_rows_;
  int max_logit_rows_;
  PassTaps taps_;
  Buffer inverse_frequencies_;
  Buffer hidden_, normed_, qkv_, query_, attended_, gate_up_, activated_, logits_, kept_hidden_, kept_queries_;
};

}  // namespace fastspec
