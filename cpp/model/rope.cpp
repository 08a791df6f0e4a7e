// Rotary embedding: its configuration and its inverse frequencies. Applying them to q and k is an operation, not here.
#include "model/rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "io/json.h"

namespace fastspec {

namespace {

constexpr double kDefaultTheta = 10000.0;
constexpr int kMaxLength = 1 << 30;

constexpr std::array<std::string_view, 3> kLinearFields{"factor", "original_max_position_embeddings", "finetuned"};
constexpr std::array<std::string_view, 4> kLlama3Fields{"factor", "low_freq_factor", "high_freq_factor",
                                                        "original_max_position_embeddings"};
constexpr std::array<std::string_view, 9> kYarnFields{"factor",           "original_max_position_embeddings",
                                                      "attention_factor", "beta_fast",
                                                      "beta_slow",        "mscale",
                                                      "mscale_all_dim",   "truncate",
                                                      "finetuned"};

/// A number that keeps every product of a few of them finite and above zero.
double positive(const JsonView& value) {
  const double number = value.as_number();
  if (!(number >= 1e-9 && number <= 1e15)) {
    value.refuse(ErrorCode::kInvalidFile, "value ", number, " lies outside [1e-9, 1e15]");
  }
  return number;
}

double positive_or(const JsonView& parent, const std::string& name, double fallback) {
  const auto value = parent.find(name);
  return value ? positive(*value) : fallback;
}

/// As positive_or(), for fields where writers spell "not given" as 0 too.
double nonzero_or(const JsonView& parent, const std::string& name, double fallback) {
  const auto value = parent.find(name);
  return value && value->as_number() != 0 ? positive(*value) : fallback;
}

RopeType read_type(const JsonView& parameters) {
  const auto newer = parameters.find("rope_type");
  const auto older = parameters.find("type");
  if (newer && older && newer->as_string() != older->as_string()) {
    newer->refuse(ErrorCode::kInvalidFile, "\"", shown(newer->as_string()), "\" contradicts \"type\": \"",
                  shown(older->as_string()), "\"");
  }
  if (!newer && !older) return RopeType::kDefault;  // any scaling field beside it is then refused as unknown
  const JsonView& given = newer ? *newer : *older;
  const std::string& type = given.as_string();
  if (type == "default") return RopeType::kDefault;
  if (type == "linear") return RopeType::kLinear;
  if (type == "llama3") return RopeType::kLlama3;
  if (type == "yarn") return RopeType::kYarn;
  given.refuse(ErrorCode::kUnsupported, "RoPE type \"", shown(type),
               "\" is not supported (supported: default, linear, llama3, yarn)");
}

std::span<const std::string_view> scaling_fields(RopeType type) {
  switch (type) {
    case RopeType::kDefault:
      return {};
    case RopeType::kLinear:
      return kLinearFields;
    case RopeType::kLlama3:
      return kLlama3Fields;
    case RopeType::kYarn:
      return kYarnFields;
  }
  return {};
}

/// A scaling field that is passed over would silently change every position, so unknown ones are refused.
void check_fields(const JsonView& parameters, RopeType type) {
  const auto known = scaling_fields(type);
  for (const std::string& name : parameters.names()) {
    if (name == "rope_type" || name == "type" || name == "rope_theta") continue;
    const JsonView field = parameters.at(name);
    if (field.is_null()) continue;
    if (name == "partial_rotary_factor") {
      if (field.as_number() != 1.0) field.refuse(ErrorCode::kUnsupported, "only full rotation (1.0) is supported");
    } else if (std::find(known.begin(), known.end(), name) == known.end()) {
      field.refuse(ErrorCode::kUnsupported, "is not known for this RoPE type");
    }
  }
}

double magnitude_scale(double factor, double scale) {
  return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

void read_yarn(const JsonView& parameters, int max_position_embeddings, RopeConfig& rope) {
  rope.factor = positive_or(parameters, "factor",
                            static_cast<double>(max_position_embeddings) / rope.original_max_position_embeddings);
  rope.beta_fast = nonzero_or(parameters, "beta_fast", 32.0);
  rope.beta_slow = nonzero_or(parameters, "beta_slow", 1.0);
  if (rope.beta_fast <= rope.beta_slow) {
    parameters.refuse(ErrorCode::kInvalidFile, "beta_fast ", rope.beta_fast, " must be greater than beta_slow ",
                      rope.beta_slow);
  }
  rope.truncate = parameters.bool_or("truncate", true);
  const double scale = nonzero_or(parameters, "mscale", 0.0);
  const double scale_all = nonzero_or(parameters, "mscale_all_dim", 0.0);
  const double derived = scale != 0 && scale_all != 0
                             ? magnitude_scale(rope.factor, scale) / magnitude_scale(rope.factor, scale_all)
                             : magnitude_scale(rope.factor, 1.0);
  rope.attention_factor = positive_or(parameters, "attention_factor", derived);
}

void read_llama3(const JsonView& parameters, RopeConfig& rope) {
  rope.factor = positive(parameters.at("factor"));
  rope.low_freq_factor = positive(parameters.at("low_freq_factor"));
  rope.high_freq_factor = positive(parameters.at("high_freq_factor"));
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    parameters.refuse(ErrorCode::kInvalidFile, "high_freq_factor ", rope.high_freq_factor,
                      " must be greater than low_freq_factor ", rope.low_freq_factor);
  }
}

double read_theta(const JsonView& parameters, const JsonView& config) {
  const auto inner = parameters.find("rope_theta");
  const auto outer = config.find("rope_theta");
  if (!inner && !outer) return kDefaultTheta;
  const JsonView& given = inner ? *inner : *outer;
  const double theta = positive(given);
  if (theta <= 1) given.refuse(ErrorCode::kInvalidFile, "value ", theta, " must be more than 1");
  if (inner && outer && outer->as_number() != theta) {
    inner->refuse(ErrorCode::kInvalidFile, "value ", theta, " contradicts \"rope_theta\": ", outer->as_number());
  }
  return theta;
}

/// One set of parameters; `config` holds what older writers put beside it.
RopeConfig read_parameters(const JsonView& parameters, const JsonView& config, int max_position_embeddings) {
  RopeConfig rope;
  rope.type = read_type(parameters);
  check_fields(parameters, rope.type);
  rope.theta = read_theta(parameters, config);
  if (rope.type == RopeType::kLinear) rope.factor = positive(parameters.at("factor"));
  if (rope.type == RopeType::kLlama3 || rope.type == RopeType::kYarn) {
    const std::string name = "original_max_position_embeddings";
    const std::int64_t nested = parameters.integer_or(name, max_position_embeddings, 1, kMaxLength);
    rope.original_max_position_embeddings = static_cast<int>(config.integer_or(name, nested, 1, kMaxLength));
  }
  if (rope.type == RopeType::kLlama3) read_llama3(parameters, rope);
  if (rope.type == RopeType::kYarn) read_yarn(parameters, max_position_embeddings, rope);
  return rope;
}

/// `rope_parameters` may be nested by layer type. Every layer must then say the same: one table serves all layers.
RopeConfig read_rope_parameters(const JsonView& parameters, const JsonView& config, int max_position_embeddings) {
  std::optional<RopeConfig> common;
  std::string common_name;
  for (const std::string& name : parameters.names()) {
    const JsonView nested = parameters.at(name);
    if (!nested.value().is_object()) continue;
    const RopeConfig rope = read_parameters(nested, config, max_position_embeddings);
    if (common && *common != rope) {
      nested.refuse(ErrorCode::kUnsupported, "differs from \"", common_name,
                    "\"; a rotary embedding that varies by layer type is not supported");
    }
    common = rope;
    common_name = name;
  }
  if (!common) return read_parameters(parameters, config, max_position_embeddings);
  for (const std::string& name : parameters.names()) {
    if (!parameters.at(name).value().is_object()) {
      parameters.at(name).refuse(ErrorCode::kUnsupported, "stands beside parameters nested by layer type");
    }
  }
  return *common;
}

/// The index in [0, head_dim / 2) at which a dimension turns `rotations` times within the original length (YaRN).
double yarn_correction_index(const RopeConfig& rope, double rotations, int head_dim) {
  return head_dim * std::log(rope.original_max_position_embeddings / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

/// YaRN ("NTK by parts"): dimensions that turn often keep their frequency, those that never complete a turn are
/// interpolated by `factor`, a linear ramp joins them.
void scale_yarn(const RopeConfig& rope, int head_dim, std::vector<double>& frequencies) {
  double low = yarn_correction_index(rope, rope.beta_fast, head_dim);
  double high = yarn_correction_index(rope, rope.beta_slow, head_dim);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;  // the ramp becomes a step
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double interpolated = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= interpolated / rope.factor + (1 - interpolated);
  }
}

/// Llama 3.1: by wavelength against the original length; short waves are kept, long ones divided by `factor`.
void scale_llama3(const RopeConfig& rope, std::vector<double>& frequencies) {
  const double length = rope.original_max_position_embeddings;
  for (double& frequency : frequencies) {
    const double turns = length * frequency / (2 * std::numbers::pi);  // within the original length
    const double kept =
        std::clamp((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0);
    frequency *= kept + (1 - kept) / rope.factor;
  }
}

}  // namespace

RopeConfig read_rope_config(const JsonView& config, int max_position_embeddings) {
  const auto older = config.find("rope_scaling");
  const auto newer = config.find("rope_parameters");
  if (const auto partial = config.find("partial_rotary_factor"); partial && partial->as_number() != 1.0) {
    partial->refuse(ErrorCode::kUnsupported, "only full rotation (1.0) is supported");
  }
  if (config.bool_or("rope_interleaved", false)) {
    config.at("rope_interleaved").refuse(ErrorCode::kUnsupported, "interleaved rotary pairs are not supported");
  }
  if (older && newer) {
    const RopeConfig first = read_parameters(*older, config, max_position_embeddings);
    const RopeConfig second = read_rope_parameters(*newer, config, max_position_embeddings);
    if (first != second) older->refuse(ErrorCode::kInvalidFile, "contradicts \"rope_parameters\"");
    return first;
  }
  if (newer) return read_rope_parameters(*newer, config, max_position_embeddings);
  if (older) return read_parameters(*older, config, max_position_embeddings);
  const Json empty = Json::object();
  return read_parameters(JsonView(empty, config.file()), config, max_position_embeddings);
}

std::vector<double> rope_inverse_frequencies(const RopeConfig& rope, int head_dim) {
  FS_CHECK(head_dim > 0 && head_dim % 2 == 0, "head_dim ", head_dim);
  std::vector<double> frequencies(static_cast<std::size_t>(head_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(rope.theta, -2.0 * static_cast<double>(i) / head_dim);
  }
  switch (rope.type) {
    case RopeType::kDefault:
      break;
    case RopeType::kLinear:
      for (double& frequency : frequencies) frequency /= rope.factor;
      break;
    case RopeType::kLlama3:
      scale_llama3(rope, frequencies);
      break;
    case RopeType::kYarn:
      scale_yarn(rope, head_dim, frequencies);
      break;
  }
  return frequencies;
}

}  // namespace fastspec
