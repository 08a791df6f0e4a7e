// Loading of DFlash checkpoints: the published spelling, what it leaves out, and what is refused by name.
#include "draft/dflash/dflash_model.h"

#include <gtest/gtest.h>

#include <map>

#include "backend/backend.h"
#include "support/checkpoint_files.h"
#include "support/expect_error.h"
#include "support/mutations.h"
#include "support/temporary_directory.h"

namespace fastspec::test {
namespace {

using Fields = std::map<std::string, std::string>;

constexpr int kHidden = 8, kInner = 12, kHeadDim = 4, kLayers = 2;

struct DraftTensors {
  std::string prefix;
  std::string dtype = "F32";
  int num_features = 2;
};

std::vector<TestTensor> draft_tensors(const DraftTensors& options = {}) {
  std::vector<TestTensor> tensors;
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    tensors.push_back(test_tensor(options.prefix + name, options.dtype, shape));
  };
  add("fc.weight", {kHidden, options.num_features * kHidden});
  add("hidden_norm.weight", {kHidden});
  add("norm.weight", {kHidden});
  for (int i = 0; i < kLayers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    add(layer + "input_layernorm.weight", {kHidden});
    add(layer + "post_attention_layernorm.weight", {kHidden});
    add(layer + "self_attn.q_proj.weight", {4 * kHeadDim, kHidden});
    add(layer + "self_attn.k_proj.weight", {2 * kHeadDim, kHidden});
    add(layer + "self_attn.v_proj.weight", {2 * kHeadDim, kHidden});
    add(layer + "self_attn.o_proj.weight", {kHidden, 4 * kHeadDim});
    add(layer + "self_attn.q_norm.weight", {kHeadDim});
    add(layer + "self_attn.k_norm.weight", {kHeadDim});
    add(layer + "mlp.gate_proj.weight", {kInner, kHidden});
    add(layer + "mlp.up_proj.weight", {kInner, kHidden});
    add(layer + "mlp.down_proj.weight", {kHidden, kInner});
  }
  return tensors;
}

std::string draft_config(const Fields& fields = {}) {
  Fields all{{"architectures", R"(["DFlashDraftModel"])"},
             {"model_type", R"("qwen3")"},
             {"num_attention_heads", "4"},
             {"num_key_value_heads", "2"},
             {"block_size", "5"},
             {"num_target_layers", "7"},
             {"dflash_config", R"({"mask_token_id": 15, "target_layer_ids": [1, 4]})"}};
  for (const auto& [name, text] : fields) all[name] = text;
  return tiny_config("LlamaForCausalLM", all);
}

class DFlashModelTest : public ::testing::Test {
 protected:
  DFlashModelTest() {
    target_directory_.write("config.json", tiny_config("LlamaForCausalLM"));
    target_directory_.write("model.safetensors", safetensors_file(tiny_tensors()));
    target_ = load_model_config(target_directory_.path());
    target_weights_ = load_weights(target_directory_.path(), target_, DType::kFloat32, *backend_.device);
    target_.num_layers = 7;
  }

  void write(const std::vector<TestTensor>& tensors, const Fields& fields = {}) {
    directory_.write("config.json", draft_config(fields));
    directory_.write("model.safetensors", safetensors_file(tensors));
  }
  DFlashModel load(DType dtype = DType::kFloat32) {
    return load_dflash(directory_.path(), target_, target_weights_, dtype, *backend_.device, {});
  }
  void expect_refused(ErrorCode code, std::initializer_list<std::string> parts) {
    expect_error(code, parts, [&] { load(); });
  }

