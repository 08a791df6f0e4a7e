// See checkpoint_files.h. Conversions to 16 bits are exact here, so that they need no rounding of their own.
#include "support/checkpoint_files.h"

#include <bit>
#include <cmath>
#include <stdexcept>

namespace fastspec::test {

namespace {

std::string little_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>((value >> (8 * i)) & 0xFF);
  return text;
}

std::uint16_t half_bits(float value) {
  if (value == 0) return 0;
  int exponent = 0;
  const float mantissa = std::frexp(std::fabs(value), &exponent);  // [0.5, 1)
  const auto fraction = static_cast<std::uint16_t>((mantissa * 2 - 1) * 1024);
  return static_cast<std::uint16_t>((value < 0 ? 0x8000 : 0) | ((exponent + 14) << 10) | fraction);
}

std::string encode(float value, const std::string& dtype) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (dtype == "F32") return little_endian(bits, 4);
  if (dtype == "BF16") return little_endian(bits >> 16, 2);
  if (dtype == "F16") return little_endian(half_bits(value), 2);
  throw std::invalid_argument("dtype " + dtype);
}

}  // namespace

std::string frame_safetensors(const std::string& header, const std::string& data) {
  return little_endian(header.size(), 8) + header + data;
}

std::string safetensors_file(const std::vector<TestTensor>& tensors) {
  std::string header, data;
  for (const TestTensor& tensor : tensors) {
    std::string shape;
    for (std::int64_t dimension : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(dimension);
    header += (header.empty() ? "{" : ",");
    header += "\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[" + shape + "],";
    header += "\"data_offsets\":[" + std::to_string(data.size()) + ",";
    data += tensor.data;
    header += std::to_string(data.size()) + "]}";
  }
  return frame_safetensors(header.empty() ? "{}" : header + "}", data);
}

float test_value(const std::string& name, std::size_t index) {
  std::uint32_t hash = 2166136261u;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  hash = (hash ^ static_cast<std::uint32_t>(index)) * 2654435761u;
  hash ^= hash >> 15;
  return static_cast<float>(static_cast<int>(hash % 128) - 64) / 64.0f;
}

TestTensor test_tensor(const std::string& name, const std::string& dtype, const std::vector<std::int64_t>& shape) {
  TestTensor tensor{name, dtype, shape, {}};
  std::size_t elements = 1;
  for (std::int64_t dimension : shape) elements *= static_cast<std::size_t>(dimension);
  for (std::size_t i = 0; i < elements; ++i) tensor.data += encode(test_value(name, i), dtype);
  return tensor;
}

std::string tiny_config(const std::string& architecture, const std::map<std::string, std::string>& fields) {
  std::string family = architecture.substr(0, architecture.find("For"));
  for (char& c : family) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::map<std::string, std::string> all{
      {"architectures", "[\"" + architecture + "\"]"},
      {"model_type", "\"" + family + "\""},
      {"vocab_size", "16"},
      {"hidden_size", "8"},
      {"intermediate_size", "12"},
      {"num_hidden_layers", "2"},
      {"num_attention_heads", "2"},
      {"num_key_value_heads", "1"},
      {"head_dim", "4"},
      {"max_position_embeddings", "64"},
      {"rms_norm_eps", "1e-05"},
      {"hidden_act", "\"silu\""},
      {"eos_token_id", "2"},
      {"torch_dtype", "\"float32\""},
  };
  for (const auto& [name, text] : fields) {
    if (text.empty()) {
      all.erase(name);
    } else {
      all[name] = text;
    }
  }
  std::string config;
  for (const auto& [name, text] : all) config += (config.empty() ? "{\"" : ",\n\"") + name + "\": " + text;
  return config + "}\n";
}

std::vector<TestTensor> tiny_tensors(const TinyTensors& options) {
  std::vector<TestTensor> tensors;
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    tensors.push_back(test_tensor(name, options.dtype, shape));
  };
  add(options.prefix + "embed_tokens.weight", {16, 8});
  add(options.prefix + "norm.weight", {8});
  if (options.lm_head) add("lm_head.weight", {16, 8});
  for (int i = 0; i < 2; ++i) {
    const std::string layer = options.prefix + "layers." + std::to_string(i) + ".";
    const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in, bool bias) {
      add(layer + name + ".weight", {out, in});
      if (bias) add(layer + name + ".bias", {out});
    };
    linear("self_attn.q_proj", 8, 8, options.qkv_bias);
    linear("self_attn.k_proj", 4, 8, options.qkv_bias);
    linear("self_attn.v_proj", 4, 8, options.qkv_bias);
    linear("self_attn.o_proj", 8, 8, options.o_bias);
    linear("mlp.gate_proj", 12, 8, options.mlp_bias);
    linear("mlp.up_proj", 12, 8, options.mlp_bias);
    linear("mlp.down_proj", 8, 12, options.mlp_bias);
    add(layer + "input_layernorm.weight", {8});
    add(layer + "post_attention_layernorm.weight", {8});
    if (options.qk_norm) add(layer + "self_attn.q_norm.weight", {4});
    if (options.qk_norm) add(layer + "self_attn.k_norm.weight", {4});
  }
  return tensors;
}

}  // namespace fastspec::test
