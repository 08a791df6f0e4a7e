// See longspec_block.h.
#include "draft/longspec/longspec_block.h"

#include <cmath>
#include <utility>

#include "base/check.h"

namespace fastspec {

LongSpecBlock::LongSpecBlock(LongSpecModel model, const ModelConfig& target, const Weights& target_weights,
                             Backend& backend, int max_rows, int max_level_rows)
    : model_(std::move(model)),
      target_(target),
      embedding_(target_weights.embedding),
      lm_head_(model_.weights.vocabulary.empty() ? target_weights.lm_head : model_.weights.pruned_lm_head),
      backend_(backend),
      max_rows_(max_rows),
      max_level_rows_(max_level_rows) {
  Device& device = *backend.device;
  const std::vector<double> exact = rope_inverse_frequencies(target.rope, target.head_dim);
  const std::vector<float> frequencies(exact.begin(), exact.end());
  inverse_frequencies_ = device.allocate(frequencies.size() * sizeof(float), "rotary frequencies of the drafter");
  device.copy_to_device(inverse_frequencies_.data(), frequencies.data(), frequencies.size() * sizeof(float));

  const std::size_t element = size_of(backend.ops->activation_dtype());
  const auto allocate = [&](int cols, std::size_t size) {
    return device.allocate(std::size_t(max_rows) * cols * size, "activations of the drafter");
  };
  hidden_ = allocate(target.hidden_size, element);
  normed_ = allocate(target.hidden_size, element);
  qkv_ = allocate(target.q_size() + 2 * target.kv_size(), element);
  query_ = allocate(target.q_size(), element);
  attended_ = allocate(target.q_size(), element);
  attended_ancestry_ = allocate(target.q_size(), element);
  lse_ = allocate(target.num_heads, sizeof(float));
  ancestry_lse_ = allocate(target.num_heads, sizeof(float));
  gate_up_ = allocate(2 * model_.config.intermediate_size, element);
  activated_ = allocate(model_.config.intermediate_size, element);
  logits_ =
      device.allocate(std::size_t(max_level_rows) * lm_head_.out_features * sizeof(float), "logits of the drafter");
}

std::size_t LongSpecBlock::activation_bytes(const LongSpecModel& model, const ModelConfig& target,
                                            std::size_t element_size, int max_rows, int max_level_rows) {
  const std::size_t cols = 2 * std::size_t(target.hidden_size) + 4 * std::size_t(target.q_size()) +
                           2 * std::size_t(target.kv_size()) + 3 * std::size_t(model.config.intermediate_size);
  const std::size_t vocabulary = model.weights.vocabulary.size();
  const std::size_t columns = vocabulary > 0 ? vocabulary : static_cast<std::size_t>(target.vocab_size);
  return std::size_t(max_rows) * (cols * element_size + 2 * std::size_t(target.num_heads) * sizeof(float)) +
         std::size_t(max_level_rows) * columns * sizeof(float) + std::size_t(target.head_dim / 2) * sizeof(float);
}

Matrix LongSpecBlock::rows(const Buffer& buffer, int num_rows, int cols) const {
  return {buffer.data(), backend_.ops->activation_dtype(), num_rows, cols, cols};
}

Matrix LongSpecBlock::logits(int num_rows) const {
  return {logits_.data(), DType::kFloat32, num_rows, lm_head_.out_features, lm_head_.out_features};
}

void LongSpecBlock::norm(const Vector& weight, int num_rows) {
  backend_.ops->rms_norm({.input = rows(hidden_, num_rows, target_.hidden_size),
                          .weight = weight,
                          .eps = model_.config.rms_norm_eps,
                          .output = rows(normed_, num_rows, target_.hidden_size)});
}

void LongSpecBlock::project(const Pass& pass, const KvView& kv) {
  FS_CHECK(pass.num_rows <= max_rows_, pass.num_rows, " rows, limit ", max_rows_);
  Ops& ops = *backend_.ops;
  const LongSpecWeights& weights = model_.weights;
  const int q_size = target_.q_size(), kv_size = 2 * target_.kv_size();
  ops.embed({.tokens = pass.tokens, .table = embedding_, .output = rows(hidden_, pass.num_rows, target_.hidden_size)});
  norm(weights.self_norm, pass.num_rows);
  // The rows of k and v of the stacked projection.
  Weight key_value = weights.qkv;
  key_value.data = static_cast<const std::byte*>(weights.qkv.data) +
                   std::size_t(q_size) * weights.qkv.in_features * size_of(weights.qkv.dtype);
  key_value.out_features = kv_size;
  const Matrix projected = rows(qkv_, pass.num_rows, kv_size);
  ops.linear({.input = rows(normed_, pass.num_rows, target_.hidden_size),
              .weight = key_value,
              .bias = {weights.qkv_bias.data + q_size, kv_size},
              .output = projected});
  ops.rope_store({.qkv = projected,
                  .positions = pass.positions,
                  .inverse_frequencies = inverse_frequencies_.as<const float>(),
                  .attention_factor = static_cast<float>(target_.rope.attention_factor),
                  .slots = pass.slots,
                  .kv = kv});
}

void LongSpecBlock::forward(const LevelPass& level, const KvView& kv, const KvView& target_kv) {
  const int num_rows = level.num_rows;
  FS_CHECK(num_rows <= max_level_rows_, num_rows, " rows, limit ", max_level_rows_);
  const Matrix hidden = rows(hidden_, num_rows, target_.hidden_size);
  backend_.ops->embed({.tokens = level.tokens, .table = embedding_, .output = hidden});
  self_attention(level, kv);
  cross_attention(level, target_kv);
  mlp(num_rows);
  const bool normed = model_.weights.final_norm.data != nullptr;
  if (normed) norm(model_.weights.final_norm, num_rows);
  backend_.ops->linear({.input = normed ? rows(normed_, num_rows, target_.hidden_size) : hidden,
                        .weight = lm_head_,
                        .output = logits(num_rows)});
}

void LongSpecBlock::self_attention(const LevelPass& level, const KvView& kv) {
  Ops& ops = *backend_.ops;
  const LongSpecWeights& weights = model_.weights;
  const int num_rows = level.num_rows;
  const Matrix qkv = rows(qkv_, num_rows, target_.q_size() + 2 * target_.kv_size());
  const Matrix query = rows(query_, num_rows, target_.q_size());
  const Matrix attended = rows(attended_, num_rows, target_.q_size());
  const Matrix attended_ancestry = rows(attended_ancestry_, num_rows, target_.q_size());
  norm(weights.self_norm, num_rows);
  ops.linear({.input = rows(normed_, num_rows, target_.hidden_size),
              .weight = weights.qkv,
              .bias = weights.qkv_bias,
              .output = qkv});
  ops.rope_store({.qkv = qkv,
                  .num_heads = target_.num_heads,
                  .positions = level.positions,
                  .inverse_frequencies = inverse_frequencies_.as<const float>(),
                  .attention_factor = static_cast<float>(target_.rope.attention_factor),
                  .slots = level.slots,
                  .kv = kv,
                  .query = query});
  attend(level, query, level.window, kv, attended, lse_.as<float>());
  attend(level, query, level.ancestry, kv, attended_ancestry, ancestry_lse_.as<float>());
  ops.merge({.output = attended,
             .lse = lse_.as<float>(),
             .other_output = attended_ancestry,
             .other_lse = ancestry_lse_.as<float>(),
             .num_heads = target_.num_heads});
  ops.linear({.input = attended,
              .weight = weights.self_o,
              .accumulate = true,
              .output = rows(hidden_, num_rows, target_.hidden_size)});
}

void LongSpecBlock::cross_attention(const LevelPass& level, const KvView& target_kv) {
  Ops& ops = *backend_.ops;
  const LongSpecWeights& weights = model_.weights;
  const int num_rows = level.num_rows;
  const Matrix projected = rows(qkv_, num_rows, target_.q_size());
  const Matrix query = level.cross_query.data != nullptr ? level.cross_query : rows(query_, num_rows, target_.q_size());
  const Matrix attended = rows(attended_, num_rows, target_.q_size());
  norm(weights.cross_norm, num_rows);
  ops.linear({.input = rows(normed_, num_rows, target_.hidden_size),
              .weight = weights.cross_q,
              .bias = weights.cross_q_bias,
              .output = projected});
  ops.rope_store({.qkv = projected,
                  .num_heads = target_.num_heads,
                  .positions = level.positions,
                  .inverse_frequencies = inverse_frequencies_.as<const float>(),
                  .attention_factor = static_cast<float>(target_.rope.attention_factor),
                  .kv = target_kv,
                  .query = query});
  attend(level, query, level.cross, target_kv, attended, nullptr);
  ops.linear({.input = attended,
              .weight = weights.cross_o,
              .accumulate = true,
              .output = rows(hidden_, num_rows, target_.hidden_size)});
}

void LongSpecBlock::attend(const LevelPass& level, const Matrix& query, const RowGroup& group, const KvView& kv,
                           const Matrix& output, float* lse) {
  backend_.ops->attention({.query = query,
                           .num_heads = target_.num_heads,
                           .scale = 1.0f / std::sqrt(static_cast<float>(target_.head_dim)),
                           .num_sequences = group.num_sequences,
                           .max_rows_per_sequence = group.max_rows_per_sequence,
                           .row_offsets = group.row_offsets,
                           .lists = group.lists,
                           .entries = group.entries,
                           .masks = group.masks,
                           .positions = level.positions,
                           .slots = level.slots,
                           .kv = kv,
                           .output = output,
                           .lse = lse});
}

void LongSpecBlock::mlp(int num_rows) {
  Ops& ops = *backend_.ops;
  const LongSpecWeights& weights = model_.weights;
  const Matrix gate_up = rows(gate_up_, num_rows, 2 * model_.config.intermediate_size);
  const Matrix activated = rows(activated_, num_rows, model_.config.intermediate_size);
  norm(weights.mlp_norm, num_rows);
  ops.linear({.input = rows(normed_, num_rows, target_.hidden_size), .weight = weights.gate_up, .output = gate_up});
  ops.silu_mul({.gate_up = gate_up, .output = activated});
  ops.linear({.input = activated,
              .weight = weights.down,
              .accumulate = true,
              .output = rows(hidden_, num_rows, target_.hidden_size)});
}

}  // namespace fastspec