  Backend backend_ = make_backend("cpu:reference", DType::kFloat32, 1);
  TemporaryDirectory target_directory_, directory_;
  ModelConfig target_;
  Weights target_weights_;
};

TEST_F(DFlashModelTest, PublishedNamesWithAndWithoutPrefix) {
  for (const std::string prefix : {"", "model."}) {
    write(draft_tensors({.prefix = prefix}));
    const DFlashModel model = load();
    EXPECT_EQ(model.config.block_size, 5);
    EXPECT_EQ(model.config.mask_token, 15);
    EXPECT_EQ(model.config.target_layers, (std::vector<int>{1, 4}));
    EXPECT_EQ(model.config.decoder.num_layers, kLayers);
    EXPECT_EQ(model.config.decoder.num_heads, 4);
    EXPECT_EQ(model.config.decoder.window, (std::vector<int>{0, 0}));
    EXPECT_TRUE(model.config.decoder.qk_norm);
    EXPECT_EQ(model.fc.in_features, 2 * kHidden);
    EXPECT_EQ(static_cast<const float*>(model.fc.data)[9], test_value(prefix + "fc.weight", 9));
    EXPECT_EQ(model.hidden_norm.data[3], test_value(prefix + "hidden_norm.weight", 3));
    EXPECT_EQ(model.weights.final_norm.data[3], test_value(prefix + "norm.weight", 3));
    const LayerWeights& layer = model.weights.layers[1];
    EXPECT_EQ(static_cast<const float*>(layer.qkv.data)[4 * kHeadDim * kHidden + 2],
              test_value(prefix + "layers.1.self_attn.k_proj.weight", 2));
    EXPECT_EQ(layer.k_norm.data[1], test_value(prefix + "layers.1.self_attn.k_norm.weight", 1));
    EXPECT_EQ(model.weights.embedding.data, target_weights_.embedding.data);
    EXPECT_EQ(model.weights.lm_head.data, target_weights_.lm_head.data);
  }
}

TEST_F(DFlashModelTest, MatricesTakeTheEnginesType) {
  write(draft_tensors({.dtype = "BF16"}));
  EXPECT_EQ(static_cast<const float*>(load().fc.data)[7], test_value("fc.weight", 7));
  EXPECT_EQ(load(DType::kBFloat16).fc.dtype, DType::kBFloat16);
}

TEST_F(DFlashModelTest, TheInnerBlockSizeWinsAndSlidingLayersAreNamed) {
  write(draft_tensors(), {{"dflash_config", R"({"mask_token_id": 0, "target_layer_ids": [0, 6], "block_size": 9})"},
                          {"layer_types", R"(["sliding_attention", "full_attention"])"},
                          {"sliding_window", "33"},
                          {"is_causal", "false"}});
  const DFlashModel model = load();
  EXPECT_EQ(model.config.block_size, 9);
  EXPECT_EQ(model.config.decoder.window, (std::vector<int>{33, 0}));
}

TEST_F(DFlashModelTest, LayersThatNobodyNamesAreTheUsualOnes) {
  EXPECT_EQ(default_target_layers(36, 5), (std::vector<int>{1, 9, 17, 25, 33}));
  EXPECT_EQ(default_target_layers(30, 2), (std::vector<int>{1, 27}));
  EXPECT_EQ(default_target_layers(30, 1), (std::vector<int>{15}));
  EXPECT_EQ(default_target_layers(29, 3), (std::vector<int>{1, 14, 26}));  // 13.5 goes to the even number
  write(draft_tensors(), {{"dflash_config", R"({"mask_token_id": 15})"}});
  EXPECT_EQ(load().config.target_layers, (std::vector<int>{1, 4}));
  target_.num_layers = 3;
  write(draft_tensors(), {{"dflash_config", R"({"mask_token_id": 15})"}, {"num_target_layers", "3"}});
  expect_refused(ErrorCode::kInvalidFile, {"config.json", "dflash_config", "3 layers", "target_layer_ids"});
}

TEST_F(DFlashModelTest, ValuesThatAreNoNumbersAreRefused) {
  for (const std::string dtype : {"F32", "BF16", "F16"}) {
    for (const std::string& high : {std::string("\xFF"), std::string("\x7F")}) {  // NaN; all bits but the sign's
      std::vector<TestTensor> tensors = draft_tensors({.dtype = dtype});
      for (TestTensor& tensor : tensors) {
        if (tensor.name != "layers.1.mlp.up_proj.weight") continue;
        const std::size_t size = dtype == "F32" ? 4 : 2;
        tensor.data.replace(tensor.data.size() - size, size, std::string(size - 1, '\xFF') + high);
      }
      write(tensors);
      expect_refused(ErrorCode::kInvalidFile, {"model.safetensors", "layers.1.mlp.up_proj.weight", "finite"});
    }
  }
}

TEST_F(DFlashModelTest, MissingMisshapenAndUnexpectedTensorsAreNamed) {
  const std::vector<TestTensor> good = draft_tensors({.prefix = "model."});
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::vector<TestTensor> tensors = good;
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
    write(tensors);
    // Without the tensor that tells the prefix nothing has one.
    expect_refused(ErrorCode::kNotFound, {i == 0 ? "\"fc.weight\"" : good[i].name, "missing"});
    tensors = good;
    std::vector<std::int64_t> shape = good[i].shape;
    shape[0] += 1;
    tensors[i] = test_tensor(good[i].name, "F32", shape);
    write(tensors);
    expect_refused(ErrorCode::kInvalidFile, {good[i].name, "shape"});
  }
  std::vector<TestTensor> tensors = good;
  tensors.push_back(test_tensor("model.embed_tokens.weight", "F32", {16, 8}));
  write(tensors);
  expect_refused(ErrorCode::kUnsupported, {"model.embed_tokens.weight", "unexpected"});
  write(draft_tensors({.num_features = 3}));
  expect_refused(ErrorCode::kInvalidFile, {"fc.weight", "[8, 24]", "[8, 16]"});
}

