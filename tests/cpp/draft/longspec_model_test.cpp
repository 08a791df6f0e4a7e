// Loading of LongSpec checkpoints: every spelling of the names, both formats, and what is refused by name.
#include "draft/longspec/longspec_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "backend/backend.h"
#include "support/checkpoint_files.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace fastspec::test {
namespace {

using Fields = std::map<std::string, std::string>;

constexpr int kVocab = 16, kHidden = 8, kQuery = 8, kKeyValue = 4, kInner = 12;

struct BlockTensors {
  std::string prefix;
  std::string dtype = "F32";
  bool cross_key_value = true;
  bool final_norm = false;
};

std::vector<TestTensor> block_tensors(const BlockTensors& options) {
  std::vector<TestTensor> tensors;
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    tensors.push_back(test_tensor(options.prefix + name, options.dtype, shape));
  };
  for (const char* attention : {"self_attn.", "cross_attn."}) {
    const std::string name = attention;
    add(name + "q_proj.weight", {kQuery, kHidden});
    add(name + "q_proj.bias", {kQuery});
    if (name == "self_attn." || options.cross_key_value) {
      for (const char* part : {"k_proj", "v_proj"}) {
        add(name + part + ".weight", {kKeyValue, kHidden});
        add(name + part + ".bias", {kKeyValue});
      }
    }
    add(name + "o_proj.weight", {kHidden, kQuery});
  }
  add("mlp.gate_proj.weight", {kInner, kHidden});
  add("mlp.up_proj.weight", {kInner, kHidden});
  add("mlp.down_proj.weight", {kHidden, kInner});
  for (const char* norm : {"input_layernorm", "post_self_attention_layernorm", "post_cross_attention_layernorm"}) {
    add(std::string(norm) + ".weight", {kHidden});
  }
  if (options.final_norm) add("norm.weight", {kHidden});
  return tensors;
}

TestTensor integers(const std::string& name, const std::vector<std::int32_t>& values) {
  TestTensor tensor{name, "I32", {static_cast<std::int64_t>(values.size())}, std::string(4 * values.size(), '\0')};
  if (!values.empty()) std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  return tensor;
}

class LongSpecModelTest : public ::testing::Test {
 protected:
  LongSpecModelTest() {
    target_directory_.write("config.json", tiny_config("LlamaForCausalLM"));
    target_directory_.write("model.safetensors", safetensors_file(tiny_tensors()));
    target_ = load_model_config(target_directory_.path());
    target_weights_ = load_weights(target_directory_.path(), target_, DType::kFloat32, *backend_.device);
  }

  void write(const std::vector<TestTensor>& tensors, const Fields& fields = {}) {
    directory_.write("config.json", tiny_config("LlamaForCausalLM", fields));
    directory_.write("model.safetensors", safetensors_file(tensors));
  }
  LongSpecModel load(DType dtype = DType::kFloat32) {
    return load_longspec(directory_.path(), target_, target_weights_, dtype, *backend_.device, {});
  }
  void expect_refused(ErrorCode code, std::initializer_list<std::string> parts) {
    expect_error(code, parts, [&] { load(); });
  }

  Backend backend_ = make_backend("cpu:reference", DType::kFloat32, 1);
  TemporaryDirectory target_directory_, directory_;
  ModelConfig target_;
  Weights target_weights_;
};

