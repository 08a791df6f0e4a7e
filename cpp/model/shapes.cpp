// The table of shapes.
#include "model/shapes.h"

#include <filesystem>

#include "base/check.h"

namespace fastspec {
namespace {

ModelConfig qwen2_5_7b() {
  ModelConfig config;
  config.architecture = "Qwen2ForCausalLM";
  config.model_type = "qwen2";
  config.vocab_size = 152064;
  config.hidden_size = 3584;
  config.intermediate_size = 18944;
  config.num_layers = 28;
  config.num_heads = 28;
  config.num_kv_heads = 4;
  config.head_dim = 128;
  config.max_position_embeddings = 131072;
  config.qkv_bias = true;
  config.rope.theta = 1e6;
  return config;
}

ModelConfig llama_3_1_8b() {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.model_type = "llama";
  config.vocab_size = 128256;
  config.hidden_size = 4096;
  config.intermediate_size = 14336;
  config.num_layers = 32;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.rms_norm_eps = 1e-5f;
  config.max_position_embeddings = 131072;
  config.rope = {.type = RopeType::kLlama3, .theta = 5e5, .factor = 8, .original_max_position_embeddings = 8192};
  return config;
}

ModelConfig qwen3_8b() {
  ModelConfig config;
  config.architecture = "Qwen3ForCausalLM";
  config.model_type = "qwen3";
  config.vocab_size = 151936;
  config.hidden_size = 4096;
  config.intermediate_size = 12288;
  config.num_layers = 36;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.max_position_embeddings = 40960;
  config.qk_norm = true;
  config.rope.theta = 1e6;
  return config;
}

}  // namespace

ModelConfig shape_config(const std::string& shape) {
  ModelConfig config;
  if (shape == "qwen2.5-7b") {
    config = qwen2_5_7b();
  } else if (shape == "llama-3.1-8b") {
    config = llama_3_1_8b();
  } else if (shape == "qwen3-8b") {
    config = qwen3_8b();
  } else {
    const std::filesystem::path path(shape);
    if (!std::filesystem::exists(path)) {
      fail(ErrorCode::kNotFound, "shape \"", shape,
           "\": expected qwen2.5-7b, llama-3.1-8b, qwen3-8b or the path of a config.json");
    }
    return load_model_config(path.filename() == "config.json" ? path.parent_path() : path);
  }
  config.window.assign(static_cast<std::size_t>(config.num_layers), 0);
  config.checkpoint_dtype = DType::kBFloat16;
  return config;
}

}  // namespace fastspec
