// See context_projection.h.
#include "draft/dflash/context_projection.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "step/row_tiers.h"

namespace fastspec {

namespace {

PassLimits pass_limits(int max_rows) {
  return {.max_rows = max_rows, .max_sequences = 1, .max_list_entries = 1, .tables = PassLimits::Tables{}};
}

/// The rows of k and v of a layer's stacked projection.
LinearParams key_value_projection(const ModelConfig& decoder, const LayerWeights& layer) {
  const int q_size = decoder.q_size(), kv_size = 2 * decoder.kv_size();
  Weight weight = layer.qkv;
  weight.data = static_cast<const std::byte*>(layer.qkv.data) +
                std::size_t(q_size) * layer.qkv.in_features * size_of(layer.qkv.dtype);
  weight.out_features = kv_size;
  Vector bias;
  if (layer.qkv_bias.data != nullptr) bias = {layer.qkv_bias.data + q_size, kv_size};
  return {.weight = weight, .bias = bias};
}

}  // namespace

ContextProjection::ContextProjection(const ModelConfig& decoder, const Weights& weights, const Weight& fc,
                                     const Vector& hidden_norm, Backend& backend, const KvPool& kv,
                                     const Limits& limits)
    : decoder_(decoder),
      weights_(weights),
      fc_(fc),
      hidden_norm_(hidden_norm),
      backend_(backend),
      kv_(kv),
      limits_(limits),
      buffers_(*backend.device, pass_limits(limits.max_rows)),
      graphs_(*backend.device, limits.graphs),
      graphs_again_(*backend.device, limits.graphs) {
  Device& device = *backend.device;
  const std::vector<double> exact = rope_inverse_frequencies(decoder.rope, decoder.head_dim);
  const std::vector<float> frequencies(exact.begin(), exact.end());
  inverse_frequencies_ = device.allocate(frequencies.size() * sizeof(float), "rotary frequencies of the context");
  device.copy_to_device(inverse_frequencies_.data(), frequencies.data(), frequencies.size() * sizeof(float));
  const std::size_t element = size_of(backend.ops->activation_dtype());
  const auto allocate = [&](int cols) {
    return device.allocate(std::size_t(limits.max_rows) * cols * element, "activations of the context");
  };
  gathered_ = allocate(fc.in_features);
  context_ = allocate(decoder.hidden_size);
  normed_ = allocate(decoder.hidden_size);
  key_value_ = allocate(2 * decoder.kv_size());
}

std::size_t ContextProjection::activation_bytes(const ModelConfig& decoder, const Weight& fc, std::size_t element_size,
                                                int max_rows) {
  const std::size_t cols =
      std::size_t(fc.in_features) + 2 * std::size_t(decoder.hidden_size) + 2 * std::size_t(decoder.kv_size());
  return std::size_t(max_rows) * cols * element_size + std::size_t(decoder.head_dim / 2) * sizeof(float) +
         PassBuffers::device_bytes(pass_limits(max_rows));
}

Matrix ContextProjection::rows(const Buffer& buffer, int num_rows, int cols) const {
  return {buffer.data(), backend_.ops->activation_dtype(), num_rows, cols, cols};
}

Matrix ContextProjection::context(int index) const {
  Matrix row = rows(normed_, 1, decoder_.hidden_size);
  row.data = static_cast<std::byte*>(row.data) + std::size_t(index) * decoder_.hidden_size * size_of(row.dtype);
  return row;
}

void ContextProjection::project(const Matrix& features, std::span<const ContextRow> rows) {
  run(features, true, rows, false);
}

void ContextProjection::project_again(const Matrix& contexts, std::span<const ContextRow> rows) {
  run(contexts, false, rows, false);
}

void ContextProjection::run(const Matrix& source, bool is_features, std::span<const ContextRow> rows,
                            bool only_record) {
  batch_.clear();
  for (const ContextRow& row : rows) {
    batch_.tokens.push_back(0);
    batch_.positions.push_back(row.position);
    batch_.slots.push_back(row.slot);
    batch_.logit_rows.push_back(row.source);
  }
  GraphCache& graphs = is_features ? graphs_ : graphs_again_;
  const bool has_graphs = backend_.device->has_graphs();
  const int tier = has_graphs ? row_tier(batch_.num_rows(), limits_.max_rows) : 0;
  if (tier == 0) {
    compute(buffers_.upload(batch_), source, is_features);
    if (has_graphs) graphs.note_eager_pass();
    return;
  }
  batch_.logit_rows.resize(static_cast<std::size_t>(tier), 0);
  pad_batch(tier, tier, 0, limits_.padding_slot, batch_);
  const Pass pass = buffers_.upload(batch_);
  const GraphKey key{.num_rows = tier, .num_logit_rows = tier};
  const auto work = [this, pass, source, is_features] { compute(pass, source, is_features); };
  if (only_record) return graphs.record(key, work);
  graphs.run(key, work);
}

void ContextProjection::compute(const Pass& pass, const Matrix& source, bool is_features) {
  FS_CHECK(pass.num_rows <= limits_.max_rows, pass.num_rows, " rows, limit ", limits_.max_rows);
  Ops& ops = *backend_.ops;
  const Matrix normed = rows(normed_, pass.num_rows, decoder_.hidden_size);
  if (is_features) {
    const Matrix gathered = rows(gathered_, pass.num_rows, fc_.in_features);
    const Matrix context = rows(context_, pass.num_rows, decoder_.hidden_size);
    ops.copy_rows({.input = source, .row_index = pass.logit_rows, .output = gathered});
    ops.linear({.input = gathered, .weight = fc_, .output = context});
    ops.rms_norm({.input = context, .weight = hidden_norm_, .eps = decoder_.rms_norm_eps, .output = normed});
  } else {
    ops.copy_rows({.input = source, .row_index = pass.logit_rows, .output = normed});
  }
  const Matrix key_value = rows(key_value_, pass.num_rows, 2 * decoder_.kv_size());
  for (int layer = 0; layer < decoder_.num_layers; ++layer) {
    LinearParams projection = key_value_projection(decoder_, weights_.layers[layer]);
    projection.input = normed;
    projection.output = key_value;
    ops.linear(projection);
    ops.rope_store({.qkv = key_value,
                    .k_norm = weights_.layers[layer].k_norm,
                    .norm_eps = decoder_.rms_norm_eps,
                    .positions = pass.positions,
                    .inverse_frequencies = inverse_frequencies_.as<const float>(),
                    .attention_factor = static_cast<float>(decoder_.rope.attention_factor),
                    .slots = pass.slots,
                    .kv = kv_.layer(layer)});
  }
}

GraphUse ContextProjection::graphs() const {
  GraphUse use = graphs_.use();
  use += graphs_again_.use();
  return use;
}

void ContextProjection::record_all(const Matrix& source, bool is_features, int max_rows) {
  if (!backend_.device->has_graphs()) return;
  for (int count = 1; count <= std::min(max_rows, limits_.max_rows);) {
    const int tier = row_tier(count, limits_.max_rows);
    if (tier == 0) return;
    const std::vector<ContextRow> rows(static_cast<std::size_t>(tier), {.slot = limits_.padding_slot});
    run(source, is_features, rows, true);
    backend_.device->synchronize();
    count = tier + 1;
  }
}

}  // namespace fastspec
