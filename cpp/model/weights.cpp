// Which tensors of a Hugging Face checkpoint make up a transformer.
#include "model/weights.h"

#include <array>
#include <string>

namespace fastspec {

namespace {

using Part = LoadPlan::Part;

void add_embeddings(const std::string& prefix, const ModelConfig& config, Checkpoint& checkpoint, LoadPlan& plan,
                    Weights& weights) {
  const std::string embedding = prefix + "embed_tokens.weight";
  const std::string head = "lm_head.weight";
  if (!config.tie_word_embeddings) {
    plan.add_matrix(weights.embedding, {{embedding, config.vocab_size}}, config.hidden_size);
    plan.add_matrix(weights.lm_head, {{head, config.vocab_size}}, config.hidden_size);
    return;
  }
  // Writers that drop shared tensors keep either name, others keep both.
  const bool only_head = !checkpoint.has(embedding) && checkpoint.has(head);
  plan.add_matrix(weights.embedding, {{only_head ? head : embedding, config.vocab_size}}, config.hidden_size);
  if (!only_head && checkpoint.has(head)) checkpoint.expect_copy(head, embedding);
}

}  // namespace

void add_layer(const std::string& name, const ModelConfig& config, LoadPlan& plan, LayerWeights& layer) {
  const int q = config.q_size(), kv = config.kv_size();
  const int hidden = config.hidden_size, inner = config.intermediate_size;
  const std::string attention = name + "self_attn.", mlp = name + "mlp.";
  plan.add_vector(layer.attention_norm, {{name + "input_layernorm.weight", hidden}});
  plan.add_vector(layer.mlp_norm, {{name + "post_attention_layernorm.weight", hidden}});
  const std::array<Part, 3> qkv{{{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}}};
  plan.add_linear(attention, qkv, hidden, layer.qkv, config.qkv_bias ? &layer.qkv_bias : nullptr);
  const std::array<Part, 1> o{{{"o_proj", hidden}}};
  plan.add_linear(attention, o, q, layer.o, config.o_bias ? &layer.o_bias : nullptr);
  const std::array<Part, 2> gate_up{{{"gate_proj", inner}, {"up_proj", inner}}};
  plan.add_linear(mlp, gate_up, hidden, layer.gate_up, config.mlp_bias ? &layer.gate_up_bias : nullptr);
  const std::array<Part, 1> down{{{"down_proj", hidden}}};
  plan.add_linear(mlp, down, inner, layer.down, config.mlp_bias ? &layer.down_bias : nullptr);
  if (config.qk_norm) {
    plan.add_vector(layer.q_norm, {{attention + "q_norm.weight", config.head_dim}});
    plan.add_vector(layer.k_norm, {{attention + "k_norm.weight", config.head_dim}});
  }
}

std::size_t Weights::bytes() const {
  std::size_t total = 0;
  for (const Buffer& buffer : buffers) total += buffer.bytes();
  return total;
}

Weights load_weights(const std::filesystem::path& directory, const ModelConfig& config, DType dtype, Device& device,
                     const LoadProgress& progress, LoadPlan::Values values) {
  Weights weights;
  Checkpoint checkpoint(directory);
  LoadPlan plan(checkpoint, values);
  const std::string prefix = checkpoint.has("model.norm.weight") ? "model." : "";
  weights.layers.resize(static_cast<std::size_t>(config.num_layers));
  add_embeddings(prefix, config, checkpoint, plan, weights);
  plan.add_vector(weights.final_norm, {{prefix + "norm.weight", config.hidden_size}});
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    add_layer(prefix + "layers." + std::to_string(i) + ".", config, plan, weights.layers[i]);
  }
  checkpoint.refuse_unexpected();

  plan.load(dtype, device, progress, weights.buffers);
  if (config.tie_word_embeddings) weights.lm_head = weights.embedding;
  return weights;
}

}  // namespace fastspec
