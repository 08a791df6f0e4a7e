// Builds safetensors files and tiny model directories byte by byte, valid or not. Uses nothing of the code under test.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fastspec::test {

struct TestTensor {
  std::string name;
  std::string dtype;  // "F32", "BF16", "F16"
  std::vector<std::int64_t> shape;
  std::string data;
};

/// Header text and data framed as a safetensors file; nothing is checked.
std::string frame_safetensors(const std::string& header, const std::string& data);

/// A valid file with the tensors in the given order.
std::string safetensors_file(const std::vector<TestTensor>& tensors);

/// Multiples of 1/64 in [-1, 1), which every dtype holds exactly; a function of name and index.
float test_value(const std::string& name, std::size_t index);
TestTensor test_tensor(const std::string& name, const std::string& dtype, const std::vector<std::int64_t>& shape);

/// config.json of a two-layer model of width 8 (vocabulary 16, 2 query heads, 1 KV head of 4, MLP 12) with `fields`
/// added or, where already there, replaced: name -> JSON text. Empty text removes the field.
std::string tiny_config(const std::string& architecture, const std::map<std::string, std::string>& fields = {});

struct TinyTensors {
  std::string dtype = "F32";
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  bool lm_head = true;
  std::string prefix = "model.";
};

/// The tensors of the model that tiny_config() describes.
std::vector<TestTensor> tiny_tensors(const TinyTensors& options = {});

}  // namespace fastspec::test