TEST_F(DFlashModelTest, DialectsAreRefusedByName) {
  const auto refuses = [&](const Fields& fields, std::initializer_list<std::string> parts) {
    write(draft_tensors(), fields);
    expect_refused(ErrorCode::kUnsupported, parts);
  };
  refuses({{"speculators_model_type", R"("dflash")"}}, {"config.json", "speculators_model_type", "Speculators"});
  refuses({{"aux_hidden_state_layer_ids", "[2, 5]"}}, {"aux_hidden_state_layer_ids", "Speculators"});
  refuses({{"architectures", R"(["DFlashSpeculator"])"}}, {"architectures", "Speculators"});
  refuses({{"architectures", R"(["Qwen3DSparkModel"])"}}, {"architectures", "DSpark"});
  refuses({{"markov_rank", "8"}}, {"markov_rank", "DSpark"});
  refuses({{"architectures", R"(["DFlash2DraftModel"])"}}, {"architectures", "DFlash2"});
  refuses({{"architectures", R"(["DominoDraftModel"])"}}, {"architectures", "Domino"});
  refuses({{"architectures", R"(["DFlareDraftModel"])"}}, {"architectures", "DFlare"});
  refuses({{"architectures", R"(["Qwen3DFlyModel"])"}}, {"architectures", "DFly"});
  refuses({{"architectures", R"(["LlamaForCausalLM"])"}}, {"architectures", "LlamaForCausalLM", "no block drafter"});
  refuses({{"dflash_config", R"({"mask_token_id": 15, "enable_confidence_head": true})"}},
          {"dflash_config.enable_confidence_head", "DSpark"});
  for (const auto& [tensor, dialect] : Fields{{"d2t", "Speculators"},
                                              {"markov_head.w1.weight", "DSpark"},
                                              {"layers.0.short_conv.weight", "DFlash2"},
                                              {"layer_fusion_weights", "DFly"}}) {
    std::vector<TestTensor> tensors = draft_tensors();
    tensors.push_back(test_tensor(tensor, "F32", {2, 2}));
    write(tensors);
    expect_refused(ErrorCode::kUnsupported, {tensor, dialect});
  }
}

TEST_F(DFlashModelTest, AnotherTargetAndUnknownFieldsAreRefused) {
  const auto refuses = [&](const Fields& fields, ErrorCode code, std::initializer_list<std::string> parts) {
    write(draft_tensors(), fields);
    expect_refused(code, parts);
  };
  const auto own = [](const std::string& text) { return Fields{{"dflash_config", "{" + text + "}"}}; };
  refuses({{"hidden_size", "16"}}, ErrorCode::kInvalidArgument, {"hidden_size", "16", "8"});
  refuses({{"vocab_size", "17"}}, ErrorCode::kInvalidArgument, {"vocab_size", "17", "16"});
  refuses({{"num_target_layers", "8"}}, ErrorCode::kInvalidArgument, {"num_target_layers", "8", "7"});
  refuses({{"dflash_config", ""}}, ErrorCode::kInvalidFile, {"dflash_config"});
  refuses({{"block_size", ""}}, ErrorCode::kInvalidFile, {"block_size"});
  refuses({{"block_size", "1"}}, ErrorCode::kInvalidFile, {"block_size", "1"});
  refuses({{"block_size", "1000"}}, ErrorCode::kInvalidFile, {"block_size", "1000"});
  refuses({{"is_causal", "true"}}, ErrorCode::kUnsupported, {"is_causal"});
  refuses({{"layer_types", R"(["sliding_attention", "full_attention"])"}}, ErrorCode::kInvalidFile, {"layer_types"});
  refuses(own(R"("target_layer_ids": [1, 4])"), ErrorCode::kInvalidFile, {"mask_token_id"});
  refuses(own(R"("mask_token_id": 16, "target_layer_ids": [1, 4])"), ErrorCode::kInvalidFile,
          {"dflash_config.mask_token_id", "16"});
  refuses(own(R"("mask_token_id": 15, "target_layer_ids": [1, 7])"), ErrorCode::kInvalidFile,
          {"target_layer_ids", "7"});
  refuses(own(R"("mask_token_id": 15, "target_layer_ids": [4, 1])"), ErrorCode::kInvalidFile, {"target_layer_ids"});
  refuses(own(R"("mask_token_id": 15, "target_layer_ids": [])"), ErrorCode::kInvalidFile, {"target_layer_ids"});
  refuses(own(R"("mask_token_id": 15, "target_layer_ids": [1, 4], "fc_layernorm": true)"), ErrorCode::kUnsupported,
          {"dflash_config.fc_layernorm", "unknown field"});
}

TEST_F(DFlashModelTest, MutatedFilesLoadOrAreRefused) {
  const std::string config = draft_config(), tensors = safetensors_file(draft_tensors());
  Random random(5);
  int refused = 0;
  for (int i = 0; i < 600; ++i) {
    directory_.write("config.json", config);
    directory_.write("model.safetensors", tensors);
    if (i % 3 == 0) directory_.write("config.json", mutate_bytes(config, random));
    if (i % 3 == 1) directory_.write("config.json", mutate_json(nlohmann::json::parse(config), random));
    if (i % 3 == 2) directory_.write("model.safetensors", mutate_bytes(tensors, random));
    try {
      const DFlashModel model = load();
      EXPECT_GE(model.config.block_size, 2);
      EXPECT_FALSE(model.config.target_layers.empty());
    } catch (const Error& error) {
      ++refused;
      EXPECT_NE(std::string(error.what()).find(directory_.path().string()), std::string::npos) << error.what();
      EXPECT_NE(error.code(), ErrorCode::kInternal) << error.what();
    }
  }
  EXPECT_GT(refused, 250);
}

}  // namespace
}  // namespace fastspec::test