TEST_F(LongSpecModelTest, PublishedNamesWithAndWithoutPrefix) {
  for (const std::string prefix : {"", "draft_model.", "glide."}) {
    write(block_tensors({.prefix = prefix}));
    const LongSpecModel model = load();
    EXPECT_EQ(model.config.window, 512);
    EXPECT_EQ(model.config.intermediate_size, kInner);
    EXPECT_EQ(model.weights.final_norm.data, nullptr);
    EXPECT_TRUE(model.weights.vocabulary.empty());
    const auto* qkv = static_cast<const float*>(model.weights.qkv.data);
    EXPECT_EQ(model.weights.qkv.out_features, kQuery + 2 * kKeyValue);
    EXPECT_EQ(qkv[kQuery * kHidden + 3], test_value(prefix + "self_attn.k_proj.weight", 3));
    EXPECT_EQ(model.weights.qkv_bias.data[kQuery + kKeyValue + 1], test_value(prefix + "self_attn.v_proj.bias", 1));
    EXPECT_EQ(static_cast<const float*>(model.weights.cross_q.data)[5],
              test_value(prefix + "cross_attn.q_proj.weight", 5));
    EXPECT_EQ(model.weights.cross_q_bias.data[2], test_value(prefix + "cross_attn.q_proj.bias", 2));
    EXPECT_EQ(model.weights.cross_norm.data[2], test_value(prefix + "post_self_attention_layernorm.weight", 2));
    EXPECT_EQ(static_cast<const float*>(model.weights.gate_up.data)[kInner * kHidden],
              test_value(prefix + "mlp.up_proj.weight", 0));
  }
}

TEST_F(LongSpecModelTest, MatricesTakeTheEnginesType) {
  write(block_tensors({.dtype = "F32"}));
  EXPECT_EQ(load(DType::kBFloat16).weights.down.dtype, DType::kBFloat16);
  write(block_tensors({.dtype = "BF16"}));
  EXPECT_EQ(static_cast<const float*>(load().weights.down.data)[7], test_value("mlp.down_proj.weight", 7));
}

TEST_F(LongSpecModelTest, OurFormatWithWindowNormAndVocabulary) {
  std::vector<TestTensor> tensors = block_tensors({.cross_key_value = false, .final_norm = true});
  tensors.push_back(integers("draft_vocabulary", {7, 2, 3, 15}));
  write(tensors, {{"longspec", R"({"version": 1, "window": 33, "final_norm": true})"}});
  const LongSpecModel model = load();
  EXPECT_EQ(model.config.window, 33);
  EXPECT_EQ(model.weights.final_norm.data[1], test_value("norm.weight", 1));
  EXPECT_EQ(model.weights.vocabulary, (std::vector<TokenId>{2, 3, 7, 15}));
  EXPECT_EQ(model.weights.pruned_lm_head.out_features, 4);
  const auto* head = static_cast<const float*>(model.weights.pruned_lm_head.data);
  for (std::size_t row = 0; row < 4; ++row) {
    for (std::size_t i = 0; i < kHidden; ++i) {
      const std::size_t token = static_cast<std::size_t>(model.weights.vocabulary[row]);
      EXPECT_EQ(head[row * kHidden + i], test_value("lm_head.weight", token * kHidden + i));
    }
  }
  EXPECT_EQ(model.weights.token_ids.as<const TokenId>()[2], 7);
}

TEST_F(LongSpecModelTest, ValuesThatAreNoNumbersAreRefused) {
  for (const std::string dtype : {"F32", "BF16", "F16"}) {
    for (const std::string& high : {std::string("\xFF"), std::string("\x7F")}) {  // NaN; all bits but the sign's
      std::vector<TestTensor> tensors = block_tensors({.dtype = dtype});
      for (TestTensor& tensor : tensors) {
        if (tensor.name != "cross_attn.q_proj.bias") continue;
        const std::size_t size = dtype == "F32" ? 4 : 2;
        tensor.data.replace(tensor.data.size() - size, size, std::string(size - 1, '\xFF') + high);
      }
      write(tensors);
      expect_refused(ErrorCode::kInvalidFile, {"model.safetensors", "cross_attn.q_proj.bias", "finite"});
    }
  }
}

