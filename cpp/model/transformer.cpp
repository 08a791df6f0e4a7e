// The layer loop.
#include "model/transformer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace fastspec {

Transformer::Transformer(const ModelConfig& config, Weights weights, Backend& backend, int max_rows, int max_logit_rows,
                         PassTaps taps)
    : config_(config),
      weights_(std::move(weights)),
      backend_(backend),
      max_rows_(max_rows),
      max_logit_rows_(max_logit_rows),
      taps_(std::move(taps)) {
  for (const std::vector<int>* layers : {&taps_.hidden_layers, &taps_.query_layers}) {
    for (const int layer : *layers) {
      FS_CHECK(layer >= 0 && layer < config.num_layers, "layer ", layer, " of ", config.num_layers, " is to be kept");
    }
  }
  Device& device = *backend.device;
  const std::vector<double> exact = rope_inverse_frequencies(config.rope, config.head_dim);
  const std::vector<float> frequencies(exact.begin(), exact.end());
  inverse_frequencies_ = device.allocate(frequencies.size() * sizeof(float), "rotary frequencies");
  device.copy_to_device(inverse_frequencies_.data(), frequencies.data(), frequencies.size() * sizeof(float));

  const std::size_t element = size_of(backend.ops->activation_dtype());
  const auto activations = [&](int cols) {
    return device.allocate(std::size_t(max_rows) * cols * element, "activations");
  };
  hidden_ = activations(config.hidden_size);
  normed_ = activations(config.hidden_size);
  qkv_ = activations(config.q_size() + 2 * config.kv_size());
  query_ = activations(config.q_size());
  attended_ = activations(config.q_size());
  gate_up_ = activations(2 * config.intermediate_size);
  activated_ = activations(config.intermediate_size);
  if (!taps_.hidden_layers.empty()) kept_hidden_ = activations(kept_hidden().cols);
  if (!taps_.query_layers.empty()) kept_queries_ = activations(kept_queries().cols);
  logits_ = device.allocate(std::size_t(max_logit_rows) * config.vocab_size * sizeof(float), "logits");
}

std::size_t Transformer::activation_bytes(const ModelConfig& config, std::size_t element_size, int max_rows,
                                          int max_logit_rows, const PassTaps& taps) {
  const std::size_t cols = (2 + taps.hidden_layers.size()) * std::size_t(config.hidden_size) +
                           (3 + taps.query_layers.size()) * std::size_t(config.q_size()) +
                           2 * std::size_t(config.kv_size()) + 3 * std::size_t(config.intermediate_size);
  return std::size_t(max_rows) * cols * element_size + std::size_t(max_logit_rows) * config.vocab_size * sizeof(float) +
         std::size_t(config.head_dim / 2) * sizeof(float);
}

Matrix Transformer::rows(const Buffer& buffer, int num_rows, int cols) const {
  return {buffer.data(), backend_.ops->activation_dtype(), num_rows, cols, cols};
}

Matrix Transformer::forward(const Pass& pass, const KvPool& kv) {
  FS_CHECK(pass.num_rows <= max_rows_ && pass.num_logit_rows <= max_logit_rows_, pass.num_rows, " rows, ",
           pass.num_logit_rows, " with logits; limits ", max_rows_, " and ", max_logit_rows_);
  Ops& ops = *backend_.ops;
  const Matrix hidden = rows(hidden_, pass.num_rows, config_.hidden_size);
  ops.embed({.tokens = pass.tokens, .table = weights_.embedding, .output = hidden});
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    attention_block(layer, pass, kv.layer(layer));
    mlp_block(layer, pass.num_rows);
    keep(layer, taps_.hidden_layers, hidden, kept_hidden());
  }
  const Matrix logits = this->logits(pass.num_logit_rows);
  if (pass.num_logit_rows == 0) return logits;
  const Matrix final_hidden = rows(normed_, pass.num_logit_rows, config_.hidden_size);
  ops.rms_norm({.input = hidden,
                .weight = weights_.final_norm,
                .eps = config_.rms_norm_eps,
                .row_index = pass.logit_rows,
                .output = final_hidden});
  ops.linear({.input = final_hidden, .weight = weights_.lm_head, .output = logits});
  return logits;
}

