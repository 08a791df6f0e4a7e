// Loading of weights: where each tensor ends up, in which type, and what is refused before memory is taken.
#include "model/weights.h"

#include <gtest/gtest.h>

#include <bit>

#include "recording_device.h"
#include "support/allocation_watch.h"
#include "support/checkpoint_files.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace fastspec::test {
namespace {

using Fields = std::map<std::string, std::string>;

/// Names of tensors stacked in one matrix or vector, and rows of each.
struct Part {
  std::string name;
  int rows;
};

class WeightsTest : public testing::Test {
 protected:
  void write(const std::string& architecture, const Fields& fields, const TinyTensors& options) {
    directory_.write("config.json", tiny_config(architecture, fields));
    directory_.write("model.safetensors", safetensors_file(tiny_tensors(options)));
  }
  Weights load(DType dtype = DType::kFloat32) {
    return load_weights(directory_.path(), load_model_config(directory_.path()), dtype, device_);
  }
  void expect_refused(ErrorCode code, std::initializer_list<std::string> parts) {
    const std::size_t before = device_.allocated_bytes;
    expect_error(code, parts, [&] { load(); });
    EXPECT_EQ(device_.allocated_bytes, before);
  }

  TemporaryDirectory directory_;
  RecordingDevice device_;
};

/// Test values are exact in every type, so one comparison serves all.
float element(const Weight& weight, std::size_t index) {
  if (weight.dtype == DType::kFloat32) return static_cast<const float*>(weight.data)[index];
  const std::uint32_t bits = static_cast<const std::uint16_t*>(weight.data)[index];
  if (weight.dtype == DType::kBFloat16) return std::bit_cast<float>(bits << 16);
  const std::uint32_t magnitude = bits & 0x7FFF;
  const float value = magnitude == 0 ? 0 : std::bit_cast<float>((magnitude << 13) + (112u << 23));
  return bits & 0x8000 ? -value : value;
}

void expect_matrix(const Weight& weight, DType dtype, const std::vector<Part>& parts, int in_features) {
  ASSERT_EQ(weight.dtype, dtype);
  ASSERT_EQ(weight.in_features, in_features);
  std::size_t offset = 0;
  for (const Part& part : parts) {
    const std::size_t count = static_cast<std::size_t>(part.rows * in_features);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(element(weight, offset + i), test_value(part.name, i)) << part.name << " element " << i;
    }
    offset += count;
  }
  ASSERT_EQ(static_cast<std::size_t>(weight.out_features) * static_cast<std::size_t>(in_features), offset);
}

void expect_vector(const Vector& vector, const std::vector<Part>& parts) {
  std::size_t offset = 0;
  for (const Part& part : parts) {
    for (int i = 0; i < part.rows; ++i, ++offset) {
      ASSERT_EQ(vector.data[offset], test_value(part.name, static_cast<std::size_t>(i))) << part.name;
    }
  }
  ASSERT_EQ(static_cast<std::size_t>(vector.size), offset);
}

void expect_layer(const LayerWeights& layer, DType dtype, const std::string& name) {
  expect_vector(layer.attention_norm, {{name + "input_layernorm.weight", 8}});
  expect_vector(layer.mlp_norm, {{name + "post_attention_layernorm.weight", 8}});
  const std::string attention = name + "self_attn.", mlp = name + "mlp.";
  expect_matrix(layer.qkv, dtype,
                {{attention + "q_proj.weight", 8}, {attention + "k_proj.weight", 4}, {attention + "v_proj.weight", 4}},
                8);
  expect_matrix(layer.o, dtype, {{attention + "o_proj.weight", 8}}, 8);
  expect_matrix(layer.gate_up, dtype, {{mlp + "gate_proj.weight", 12}, {mlp + "up_proj.weight", 12}}, 8);
  expect_matrix(layer.down, dtype, {{mlp + "down_proj.weight", 8}}, 12);
}

