// Reads a Hugging Face config.json into a ModelConfig. What is absent takes the value that the family defines; what
// would change the function and is not computed here is refused by name. Opens no weights.
#include "model/model_config.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "base/check.h"
#include "io/json.h"
#include "model/rope.h"

namespace fastspec {

namespace {

constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxWidth = 1 << 20;  // hidden_size, intermediate_size
constexpr int kMaxHeads = 1 << 14;
constexpr int kMaxHeadDim = 512;
constexpr int kMaxLayers = 1000;
constexpr int kMaxLength = 1 << 30;
constexpr JsonLimits kConfigLimits{.max_bytes = std::size_t{16} << 20, .max_depth = 32};

/// Which layers a family's "sliding_window" restricts where no "layer_types" says so.
enum class WindowRule { kNone, kAllLayers, kUpperLayers, kNamedLayers };

/// How a family differs from plain Llama, and what its writers leave out of config.json.
struct Family {
  std::string_view architecture;
  std::string_view model_type;
  int default_max_position_embeddings;
  int default_head_dim;          // 0 = hidden_size / num_attention_heads
  bool attention_bias_optional;  // "attention_bias" decides about biases of q, k, v and o
  bool qkv_bias;                 // q, k and v always have biases
  bool mlp_bias_optional;        // "mlp_bias" decides
  bool qk_norm;
  bool kv_heads_optional;  // absent = one per query head
  WindowRule window_rule;
};

constexpr std::array<Family, 4> kFamilies{{
    {"LlamaForCausalLM", "llama", 2048, 0, true, false, true, false, true, WindowRule::kNone},
    {"MistralForCausalLM", "mistral", 131072, 0, false, false, false, false, false, WindowRule::kAllLayers},
    {"Qwen2ForCausalLM", "qwen2", 32768, 0, false, true, false, false, false, WindowRule::kUpperLayers},
    {"Qwen3ForCausalLM", "qwen3", 32768, 128, true, false, false, true, false, WindowRule::kUpperLayers},
}};

/// No target: it has no embedding, and its rows see one another (arXiv 2602.06036).
constexpr Family kBlockDrafter{"DFlashDraftModel",      "qwen3", 32768, 128, true, false, false, true, false,
                               WindowRule::kNamedLayers};

int read_int(const JsonView& value, int max) {
  return static_cast<int>(value.as_integer(1, max));
}

int read_int_or(const JsonView& config, const std::string& name, int fallback, int max) {
  return static_cast<int>(config.integer_or(name, fallback, 1, max));
}

std::string supported_architectures() {
  std::string text;
  for (const Family& family : kFamilies) {
    if (!text.empty()) text += ", ";
    text += family.architecture;
  }
  return text;
}

/// By "architectures", or by "model_type" where a writer gives no architecture.
const Family& read_family(const JsonView& config) {
  const auto architectures = config.find("architectures");
  const bool by_architecture = architectures && architectures->array_size() > 0;
  if (by_architecture && architectures->array_size() > 1) {
    architectures->refuse(ErrorCode::kUnsupported, "names ", architectures->array_size(),
                          " architectures, expected one");
  }
  const JsonView given = by_architecture ? architectures->at(std::size_t{0}) : config.at("model_type");
  const std::string& name = given.as_string();
  const auto family = std::find_if(kFamilies.begin(), kFamilies.end(), [&](const Family& candidate) {
    return name == (by_architecture ? candidate.architecture : candidate.model_type);
  });
  if (family == kFamilies.end()) {
    given.refuse(ErrorCode::kUnsupported, by_architecture ? "architecture" : "model type", " \"", shown(name),
                 "\" is not supported (supported: ", supported_architectures(), ")");
  }
  const std::string model_type = config.string_or("model_type", std::string(family->model_type));
  if (model_type != family->model_type) {
    config.at("model_type")
        .refuse(ErrorCode::kInvalidFile, "\"", shown(model_type), "\" contradicts architecture ", family->architecture);
  }
  return *family;
}

/// Features that change what the model computes and are not computed here.
void refuse_unsupported(const JsonView& config) {
  for (const char* name : {"quantization_config", "compression_config"}) {
    if (const auto field = config.find(name)) {
      const std::string method = field->value().is_object() ? field->string_or("quant_method", "unnamed") : "unnamed";
      field->refuse(ErrorCode::kUnsupported, "quantised checkpoints (method \"", shown(method),
                    "\") are not supported; use the float checkpoint");
    }
  }
  const std::string activation = config.string_or("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    config.at("hidden_act")
        .refuse(ErrorCode::kUnsupported, "activation \"", shown(activation), "\" is not supported (supported: silu)");
  }
  if (config.bool_or("use_mrope", false)) {
    config.at("use_mrope").refuse(ErrorCode::kUnsupported, "multimodal rotary positions are not supported");
  }
}

int read_head_dim(const JsonView& config, const Family& family, const ModelConfig& model) {
  int head_dim = family.default_head_dim;
  if (const auto given = config.find("head_dim")) {
    head_dim = read_int(*given, kMaxHeadDim);
  } else if (head_dim == 0) {
    if (model.hidden_size % model.num_heads != 0) {
      config.at("num_attention_heads")
          .refuse(ErrorCode::kInvalidFile, "value ", model.num_heads, " does not divide hidden_size ",
                  model.hidden_size, ", and there is no head_dim");
    }
    head_dim = model.hidden_size / model.num_heads;
  }
  if (head_dim % 2 != 0 || head_dim > kMaxHeadDim) {
    config.refuse(ErrorCode::kUnsupported, "head_dim ", head_dim, " is not an even number of at most ", kMaxHeadDim);
  }
  return head_dim;
}

void read_sizes(const JsonView& config, const Family& family, ModelConfig& model) {
  model.vocab_size = read_int(config.at("vocab_size"), kMaxVocab);
  model.hidden_size = read_int(config.at("hidden_size"), kMaxWidth);
  model.intermediate_size = read_int(config.at("intermediate_size"), kMaxWidth);
  model.num_layers = read_int(config.at("num_hidden_layers"), kMaxLayers);
  model.num_heads = read_int(config.at("num_attention_heads"), kMaxHeads);
  // Families differ in what an absent number means; null means one per query head everywhere.
  if (!family.kv_heads_optional) config.at("num_key_value_heads");
  model.num_kv_heads = read_int_or(config, "num_key_value_heads", model.num_heads, kMaxHeads);
  if (model.num_heads % model.num_kv_heads != 0) {
    config.at("num_key_value_heads")
        .refuse(ErrorCode::kInvalidFile, "value ", model.num_kv_heads, " does not divide num_attention_heads ",
                model.num_heads);
  }
  model.head_dim = read_head_dim(config, family, model);
}

/// Keys a row of a restricted layer may see; 0 = the model has no window.
int read_window(const JsonView& config, const Family& family) {
  const auto window = config.find("sliding_window");
  const auto use = config.find("use_sliding_window");
  switch (family.window_rule) {
    case WindowRule::kNone:
      if (window) window->refuse(ErrorCode::kUnsupported, family.architecture, " defines no sliding window");
      return 0;
    case WindowRule::kAllLayers:
      if (window && use && !use->as_bool()) {
        use->refuse(ErrorCode::kUnsupported, "false beside a sliding_window: set \"sliding_window\" to null instead");
      }
      return window ? read_int(*window, kMaxLength) : 0;
    case WindowRule::kUpperLayers:
      if (!use || !use->as_bool()) return 0;
      if (const JsonView given = config.at("sliding_window"); given.is_null()) return 0;
      return read_int(*window, kMaxLength);
    case WindowRule::kNamedLayers:
      return window ? read_int(*window, kMaxLength) : 0;
  }
  return 0;
}

bool is_windowed(const JsonView& layer_type) {
  const std::string& name = layer_type.as_string();
  if (name != "full_attention" && name != "sliding_attention") {
    layer_type.refuse(ErrorCode::kUnsupported, "layer type \"", shown(name),
                      "\" is not supported (supported: full_attention, sliding_attention)");
  }
  return name == "sliding_attention";
}

/// One entry a layer, as ModelConfig::window.
std::vector<int> read_windows(const JsonView& config, const Family& family, int num_layers) {
  const int window = read_window(config, family);
  std::vector<int> windows(static_cast<std::size_t>(num_layers), 0);
  const auto layer_types = config.find("layer_types");
  if (!layer_types && family.window_rule == WindowRule::kNamedLayers) return windows;
  if (!layer_types) {
    const int first = family.window_rule == WindowRule::kUpperLayers
                          ? static_cast<int>(config.integer_or("max_window_layers", 28, 0, kMaxLength))
                          : 0;
    for (int layer = first; layer < num_layers; ++layer) windows[static_cast<std::size_t>(layer)] = window;
    return windows;
  }
  if (layer_types->array_size() != windows.size()) {
    layer_types->refuse(ErrorCode::kInvalidFile, "has ", layer_types->array_size(), " entries, num_hidden_layers is ",
                        num_layers);
  }
  for (std::size_t layer = 0; layer < windows.size(); ++layer) {
    const JsonView layer_type = layer_types->at(layer);
    const bool windowed = is_windowed(layer_type);
    if (windowed && window == 0) {
      layer_type.refuse(ErrorCode::kInvalidFile, "\"sliding_attention\", but the model has no sliding window");
    }
    if (!windowed && window > 0 && family.window_rule == WindowRule::kAllLayers) {
      layer_type.refuse(ErrorCode::kUnsupported, family.architecture, " restricts every layer to its sliding window");
    }
    if (windowed) windows[layer] = window;
  }
  return windows;
}

DType read_dtype(const JsonView& config) {
  auto given = config.find("dtype");
  if (!given) given = config.find("torch_dtype");
  if (!given) return DType::kFloat32;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (given->as_string() == to_string(dtype)) return dtype;
  }
  given->refuse(ErrorCode::kUnsupported, "dtype \"", shown(given->as_string()),
                "\" is not supported (supported: float32, bfloat16, float16)");
}

/// "eos_token_id" of config.json or generation_config.json: an integer, a list of them, or nothing.
void add_eos_token_ids(const JsonView& config, int vocab_size, std::vector<TokenId>& ids) {
  const auto given = config.find("eos_token_id");
  if (!given) return;
  const auto add = [&](const JsonView& value) {
    ids.push_back(static_cast<TokenId>(value.as_integer(0, vocab_size - 1)));
  };
  if (given->value().is_array()) {
    for (const JsonView& value : given->elements()) add(value);
  } else {
    add(*given);
  }
}

ModelConfig read_decoder(const JsonView& config, const Family& family) {
  refuse_unsupported(config);
  ModelConfig model;
  model.architecture = family.architecture;
  model.model_type = family.model_type;
  read_sizes(config, family, model);
  model.max_position_embeddings =
      read_int_or(config, "max_position_embeddings", family.default_max_position_embeddings, kMaxLength);
  const double eps = config.number_or("rms_norm_eps", 1e-6);
  if (!(eps > 0 && eps <= 1)) {
    config.at("rms_norm_eps").refuse(ErrorCode::kInvalidFile, "value ", eps, " lies outside (0, 1]");
  }
  model.rms_norm_eps = static_cast<float>(eps);
  model.tie_word_embeddings = config.bool_or("tie_word_embeddings", false);
  const bool attention_bias = family.attention_bias_optional && config.bool_or("attention_bias", false);
  model.qkv_bias = family.qkv_bias || attention_bias;
  model.o_bias = attention_bias;
  model.mlp_bias = family.mlp_bias_optional && config.bool_or("mlp_bias", false);
  model.qk_norm = family.qk_norm;
  model.window = read_windows(config, family, model.num_layers);
  model.rope = read_rope_config(config, model.max_position_embeddings);
  model.checkpoint_dtype = read_dtype(config);

  add_eos_token_ids(config, model.vocab_size, model.eos_token_ids);
  return model;
}

ModelConfig read_model_config(const Json& document, const std::string& name) {
  const JsonView config(document, name);
  const Family& family = read_family(config);
  if (!config.bool_or("is_causal", true)) {
    config.at("is_causal").refuse(ErrorCode::kUnsupported, "bidirectional attention is not supported");
  }
  return read_decoder(config, family);
}

}  // namespace

ModelConfig read_block_drafter_config(const JsonView& config) {
  return read_decoder(config, kBlockDrafter);
}

ModelConfig parse_model_config(std::string_view text, const std::string& name) {
  return read_model_config(parse_json(text, name, kConfigLimits), name);
}

ModelConfig load_model_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  ModelConfig model = read_model_config(parse_json_file(path, kConfigLimits), path.string());
  const std::filesystem::path generation_path = directory / "generation_config.json";
  if (std::error_code status; std::filesystem::exists(generation_path, status)) {
    const Json generation = parse_json_file(generation_path, kConfigLimits);
    add_eos_token_ids(JsonView(generation, generation_path.string()), model.vocab_size, model.eos_token_ids);
  }
  std::sort(model.eos_token_ids.begin(), model.eos_token_ids.end());
  const auto repeated = std::unique(model.eos_token_ids.begin(), model.eos_token_ids.end());
  model.eos_token_ids.erase(repeated, model.eos_token_ids.end());
  return model;
}

}  // namespace fastspec
