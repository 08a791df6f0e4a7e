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

class Transformer {
 public:
  /// Activations for passes of up to `max_rows` rows with logits of up to `max_logit_rows` are allocated here, once.
  /// @param kept_layers whose outputs are kept for every row of a pass, ascending.
  Transformer(const ModelConfig& config, Weights weights, Backend& backend, int max_rows, int max_logit_rows,
              std::vector<int> kept_layers = {});

  /// Device memory that the constructor takes; `element_size` of an activation.
  static std::size_t activation_bytes(const ModelConfig& config, std::size_t element_size, int max_rows,
                                      int max_logit_rows, std::size_t num_kept_layers = 0);

  /// Computes the pass: K and V of every row go to the row's slot of `kv`, the result is the logits of the rows that
  /// `pass.logit_rows` names, float32 [num_logit_rows, vocab_size], valid until the next pass.
  Matrix forward(const Pass& pass, const KvPool& kv);
  /// The first rows of the last pass's logits, which stay where they are from pass to pass.
  Matrix logits(int num_rows) const;
  /// What the kept layers gave for the rows of the last pass, one layer after another, [max_rows, kept_layers *
  /// hidden_size], always at the same place; rows beyond those of the pass hold nothing.
  Matrix kept_hidden() const;

  const ModelConfig& config() const { return config_; }
  int max_logit_rows() const { return max_logit_rows_; }
  const Weights& weights() const { return weights_; }
  KvShape kv_shape(DType dtype) const { return {config_.num_layers, config_.num_kv_heads, config_.head_dim, dtype}; }

 private:
  void attention_block(int layer, const Pass& pass, const KvView& kv);
  void mlp_block(int layer, int num_rows);
  void keep(int layer, int num_rows);
  Matrix rows(const Buffer& buffer, int num_rows, int cols) const;

  ModelConfig config_;
  Weights weights_;
  Backend& backend_;
  int max_rows_;
  int max_logit_rows_;
  std::vector<int> kept_layers_;
  Buffer inverse_frequencies_;
  Buffer hidden_, normed_, qkv_, query_, attended_, gate_up_, activated_, logits_, kept_;
};

}  // namespace fastspec
