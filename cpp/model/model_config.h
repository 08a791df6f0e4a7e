// What a decoder-only transformer is, read from a Hugging Face config.json. Data only: no weights, no compute.
#pragma once

#include <fastspec/tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace fastspec {

class JsonView;

enum class RopeType { kDefault, kLinear, kLlama3, kYarn };

/// Rotary embedding and its context scaling. Fields beyond `theta` are read for the types that name them.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                       // linear, llama3, yarn
  double low_freq_factor = 1.0;              // llama3
  double high_freq_factor = 4.0;             // llama3
  double beta_fast = 32.0;                   // yarn
  double beta_slow = 1.0;                    // yarn
  double attention_factor = 1.0;             // yarn: multiplies cos and sin
  bool truncate = true;                      // yarn: the ramp begins and ends at whole dimensions
  int original_max_position_embeddings = 0;  // llama3, yarn

  bool operator==(const RopeConfig&) const = default;
};

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM", ...
  std::string model_type;    // "llama", "mistral", "qwen2", "qwen3"
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_layers = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float rms_norm_eps = 1e-6f;
  int max_position_embeddings = 0;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;    // q, k, v projections carry biases (Qwen2; Llama with attention_bias)
  bool o_bias = false;      // Llama with attention_bias
  bool mlp_bias = false;    // Llama with mlp_bias
  bool qk_norm = false;     // RMSNorm per head on q and k before RoPE (Qwen3)
  std::vector<int> window;  // [num_layers] keys a row may see, itself included; 0 = all
  RopeConfig rope;
  DType checkpoint_dtype = DType::kFloat32;  // "dtype"/"torch_dtype"; float32 where absent
  std::vector<TokenId> eos_token_ids;        // config.json and generation_config.json together, sorted, unique

  int group_size() const { return num_heads / num_kv_heads; }
  int q_size() const { return num_heads * head_dim; }
  int kv_size() const { return num_kv_heads * head_dim; }
};

/// Reads `directory`/config.json and, where present, generation_config.json.
/// @throws Error naming the file and field: kNotFound, kInvalidFile (missing, mistyped, out of range, contradictory),
///         kUnsupported (an architecture, RoPE type, activation or feature that this build does not compute).
ModelConfig load_model_config(const std::filesystem::path& directory);

/// The same of a config.json's text alone. `name` starts error messages.
ModelConfig parse_model_config(std::string_view text, const std::string& name);

/// The layers of a block drafter ("DFlashDraftModel"), which is written as a Qwen3 decoder is: windows are those of the
/// layers that "layer_types" calls sliding. @throws as load_model_config().
ModelConfig read_block_drafter_config(const JsonView& config);

/// Inverse frequencies of the rotary embedding, [head_dim / 2], in double, context scaling applied.
std::vector<double> rope_inverse_frequencies(const RopeConfig& rope, int head_dim);

}  // namespace fastspec