TEST_F(LongSpecModelTest, MissingMisshapenAndUnexpectedTensorsAreNamed) {
  const std::vector<TestTensor> good = block_tensors({.prefix = "glide."});
  for (std::size_t i = 0; i < good.size(); ++i) {
    if (good[i].name.find("cross_attn.k_proj") != std::string::npos) continue;
    if (good[i].name.find("cross_attn.v_proj") != std::string::npos) continue;
    std::vector<TestTensor> tensors = good;
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
    write(tensors);
    // Without the tensor that tells the prefix nothing has one.
    const bool tells = good[i].name == "glide.input_layernorm.weight";
    expect_refused(ErrorCode::kNotFound, {tells ? "input_layernorm.weight" : good[i].name, "missing"});
    tensors = good;
    std::vector<std::int64_t> shape = good[i].shape;
    shape[0] += 1;
    tensors[i] = test_tensor(good[i].name, "F32", shape);
    write(tensors);
    expect_refused(ErrorCode::kInvalidFile, {good[i].name, "shape"});
  }
  std::vector<TestTensor> tensors = good;
  tensors.push_back(test_tensor("glide.fc.weight", "F32", {2, 2}));
  write(tensors);
  expect_refused(ErrorCode::kUnsupported, {"glide.fc.weight", "unexpected"});
  write(block_tensors({.final_norm = true}));  // not announced
  expect_refused(ErrorCode::kUnsupported, {"norm.weight", "unexpected"});
}

TEST_F(LongSpecModelTest, AnotherTargetAndUnknownFieldsAreRefused) {
  const std::vector<TestTensor> tensors = block_tensors({});
  const auto refuses = [&](const Fields& fields, ErrorCode code, std::initializer_list<std::string> parts) {
    write(tensors, fields);
    expect_refused(code, parts);
  };
  refuses({{"hidden_size", "16"}}, ErrorCode::kInvalidArgument, {"hidden_size", "16", "8"});
  refuses({{"num_key_value_heads", "2"}}, ErrorCode::kInvalidArgument, {"num_key_value_heads", "2", "1"});
  refuses({{"num_attention_heads", "4"}}, ErrorCode::kInvalidArgument, {"num_attention_heads"});
  refuses({{"head_dim", "8"}}, ErrorCode::kInvalidArgument, {"head_dim"});
  refuses({{"intermediate_size", ""}}, ErrorCode::kInvalidFile, {"intermediate_size"});
  refuses({{"rms_norm_eps", "0"}}, ErrorCode::kInvalidFile, {"rms_norm_eps"});
  refuses({{"longspec", R"({"version": 2})"}}, ErrorCode::kUnsupported, {"longspec.version", "2"});
  refuses({{"longspec", R"({"window": 5})"}}, ErrorCode::kInvalidFile, {"version"});
  refuses({{"longspec", R"({"version": 1, "window": 0})"}}, ErrorCode::kInvalidFile, {"longspec.window", "0"});
  refuses({{"longspec", R"({"version": 1, "sinks": 4})"}}, ErrorCode::kUnsupported, {"longspec.sinks"});
  refuses({{"longspec", R"({"version": 1, "final_norm": true})"}}, ErrorCode::kNotFound, {"norm.weight"});
}

TEST_F(LongSpecModelTest, VocabulariesThatCannotBeAreRefused) {
  const auto refuses = [&](TestTensor vocabulary, std::initializer_list<std::string> parts) {
    std::vector<TestTensor> tensors = block_tensors({});
    tensors.push_back(std::move(vocabulary));
    write(tensors);
    expect_refused(ErrorCode::kInvalidFile, parts);
  };
  refuses(integers("draft_vocabulary", {}), {"draft_vocabulary", "no token"});
  refuses(integers("draft_vocabulary", {1, kVocab}), {"draft_vocabulary", "16"});
  refuses(integers("draft_vocabulary", {-1, 4}), {"draft_vocabulary", "-1"});
  refuses(integers("draft_vocabulary", {4, 1, 4}), {"draft_vocabulary", "4", "twice"});
  refuses(test_tensor("draft_vocabulary", "F32", {4}), {"draft_vocabulary", "F32", "I32"});
}

}  // namespace
}  // namespace fastspec::test