Matrix Transformer::logits(int num_rows) const {
  return {logits_.data(), DType::kFloat32, num_rows, config_.vocab_size, config_.vocab_size};
}

Matrix Transformer::kept_hidden() const {
  return rows(kept_hidden_, max_rows_, static_cast<int>(taps_.hidden_layers.size()) * config_.hidden_size);
}

Matrix Transformer::kept_queries() const {
  return rows(kept_queries_, max_rows_, static_cast<int>(taps_.query_layers.size()) * config_.q_size());
}

void Transformer::keep(int layer, const std::vector<int>& layers, const Matrix& values, Matrix kept) {
  const auto found = std::find(layers.begin(), layers.end(), layer);
  if (found == layers.end()) return;
  const auto index = static_cast<std::size_t>(found - layers.begin());
  kept.data = static_cast<std::byte*>(kept.data) + index * std::size_t(values.cols) * size_of(kept.dtype);
  kept.rows = values.rows;
  kept.cols = values.cols;
  backend_.ops->copy_rows({.input = values, .output = kept});
}

void Transformer::attention_block(int layer, const Pass& pass, const KvView& kv) {
  Ops& ops = *backend_.ops;
  const LayerWeights& weights = weights_.layers[layer];
  const Matrix hidden = rows(hidden_, pass.num_rows, config_.hidden_size);
  const Matrix normed = rows(normed_, pass.num_rows, config_.hidden_size);
  const Matrix qkv = rows(qkv_, pass.num_rows, config_.q_size() + 2 * config_.kv_size());
  const Matrix query = rows(query_, pass.num_rows, config_.q_size());
  const Matrix attended = rows(attended_, pass.num_rows, config_.q_size());

  ops.rms_norm({.input = hidden, .weight = weights.attention_norm, .eps = config_.rms_norm_eps, .output = normed});
  ops.linear({.input = normed, .weight = weights.qkv, .bias = weights.qkv_bias, .output = qkv});
  ops.rope_store({.qkv = qkv,
                  .num_heads = config_.num_heads,
                  .q_norm = weights.q_norm,
                  .k_norm = weights.k_norm,
                  .norm_eps = config_.rms_norm_eps,
                  .positions = pass.positions,
                  .inverse_frequencies = inverse_frequencies_.as<const float>(),
                  .attention_factor = static_cast<float>(config_.rope.attention_factor),
                  .slots = pass.slots,
                  .kv = kv,
                  .query = query});
  keep(layer, taps_.query_layers, query, kept_queries());
  ops.attention({.query = query,
                 .num_heads = config_.num_heads,
                 .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                 .num_sequences = pass.num_sequences,
                 .max_rows_per_sequence = pass.max_rows_per_sequence,
                 .host = pass.host,
                 .row_offsets = pass.row_offsets,
                 .lists = pass.lists,
                 .entries = pass.entries,
                 .masks = pass.masks,
                 .mask_bits = pass.mask_bits,
                 .positions = pass.positions,
                 .slots = pass.slots,
                 .window = config_.window[layer],
                 .kv = kv,
                 .output = attended});
  ops.linear({.input = attended, .weight = weights.o, .bias = weights.o_bias, .accumulate = true, .output = hidden});
}

void Transformer::mlp_block(int layer, int num_rows) {
  Ops& ops = *backend_.ops;
  const LayerWeights& weights = weights_.layers[layer];
  const Matrix hidden = rows(hidden_, num_rows, config_.hidden_size);
  const Matrix normed = rows(normed_, num_rows, config_.hidden_size);
  const Matrix gate_up = rows(gate_up_, num_rows, 2 * config_.intermediate_size);
  const Matrix activated = rows(activated_, num_rows, config_.intermediate_size);

  ops.rms_norm({.input = hidden, .weight = weights.mlp_norm, .eps = config_.rms_norm_eps, .output = normed});
  ops.linear({.input = normed, .weight = weights.gate_up, .bias = weights.gate_up_bias, .output = gate_up});
  ops.silu_mul({.gate_up = gate_up, .output = activated});
  ops.linear(
      {.input = activated, .weight = weights.down, .bias = weights.down_bias, .accumulate = true, .output = hidden});
}

}  // namespace fastspec
