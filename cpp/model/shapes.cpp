// The table of shapes: what the models' own config.json say, as far as it is computed.
#include "model/shapes.h"

#include <array>
#include <filesystem>
#include <string_view>

#include "base/check.h"
#include "io/mapped_file.h"

namespace fastspec {
namespace {

struct Shape {
  std::string_view name;
  std::string_view config;
};

constexpr std::array<Shape, 3> kShapes{{
    {"qwen2.5-7b", R"({
  "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "dtype": "bfloat16", "hidden_act": "silu",
  "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
  "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 131072, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "tie_word_embeddings": false, "use_sliding_window": false
})"},
    {"llama-3.1-8b", R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_act": "silu",
  "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
  "rope_theta": 500000.0,
  "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192},
  "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": false
})"},
    {"qwen3-8b", R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "bfloat16", "hidden_act": "silu",
  "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
  "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
  "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "attention_bias": false, "tie_word_embeddings": false,
  "use_sliding_window": false
})"},
}};

}  // namespace

ModelConfig shape_config(const std::string& shape) {
  return parse_model_config(shape_json(shape), shape);
}

std::string shape_json(const std::string& shape) {
  for (const Shape& known : kShapes) {
    if (shape == known.name) return std::string(known.config);
  }
  const std::filesystem::path path(shape);
  if (!std::filesystem::exists(path)) {
    fail(ErrorCode::kNotFound, "shape \"", shape,
         "\": expected qwen2.5-7b, llama-3.1-8b, qwen3-8b or the path of a config.json");
  }
  const MappedFile file(std::filesystem::is_directory(path) ? path / "config.json" : path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace fastspec
