// See random_weights.h.
#include "model/random_weights.h"

#include <algorithm>
#include <cstdint>

#include "model/convert.h"

namespace fastspec {
namespace {

// Odd, so that a row of a matrix does not repeat the row before.
constexpr std::size_t kBlockElements = (std::size_t{1} << 20) + 1;
constexpr float kWeightAmplitude = 0.03f;

}  // namespace

NoiseFill::NoiseFill(Device& device, DType dtype, float amplitude)
    : device_(device), block_(kBlockElements * size_of(dtype)) {
  std::vector<float> values(kBlockElements);
  std::uint64_t state = 0x9E3779B97F4A7C15u;
  for (float& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = amplitude * (static_cast<float>(state >> 40) * 0x1p-23f - 1.0f);
  }
  convert_elements(reinterpret_cast<const std::byte*>(values.data()), DType::kFloat32, block_.data(), dtype,
                   kBlockElements);
}

void NoiseFill::fill(void* destination, std::size_t bytes) const {
  auto* place = static_cast<std::byte*>(destination);
  while (bytes > 0) {
    const std::size_t part = std::min(bytes, block_.size());
    device_.copy_to_device(place, block_.data(), part);
    place += part;
    bytes -= part;
  }
}

RandomWeights::RandomWeights(Device& device, DType dtype)
    : device_(device),
      dtype_(dtype),
      matrices_(device, dtype, kWeightAmplitude),
      vectors_(device, DType::kFloat32, 1) {}

Weight RandomWeights::matrix(int out_features, int in_features) {
  const std::size_t bytes =
      static_cast<std::size_t>(out_features) * static_cast<std::size_t>(in_features) * size_of(dtype_);
  buffers_.push_back(device_.allocate(bytes, "random weights"));
  matrices_.fill(buffers_.back().data(), bytes);
  return {buffers_.back().data(), dtype_, out_features, in_features};
}

Vector RandomWeights::vector(int size) {
  const std::size_t bytes = static_cast<std::size_t>(size) * sizeof(float);
  buffers_.push_back(device_.allocate(bytes, "random norm weights and biases"));
  vectors_.fill(buffers_.back().data(), bytes);
  return {buffers_.back().as<const float>(), size};
}

LayerWeights RandomWeights::layer(const ModelConfig& config) {
  const auto vector_if = [&](bool wanted, int size) { return wanted ? vector(size) : Vector{}; };
  const int qkv_size = config.q_size() + 2 * config.kv_size();
  LayerWeights made;
  made.attention_norm = vector(config.hidden_size);
  made.qkv = matrix(qkv_size, config.hidden_size);
  made.qkv_bias = vector_if(config.qkv_bias, qkv_size);
  made.q_norm = vector_if(config.qk_norm, config.head_dim);
  made.k_norm = vector_if(config.qk_norm, config.head_dim);
  made.o = matrix(config.hidden_size, config.q_size());
  made.o_bias = vector_if(config.o_bias, config.hidden_size);
  made.mlp_norm = vector(config.hidden_size);
  made.gate_up = matrix(2 * config.intermediate_size, config.hidden_size);
  made.gate_up_bias = vector_if(config.mlp_bias, 2 * config.intermediate_size);
  made.down = matrix(config.hidden_size, config.intermediate_size);
  made.down_bias = vector_if(config.mlp_bias, config.hidden_size);
  return made;
}

Weights random_weights(const ModelConfig& config, DType dtype, Device& device) {
  RandomWeights make(device, dtype);
  Weights weights;
  weights.embedding = make.matrix(config.vocab_size, config.hidden_size);
  for (int layer = 0; layer < config.num_layers; ++layer) weights.layers.push_back(make.layer(config));
  weights.final_norm = make.vector(config.hidden_size);
  weights.lm_head = config.tie_word_embeddings ? weights.embedding : make.matrix(config.vocab_size, config.hidden_size);
  weights.buffers = make.take_buffers();
  return weights;
}

}  // namespace fastspec
