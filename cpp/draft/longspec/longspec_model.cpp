// See longspec_model.h.
#include "draft/longspec/longspec_model.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "io/json.h"
#include "model/random_weights.h"

namespace fastspec {

namespace {

constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxWindow = 1 << 20;

struct Header {
  LongSpecConfig config;
  bool final_norm = false;
};

/// A size that must be the target's, where the drafter's config.json names it.
void expect_same(const JsonView& config, const char* name, int target_value) {
  const auto given = config.find(name);
  if (given && given->as_integer() != target_value) {
    given->refuse(ErrorCode::kInvalidArgument, "value ", given->as_integer(), ", the target has ", target_value,
                  ": this drafter was trained for another model");
  }
}

Header read_header(const std::filesystem::path& directory, const ModelConfig& target) {
  const std::filesystem::path path = directory / "config.json";
  const Json document = parse_json_file(path, {.max_bytes = std::size_t{16} << 20, .max_depth = 32});
  const JsonView config(document, path.string());
  expect_same(config, "hidden_size", target.hidden_size);
  expect_same(config, "num_attention_heads", target.num_heads);
  expect_same(config, "num_key_value_heads", target.num_kv_heads);
  expect_same(config, "head_dim", target.head_dim);
  Header header;
  header.config.intermediate_size = static_cast<int>(config.at("intermediate_size").as_integer(1, kMaxWidth));
  const double eps = config.number_or("rms_norm_eps", target.rms_norm_eps);
  if (!(eps > 0 && eps <= 1)) {
    config.at("rms_norm_eps").refuse(ErrorCode::kInvalidFile, "value ", eps, " lies outside (0, 1]");
  }
  header.config.rms_norm_eps = static_cast<float>(eps);
  const auto own = config.find("longspec");
  if (!own) return header;  // as its authors publish it
  for (const std::string& name : own->names()) {
    if (name != "version" && name != "window" && name != "final_norm") {
      own->at(name).refuse(ErrorCode::kUnsupported, "unknown field");
    }
  }
  if (own->at("version").as_integer() != 1) {
    own->at("version").refuse(ErrorCode::kUnsupported, "version ", own->at("version").as_integer(), ", expected 1");
  }
  header.config.window = static_cast<int>(own->integer_or("window", 512, 1, kMaxWindow));
  header.final_norm = own->bool_or("final_norm", false);
  return header;
}

std::string find_prefix(const Checkpoint& checkpoint) {
  for (const char* prefix : {"", "draft_model.", "glide."}) {
    if (checkpoint.has(std::string(prefix) + "input_layernorm.weight")) return prefix;
  }
  return "";
}

void add_block(const std::string& prefix, const Header& header, const ModelConfig& target, LoadPlan& plan,
               LongSpecWeights& weights) {
  using Part = LoadPlan::Part;
  const int hidden = target.hidden_size, q = target.q_size(), kv = target.kv_size();
  const int inner = header.config.intermediate_size;
  const std::string self = prefix + "self_attn.", cross = prefix + "cross_attn.", mlp = prefix + "mlp.";
  const std::array<Part, 3> qkv{{{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}}};
  const std::array<Part, 1> query{{{"q_proj", q}}}, output{{{"o_proj", hidden}}}, down{{{"down_proj", hidden}}};
  const std::array<Part, 2> gate_up{{{"gate_proj", inner}, {"up_proj", inner}}};
  plan.add_vector(weights.self_norm, {{prefix + "input_layernorm.weight", hidden}});
  plan.add_linear(self, qkv, hidden, weights.qkv, &weights.qkv_bias);
  plan.add_linear(self, output, q, weights.self_o, nullptr);
  plan.add_vector(weights.cross_norm, {{prefix + "post_self_attention_layernorm.weight", hidden}});
  plan.add_linear(cross, query, hidden, weights.cross_q, &weights.cross_q_bias);
  plan.add_linear(cross, output, q, weights.cross_o, nullptr);
  plan.add_vector(weights.mlp_norm, {{prefix + "post_cross_attention_layernorm.weight", hidden}});
  plan.add_linear(mlp, gate_up, hidden, weights.gate_up, nullptr);
  plan.add_linear(mlp, down, inner, weights.down, nullptr);
  if (header.final_norm) plan.add_vector(weights.final_norm, {{prefix + "norm.weight", hidden}});
}

void skip_unused(const std::string& prefix, Checkpoint& checkpoint) {
  int skipped = 0;
  for (const char* name : {"k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"}) {
    skipped += checkpoint.skip(prefix + "cross_attn." + name) ? 1 : 0;
  }
  if (skipped > 0) {
    log(LogLevel::kInfo, checkpoint.directory(), ": ", skipped, " tensors of ", prefix,
        "cross_attn.k_proj and v_proj are not read: cross-attention takes the target's own keys and values");
  }
}

/// Ascending, so that ties between tokens go to the lowest id as everywhere.
std::vector<TokenId> read_vocabulary(const std::string& name, int vocab_size, Checkpoint& checkpoint) {
  auto ids = checkpoint.find_integers(name);
  if (!ids) return {};
  const auto refuse = [&](const auto&... parts) {
    fail(ErrorCode::kInvalidFile, checkpoint.directory(), ": tensor \"", name, "\" ", parts...);
  };
  if (ids->empty()) refuse("names no token");
  std::sort(ids->begin(), ids->end());
  if (ids->front() < 0 || ids->back() >= vocab_size) {
    refuse("names tokens ", ids->front(), " to ", ids->back(), ", the target's vocabulary has ", vocab_size);
  }
  if (const auto twice = std::adjacent_find(ids->begin(), ids->end()); twice != ids->end()) {
    refuse("names token ", *twice, " twice");
  }
  return *ids;
}

}  // namespace

std::size_t LongSpecWeights::bytes() const {
  std::size_t total = token_ids.bytes();
  for (const Buffer& buffer : buffers) total += buffer.bytes();
  return total;
}

void prune_vocabulary(std::vector<TokenId> ids, const Weight& lm_head, Device& device, LongSpecWeights& weights) {
  // By way of the host: once, at load.
  const std::size_t row_bytes = static_cast<std::size_t>(lm_head.in_features) * size_of(lm_head.dtype);
  std::vector<std::byte> rows(ids.size() * row_bytes);
  for (std::size_t first = 0, end = 1; first < ids.size(); first = end++) {
    while (end < ids.size() && ids[end] == ids[end - 1] + 1) ++end;  // neighbours in one copy
    const auto* source = static_cast<const std::byte*>(lm_head.data) + static_cast<std::size_t>(ids[first]) * row_bytes;
    device.copy_to_host(rows.data() + first * row_bytes, source, (end - first) * row_bytes);
  }
  Buffer buffer = device.allocate(rows.size(), "LM head of the draft vocabulary");
  device.copy_to_device(buffer.data(), rows.data(), rows.size());
  weights.pruned_lm_head = {buffer.data(), lm_head.dtype, static_cast<int>(ids.size()), lm_head.in_features};
  weights.buffers.push_back(std::move(buffer));
  weights.token_ids = device.allocate(ids.size() * sizeof(TokenId), "draft vocabulary");
  device.copy_to_device(weights.token_ids.data(), ids.data(), ids.size() * sizeof(TokenId));
  weights.vocabulary = std::move(ids);
}

LongSpecModel random_longspec(int vocabulary, const ModelConfig& target, const Weights& target_weights, DType dtype,
                              Device& device) {
  if (vocabulary > target.vocab_size) {
    fail(ErrorCode::kInvalidArgument, "a draft vocabulary of ", vocabulary, " tokens, the target has ",
         target.vocab_size);
  }
  LongSpecModel model;
  model.config = {.intermediate_size = target.intermediate_size, .rms_norm_eps = target.rms_norm_eps};
  const int hidden = target.hidden_size, q = target.q_size(), qkv = q + 2 * target.kv_size();
  RandomWeights make(device, dtype);
  LongSpecWeights& weights = model.weights;
  weights.self_norm = make.vector(hidden);
  weights.qkv = make.matrix(qkv, hidden);
  weights.self_o = make.matrix(hidden, q);
  weights.cross_norm = make.vector(hidden);
  weights.cross_q = make.matrix(q, hidden);
  weights.cross_o = make.matrix(hidden, q);
  weights.qkv_bias = make.vector(qkv);  // with any target, see add_block()
  weights.cross_q_bias = make.vector(q);
  weights.mlp_norm = make.vector(hidden);
  weights.gate_up = make.matrix(2 * target.intermediate_size, hidden);
  weights.down = make.matrix(hidden, target.intermediate_size);
  weights.buffers = make.take_buffers();
  if (vocabulary > 0) {
    std::vector<TokenId> ids(static_cast<std::size_t>(vocabulary));
    std::iota(ids.begin(), ids.end(), 0);
    prune_vocabulary(std::move(ids), target_weights.lm_head, device, weights);
  }
  return model;
}

LongSpecModel load_longspec(const std::filesystem::path& directory, const ModelConfig& target,
                            const Weights& target_weights, DType dtype, Device& device, const LoadProgress& progress) {
  const Header header = read_header(directory, target);
  LongSpecModel model;
  model.config = header.config;
  Checkpoint checkpoint(directory);
  const std::string prefix = find_prefix(checkpoint);
  LoadPlan plan(checkpoint, LoadPlan::Values::kChecked);
  add_block(prefix, header, target, plan, model.weights);
  skip_unused(prefix, checkpoint);
  std::vector<TokenId> vocabulary = read_vocabulary(prefix + "draft_vocabulary", target.vocab_size, checkpoint);
  checkpoint.refuse_unexpected();

  plan.load(dtype, device, progress, model.weights.buffers);
  if (!vocabulary.empty()) prune_vocabulary(std::move(vocabulary), target_weights.lm_head, device, model.weights);
  return model;
}

}  // namespace fastspec