TEST_F(WeightsTest, PlacesEveryTensorInEveryType) {
  const DType targets[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  for (const std::string stored : {"F32", "BF16", "F16"}) {
    for (DType dtype : targets) {
      write("LlamaForCausalLM", {}, {.dtype = stored});
      const Weights weights = load(dtype);
      expect_matrix(weights.embedding, dtype, {{"model.embed_tokens.weight", 16}}, 8);
      expect_matrix(weights.lm_head, dtype, {{"lm_head.weight", 16}}, 8);
      EXPECT_NE(weights.lm_head.data, weights.embedding.data);
      expect_vector(weights.final_norm, {{"model.norm.weight", 8}});
      ASSERT_EQ(weights.layers.size(), 2u);
      for (int i = 0; i < 2; ++i) {
        const LayerWeights& layer = weights.layers[static_cast<std::size_t>(i)];
        expect_layer(layer, dtype, "model.layers." + std::to_string(i) + ".");
        for (const Vector& absent : {layer.qkv_bias, layer.o_bias, layer.gate_up_bias, layer.down_bias, layer.q_norm}) {
          EXPECT_EQ(absent.data, nullptr);
          EXPECT_EQ(absent.size, 0);
        }
      }
    }
  }
}

TEST_F(WeightsTest, PlacesBiasesAndHeadNorms) {
  write("LlamaForCausalLM", {{"attention_bias", "true"}, {"mlp_bias", "true"}},
        {.dtype = "BF16", .qkv_bias = true, .o_bias = true, .mlp_bias = true});
  Weights weights = load(DType::kBFloat16);
  const std::string attention = "model.layers.1.self_attn.", mlp = "model.layers.1.mlp.";
  const std::vector<Part> qkv{
      {attention + "q_proj.bias", 8}, {attention + "k_proj.bias", 4}, {attention + "v_proj.bias", 4}};
  expect_vector(weights.layers[1].qkv_bias, qkv);
  expect_vector(weights.layers[1].o_bias, {{attention + "o_proj.bias", 8}});
  expect_vector(weights.layers[1].gate_up_bias, {{mlp + "gate_proj.bias", 12}, {mlp + "up_proj.bias", 12}});
  expect_vector(weights.layers[1].down_bias, {{mlp + "down_proj.bias", 8}});

  write("Qwen2ForCausalLM", {}, {.qkv_bias = true});
  weights = load();
  expect_vector(weights.layers[1].qkv_bias, qkv);
  EXPECT_EQ(weights.layers[1].o_bias.data, nullptr);

  write("Qwen3ForCausalLM", {}, {.qk_norm = true});
  weights = load();
  expect_vector(weights.layers[1].q_norm, {{attention + "q_norm.weight", 4}});
  expect_vector(weights.layers[1].k_norm, {{attention + "k_norm.weight", 4}});
}

TEST_F(WeightsTest, ReadsMixedTypesAndShards) {
  std::vector<TestTensor> first, second;
  for (TestTensor& tensor : tiny_tensors()) {
    const std::string dtype = first.size() % 3 == 0 ? "F16" : first.size() % 3 == 1 ? "BF16" : "F32";
    tensor = test_tensor(tensor.name, dtype, tensor.shape);
    (tensor.name.find("layers.1") == std::string::npos ? first : second).push_back(tensor);
  }
  directory_.write("config.json", tiny_config("LlamaForCausalLM"));
  directory_.write("1.safetensors", safetensors_file(first));
  directory_.write("2.safetensors", safetensors_file(second));
  std::string map;
  for (const TestTensor& tensor : first) map += "\"" + tensor.name + "\":\"1.safetensors\",";
  for (const TestTensor& tensor : second) map += "\"" + tensor.name + "\":\"2.safetensors\",";
  map.pop_back();
  directory_.write("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
  const Weights weights = load(DType::kBFloat16);
  for (std::size_t i = 0; i < 2; ++i) {
    expect_layer(weights.layers[i], DType::kBFloat16, "model.layers." + std::to_string(i) + ".");
  }
}

TEST_F(WeightsTest, PrefixIsOptional) {
  write("LlamaForCausalLM", {}, {.prefix = ""});
  const Weights weights = load();
  expect_matrix(weights.embedding, DType::kFloat32, {{"embed_tokens.weight", 16}}, 8);
  expect_layer(weights.layers[1], DType::kFloat32, "layers.1.");
}

TEST_F(WeightsTest, TiedEmbeddingsShareMemory) {
  write("LlamaForCausalLM", {{"tie_word_embeddings", "true"}}, {.lm_head = false});
  Weights weights = load();
  EXPECT_EQ(weights.lm_head.data, weights.embedding.data);
  EXPECT_EQ(weights.lm_head.out_features, 16);
  const std::size_t shared_bytes = weights.bytes();

  // A second copy is passed over, another tensor is not.
  std::vector<TestTensor> tensors = tiny_tensors({.lm_head = false});
  TestTensor copy = tensors.front();
  copy.name = "lm_head.weight";
  tensors.push_back(copy);
  directory_.write("model.safetensors", safetensors_file(tensors));
  weights = load();
  EXPECT_EQ(weights.lm_head.data, weights.embedding.data);
  EXPECT_EQ(weights.bytes(), shared_bytes);
  tensors.back().data[5] = static_cast<char>(tensors.back().data[5] ^ 1);
  directory_.write("model.safetensors", safetensors_file(tensors));
  expect_refused(ErrorCode::kInvalidFile, {"lm_head.weight", "differs from", "tie_word_embeddings"});

  // Some writers keep the other name of the pair.
  tensors = tiny_tensors();
  std::erase_if(tensors, [](const TestTensor& tensor) { return tensor.name == "model.embed_tokens.weight"; });
  directory_.write("model.safetensors", safetensors_file(tensors));
  weights = load();
  expect_matrix(weights.embedding, DType::kFloat32, {{"lm_head.weight", 16}}, 8);
  EXPECT_EQ(weights.lm_head.data, weights.embedding.data);
}

TEST_F(WeightsTest, PassesOverRotaryBuffersOnly) {
  write("LlamaForCausalLM", {}, {});
  std::vector<TestTensor> tensors = tiny_tensors();
  tensors.push_back(test_tensor("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {2}));
  tensors.push_back(test_tensor("model.rotary_emb.inv_freq", "F32", {2}));
  directory_.write("model.safetensors", safetensors_file(tensors));
  load();
  for (const std::string name : {"model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias",
                                 "model.layers.0.self_attn.q_norm.weight", "extra"}) {
    tensors.push_back(test_tensor(name, "F32", {8}));
    directory_.write("model.safetensors", safetensors_file(tensors));
    expect_refused(ErrorCode::kUnsupported, {directory_.path().string(), "unexpected tensor \"" + name + "\""});
    tensors.pop_back();
  }
}

TEST_F(WeightsTest, RefusesEachMissingTensor) {
  write("LlamaForCausalLM", {{"attention_bias", "true"}}, {.qkv_bias = true, .o_bias = true});
  const std::vector<TestTensor> all = tiny_tensors({.qkv_bias = true, .o_bias = true});
  for (const TestTensor& missing : all) {
    std::vector<TestTensor> tensors = all;
    std::erase_if(tensors, [&](const TestTensor& tensor) { return tensor.name == missing.name; });
    directory_.write("model.safetensors", safetensors_file(tensors));
    // Without the final norm the prefix cannot be told, so another name of the model is reported.
    const std::string name = missing.name == "model.norm.weight" ? "is missing" : "\"" + missing.name + "\" is missing";
    expect_refused(ErrorCode::kNotFound, {directory_.path().string(), name});
  }
}

TEST_F(WeightsTest, RefusesEachWrongShape) {
  const std::vector<TestTensor> all = tiny_tensors();
  directory_.write("config.json", tiny_config("LlamaForCausalLM"));
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::vector<TestTensor> tensors = all;
    std::vector<std::int64_t> shape = tensors[i].shape;
    std::reverse(shape.begin(), shape.end());
    shape.front() += shape == tensors[i].shape ? 1 : 0;  // square and one-dimensional ones
    tensors[i] = test_tensor(tensors[i].name, "F32", shape);
    directory_.write("model.safetensors", safetensors_file(tensors));
    std::string text;
    for (std::int64_t dimension : shape) text += (text.empty() ? "[" : ", ") + std::to_string(dimension);
    expect_refused(ErrorCode::kInvalidFile,
                   {"model.safetensors", "\"" + all[i].name + "\" has shape " + text + "]", "config.json asks for ["});
  }
}

TEST_F(WeightsTest, RefusesOtherElementTypes) {
  std::vector<TestTensor> tensors = tiny_tensors();
  directory_.write("config.json", tiny_config("LlamaForCausalLM"));
  tensors[0].dtype = "I32";
  directory_.write("model.safetensors", safetensors_file(tensors));
  expect_refused(ErrorCode::kUnsupported, {"model.safetensors", "model.embed_tokens.weight", "I32"});
}

/// A config may claim a giant; only what the file holds is ever allocated.
TEST_F(WeightsTest, TrustsNoClaimOfTheConfig) {
  write("LlamaForCausalLM", {}, {});
  const AllocationWatch control;
  load();
  const std::size_t device_bytes = device_.allocated_bytes;
  ASSERT_GE(control.largest(), 1u << 20);  // the staging buffer: the watch sees what the library allocates
  for (const Fields& fields :
       {Fields{{"vocab_size", "16777216"}}, Fields{{"hidden_size", "1048576"}},
        Fields{{"intermediate_size", "1048576"}}, Fields{{"num_hidden_layers", "1000"}},
        Fields{{"num_attention_heads", "16384"}, {"num_key_value_heads", "16384"}, {"head_dim", "512"}}}) {
    write("LlamaForCausalLM", fields, {});
    const AllocationWatch watch;
    EXPECT_THROW(load(), Error);
    EXPECT_LT(watch.largest(), 1u << 20);
    EXPECT_EQ(device_.allocated_bytes, device_bytes);
  }
}

TEST_F(WeightsTest, ReportsProgressInBoundedSteps) {
  // An embedding of 6 MB is more than one staging buffer.
  directory_.write("config.json", tiny_config("LlamaForCausalLM", {{"vocab_size", "200000"}}));
  std::vector<TestTensor> tensors = tiny_tensors({.dtype = "BF16"});
  std::erase_if(tensors, [](const TestTensor& tensor) {
    return tensor.name == "model.embed_tokens.weight" || tensor.name == "lm_head.weight";
  });
  tensors.push_back(test_tensor("model.embed_tokens.weight", "BF16", {200000, 8}));
  tensors.push_back(test_tensor("lm_head.weight", "F32", {200000, 8}));
  directory_.write("model.safetensors", safetensors_file(tensors));
  std::vector<std::size_t> done;
  std::size_t total = 0;
  const Weights weights = load_weights(directory_.path(), load_model_config(directory_.path()), DType::kFloat32,
                                       device_, [&](std::size_t now, std::size_t all) {
                                         done.push_back(now);
                                         total = all;
                                       });
  expect_matrix(weights.embedding, DType::kFloat32, {{"model.embed_tokens.weight", 200000}}, 8);
  expect_matrix(weights.lm_head, DType::kFloat32, {{"lm_head.weight", 200000}}, 8);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), total);
  EXPECT_GE(weights.bytes(), total);
  EXPECT_LT(weights.bytes(), total + 10000);  // padding between vectors
  EXPECT_LE(device_.largest_copy, std::size_t{4} << 20);
}

TEST_F(WeightsTest, VectorsAreAligned) {
  write("Qwen3ForCausalLM", {}, {.qk_norm = true});
  const Weights weights = load();
  const auto base = reinterpret_cast<std::uintptr_t>(weights.buffers.back().data());
  for (const LayerWeights& layer : weights.layers) {
    for (const Vector& vector : {layer.attention_norm, layer.mlp_norm, layer.q_norm, layer.k_norm}) {
      EXPECT_EQ((reinterpret_cast<std::uintptr_t>(vector.data) - base) % 64, 0u);
    }
  }
}

TEST_F(WeightsTest, DeviceWithoutMemoryIsReported) {
  write("LlamaForCausalLM", {}, {});
  for (int n = 0; n < 11; ++n) {
    device_.allocations_before_failure = n;
    expect_error(ErrorCode::kOutOfMemory, {" bytes"}, [&] { load(); });
  }
  device_.allocations_before_failure = 11;
  load();
}

}  // namespace
}  // namespace fastspec::test
