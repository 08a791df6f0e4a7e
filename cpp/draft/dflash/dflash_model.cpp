// See dflash_model.h.
#include "draft/dflash/dflash_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "io/json.h"
#include "model/random_weights.h"

namespace fastspec {

namespace {

constexpr const char* kArchitecture = "DFlashDraftModel";
constexpr int kMaxBlock = 256;  // rows: with the root the width of an ancestor mask

/// A relative of the format, and what gives it away: part of the architecture's name, a field of config.json at the top
/// or in "dflash_config", part of a tensor's name. All in lower case.
struct Dialect {
  std::string_view name;
  std::string_view architecture;
  std::array<std::string_view, 4> fields;
  std::array<std::string_view, 2> tensors;
};

constexpr std::array<Dialect, 6> kDialects{{
    {"DFlash2", "dflash2", {"dflash2_config"}, {"conv", "selector"}},
    {"DSpark",
     "dspark",
     {"dspark_config", "markov_rank", "markov_head_type", "enable_confidence_head"},
     {"markov", "confidence"}},
    {"Domino", "domino", {"domino_config"}, {"domino"}},
    {"DFlare", "dflare", {"dflare_config"}, {"dflare"}},
    {"DFly", "dfly", {"dfly_config", "enable_hidden_correction"}, {"hidden_correction", "layer_fusion"}},
    {"Speculators",
     "speculator",
     {"speculators_model_type", "speculators_config", "aux_hidden_state_layer_ids", "draft_vocab_size"},
     {"d2t", "t2d"}},
}};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

[[noreturn]] void refuse_dialect(const JsonView& place, const Dialect& dialect) {
  place.refuse(ErrorCode::kUnsupported, "a ", dialect.name,
               " drafter, which is not supported (supported: ", kArchitecture, " as its authors publish it)");
}

void refuse_dialects(const JsonView& config) {
  const auto own = config.find("dflash_config");
  for (const Dialect& dialect : kDialects) {
    for (const std::string_view field : dialect.fields) {
      if (field.empty()) continue;
      if (const auto found = config.find(std::string(field))) refuse_dialect(*found, dialect);
      if (const auto found = own ? own->find(std::string(field)) : std::nullopt) refuse_dialect(*found, dialect);
    }
  }
  const JsonView architecture = config.at("architectures").at(std::size_t{0});
  const std::string& name = architecture.as_string();
  if (name == kArchitecture) return;
  for (const Dialect& dialect : kDialects) {
    if (lower(name).find(dialect.architecture) != std::string::npos) refuse_dialect(architecture, dialect);
  }
  architecture.refuse(ErrorCode::kUnsupported, "architecture \"", shown(name),
                      "\" is no block drafter (supported: ", kArchitecture, ")");
}

/// A size that must be the target's.
void expect_same(const JsonView& config, const char* name, int value, int target_value) {
  if (value == target_value) return;
  config.at(name).refuse(ErrorCode::kInvalidArgument, "value ", value, ", the target has ", target_value,
                         ": this drafter was trained for another model");
}

int read_block_size(const JsonView& config, const JsonView& own) {
  const auto inner = own.find("block_size");
  return static_cast<int>((inner ? *inner : config.at("block_size")).as_integer(2, kMaxBlock));
}

std::vector<int> read_target_layers(const JsonView& own, int num_target_layers, int num_draft_layers) {
  const auto ids = own.find("target_layer_ids");
  std::vector<int> layers;
  if (!ids) {
    layers = default_target_layers(num_target_layers, num_draft_layers);
    const bool ascend = std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) == layers.end();
    if (!ascend || layers.front() < 0) {
      own.refuse(ErrorCode::kInvalidFile, "a target of ", num_target_layers, " layers needs \"target_layer_ids\"");
    }
    return layers;
  }
  for (const JsonView& id : ids->elements()) {
    layers.push_back(static_cast<int>(id.as_integer(0, num_target_layers - 1)));
    if (layers.size() > 1 && layers[layers.size() - 2] >= layers.back()) {
      id.refuse(ErrorCode::kInvalidFile, "layer ", layers.back(), " does not follow layer ", layers[layers.size() - 2]);
    }
  }
  if (layers.empty()) ids->refuse(ErrorCode::kInvalidFile, "names no layer");
  return layers;
}

DFlashConfig read_config(const std::filesystem::path& directory, const ModelConfig& target) {
  const std::filesystem::path path = directory / "config.json";
  const Json document = parse_json_file(path, {.max_bytes = std::size_t{16} << 20, .max_depth = 32});
  const JsonView config(document, path.string());
  refuse_dialects(config);
  DFlashConfig result;
  result.decoder = read_block_drafter_config(config);
  expect_same(config, "hidden_size", result.decoder.hidden_size, target.hidden_size);
  expect_same(config, "vocab_size", result.decoder.vocab_size, target.vocab_size);
  if (const auto layers = config.find("num_target_layers")) {
    expect_same(config, "num_target_layers", static_cast<int>(layers->as_integer()), target.num_layers);
  }
  const JsonView own = config.at("dflash_config");
  for (const std::string& name : own.names()) {
    if (name != "block_size" && name != "mask_token_id" && name != "target_layer_ids") {
      own.at(name).refuse(ErrorCode::kUnsupported, "unknown field");
    }
  }
  if (config.bool_or("is_causal", false)) {
    config.at("is_causal").refuse(ErrorCode::kUnsupported, "a causal block is not supported");
  }
  result.block_size = read_block_size(config, own);
  result.mask_token = static_cast<TokenId>(own.at("mask_token_id").as_integer(0, target.vocab_size - 1));
  result.target_layers = read_target_layers(own, target.num_layers, result.decoder.num_layers);
  return result;
}

/// Says whose tensor is in the way, before the loader says that it is unexpected.
void refuse_dialects(const Checkpoint& checkpoint) {
  for (const std::string& name : checkpoint.names()) {
    for (const Dialect& dialect : kDialects) {
      for (const std::string_view part : dialect.tensors) {
        if (part.empty() || lower(name).find(part) == std::string::npos) continue;
        fail(ErrorCode::kUnsupported, checkpoint.directory(), ": tensor \"", shown(name), "\" is of a ", dialect.name,
             " drafter, which is not supported");
      }
    }
  }
}

}  // namespace

std::vector<int> default_target_layers(int num_target_layers, int num_draft_layers) {
  if (num_draft_layers == 1) return {num_target_layers / 2};
  std::vector<int> layers;
  for (int k = 0; k < num_draft_layers; ++k) {
    const double place = 1 + static_cast<double>(k) * (num_target_layers - 4) / (num_draft_layers - 1);
    layers.push_back(static_cast<int>(std::nearbyint(place)));  // halves to even, as Python rounds
  }
  return layers;
}

DFlashModel random_dflash(int num_layers, int block_size, const ModelConfig& target, const Weights& target_weights,
                          DType dtype, Device& device) {
  if (num_layers > target.num_layers) {
    fail(ErrorCode::kInvalidArgument, "a block drafter of ", num_layers, " layers for a target of ", target.num_layers);
  }
  DFlashModel model;
  ModelConfig& decoder = model.config.decoder = target;
  decoder.num_layers = num_layers;
  decoder.window.assign(static_cast<std::size_t>(num_layers), 0);
  decoder.qkv_bias = false;
  decoder.qk_norm = true;
  model.config.block_size = block_size;
  model.config.target_layers = default_target_layers(target.num_layers, num_layers);
  std::vector<int>& layers = model.config.target_layers;
  const bool ascend = std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) == layers.end();
  if (!ascend) std::iota(layers.begin(), layers.end(), 0);  // too few for the usual places
  RandomWeights make(device, dtype);
  model.fc = make.matrix(target.hidden_size, num_layers * target.hidden_size);
  model.hidden_norm = make.vector(target.hidden_size);
  for (int i = 0; i < num_layers; ++i) model.weights.layers.push_back(make.layer(decoder));
  model.weights.final_norm = make.vector(target.hidden_size);
  model.weights.buffers = make.take_buffers();
  model.weights.embedding = target_weights.embedding;
  model.weights.lm_head = target_weights.lm_head;
  return model;
}

DFlashModel load_dflash(const std::filesystem::path& directory, const ModelConfig& target,
                        const Weights& target_weights, DType dtype, Device& device, const LoadProgress& progress) {
  DFlashModel model;
  model.config = read_config(directory, target);
  const ModelConfig& decoder = model.config.decoder;
  Checkpoint checkpoint(directory);
  refuse_dialects(checkpoint);
  const std::string prefix = checkpoint.has("model.fc.weight") ? "model." : "";
  LoadPlan plan(checkpoint, LoadPlan::Values::kChecked);
  const int features = static_cast<int>(model.config.target_layers.size()) * target.hidden_size;
  plan.add_matrix(model.fc, {{prefix + "fc.weight", target.hidden_size}}, features);
  plan.add_vector(model.hidden_norm, {{prefix + "hidden_norm.weight", target.hidden_size}});
  plan.add_vector(model.weights.final_norm, {{prefix + "norm.weight", target.hidden_size}});
  model.weights.layers.resize(static_cast<std::size_t>(decoder.num_layers));
  for (std::size_t i = 0; i < model.weights.layers.size(); ++i) {
    add_layer(prefix + "layers." + std::to_string(i) + ".", decoder, plan, model.weights.layers[i]);
  }
  checkpoint.refuse_unexpected();

  plan.load(dtype, device, progress, model.weights.buffers);
  model.weights.embedding = target_weights.embedding;
  model.weights.lm_head = target_weights.lm_head;
  std::string layers;
  for (const int layer : model.config.target_layers) layers += (layers.empty() ? "" : ", ") + std::to_string(layer);
  log(LogLevel::kInfo, checkpoint.directory(), ": blocks of ", model.config.block_size,
      " rows over the outputs of the target's layers ", layers, " (the first is 0)");
  return model;
}

}  // namespace fastspec
