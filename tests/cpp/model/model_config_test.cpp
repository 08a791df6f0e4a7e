// config.json of each family: what is read, what absence means, and what is refused by name.
#include "model/model_config.h"

#include <gtest/gtest.h>

#include "support/checkpoint_files.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace fastspec::test {
namespace {

using Fields = std::map<std::string, std::string>;

class ModelConfigTest : public testing::Test {
 protected:
  ModelConfig read(const std::string& architecture, const Fields& fields = {}) {
    directory_.write("config.json", tiny_config(architecture, fields));
    return load_model_config(directory_.path());
  }
  void refuses(ErrorCode code, const std::string& architecture, const Fields& fields,
               std::initializer_list<std::string> parts) {
    const std::string message = expect_error(code, parts, [&] { read(architecture, fields); });
    EXPECT_NE(message.find((directory_.path() / "config.json").string()), std::string::npos) << message;
  }
  TemporaryDirectory directory_;
};

TEST_F(ModelConfigTest, ReadsLlama) {
  const ModelConfig model = read("LlamaForCausalLM", {{"torch_dtype", "\"bfloat16\""}});
  EXPECT_EQ(model.architecture, "LlamaForCausalLM");
  EXPECT_EQ(model.model_type, "llama");
  EXPECT_EQ(model.vocab_size, 16);
  EXPECT_EQ(model.hidden_size, 8);
  EXPECT_EQ(model.intermediate_size, 12);
  EXPECT_EQ(model.num_layers, 2);
  EXPECT_EQ(model.num_heads, 2);
  EXPECT_EQ(model.num_kv_heads, 1);
  EXPECT_EQ(model.head_dim, 4);
  EXPECT_EQ(model.rms_norm_eps, 1e-5f);
  EXPECT_EQ(model.max_position_embeddings, 64);
  EXPECT_FALSE(model.tie_word_embeddings || model.qkv_bias || model.o_bias || model.mlp_bias || model.qk_norm);
  EXPECT_EQ(model.window, (std::vector<int>{0, 0}));
  EXPECT_EQ(model.checkpoint_dtype, DType::kBFloat16);
  EXPECT_EQ(model.eos_token_ids, std::vector<TokenId>{2});
  EXPECT_EQ(model.group_size(), 2);
  EXPECT_EQ(model.q_size(), 8);
  EXPECT_EQ(model.kv_size(), 4);
}

TEST_F(ModelConfigTest, LlamaFillsInWhatOldWritersLeftOut) {
  const ModelConfig model = read("LlamaForCausalLM", {{"num_key_value_heads", ""},
                                                      {"head_dim", ""},
                                                      {"max_position_embeddings", ""},
                                                      {"rms_norm_eps", ""},
                                                      {"hidden_act", ""},
                                                      {"eos_token_id", ""},
                                                      {"torch_dtype", ""}});
  EXPECT_EQ(model.num_kv_heads, 2);
  EXPECT_EQ(model.head_dim, 4);
  EXPECT_EQ(model.max_position_embeddings, 2048);
  EXPECT_EQ(model.rms_norm_eps, 1e-6f);
  EXPECT_EQ(model.checkpoint_dtype, DType::kFloat32);
  EXPECT_TRUE(model.eos_token_ids.empty());
}

TEST_F(ModelConfigTest, NullMeansAbsent) {
  const ModelConfig model = read("LlamaForCausalLM", {{"num_key_value_heads", "null"},
                                                      {"head_dim", "null"},
                                                      {"quantization_config", "null"},
                                                      {"sliding_window", "null"},
                                                      {"layer_types", "null"},
                                                      {"dtype", "null"},
                                                      {"architectures", "null"},
                                                      {"eos_token_id", "null"}});
  EXPECT_EQ(model.num_kv_heads, 2);
  EXPECT_EQ(model.head_dim, 4);
  EXPECT_EQ(model.architecture, "LlamaForCausalLM");  // by model_type
}

TEST_F(ModelConfigTest, ReadsBiases) {
  const ModelConfig model = read("LlamaForCausalLM", {{"attention_bias", "true"}, {"mlp_bias", "true"}});
  EXPECT_TRUE(model.qkv_bias && model.o_bias && model.mlp_bias);
  const ModelConfig qwen2 = read("Qwen2ForCausalLM", {{"attention_bias", "false"}});
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.o_bias || qwen2.mlp_bias || qwen2.qk_norm);
  const ModelConfig qwen3 = read("Qwen3ForCausalLM", {{"attention_bias", "true"}});
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.o_bias && qwen3.qk_norm);
  EXPECT_FALSE(read("Qwen3ForCausalLM").qkv_bias);
  EXPECT_FALSE(read("MistralForCausalLM").qkv_bias);
}

TEST_F(ModelConfigTest, ReadsHeadDim) {
  EXPECT_EQ(read("Qwen3ForCausalLM", {{"head_dim", ""}}).head_dim, 128);
  EXPECT_EQ(read("MistralForCausalLM", {{"head_dim", "6"}}).q_size(), 12);
  refuses(ErrorCode::kInvalidFile, "LlamaForCausalLM",
          {{"head_dim", ""}, {"num_attention_heads", "3"}, {"num_key_value_heads", "3"}},
          {"num_attention_heads", "3 does not divide hidden_size 8"});
  EXPECT_EQ(read("LlamaForCausalLM", {{"num_attention_heads", "3"}}).q_size(), 12);  // with a head_dim it need not
  refuses(ErrorCode::kUnsupported, "LlamaForCausalLM", {{"head_dim", "5"}}, {"head_dim 5"});
  refuses(ErrorCode::kInvalidFile, "LlamaForCausalLM", {{"head_dim", "514"}}, {"\"head_dim\"", "514"});
  refuses(ErrorCode::kUnsupported, "LlamaForCausalLM",
          {{"head_dim", ""}, {"hidden_size", "2048"}, {"num_key_value_heads", "2"}}, {"head_dim 1024"});
}

TEST_F(ModelConfigTest, ReadsMistralWindow) {
  EXPECT_EQ(read("MistralForCausalLM", {{"sliding_window", "7"}}).window, (std::vector<int>{7, 7}));
  EXPECT_EQ(read("MistralForCausalLM", {{"sliding_window", "null"}}).window, (std::vector<int>{0, 0}));
  EXPECT_EQ(read("MistralForCausalLM").window, (std::vector<int>{0, 0}));
  refuses(ErrorCode::kUnsupported, "MistralForCausalLM",
          {{"sliding_window", "7"}, {"layer_types", R"(["full_attention","sliding_attention"])"}}, {"layer_types[0]"});
  refuses(ErrorCode::kUnsupported, "MistralForCausalLM", {{"sliding_window", "7"}, {"use_sliding_window", "false"}},
          {"use_sliding_window"});
  refuses(ErrorCode::kInvalidFile, "MistralForCausalLM", {{"sliding_window", "0"}}, {"sliding_window", "0"});
  refuses(ErrorCode::kUnsupported, "LlamaForCausalLM", {{"sliding_window", "7"}},
          {"sliding_window", "LlamaForCausalLM"});
}

TEST_F(ModelConfigTest, ReadsQwenWindow) {
  for (const std::string architecture : {"Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    Fields fields{{"sliding_window", "7"}, {"max_window_layers", "1"}, {"use_sliding_window", "false"}};
    EXPECT_EQ(read(architecture, fields).window, (std::vector<int>{0, 0}));
    fields["use_sliding_window"] = "true";
    EXPECT_EQ(read(architecture, fields).window, (std::vector<int>{0, 7}));
    fields["max_window_layers"] = "5";
    EXPECT_EQ(read(architecture, fields).window, (std::vector<int>{0, 0}));
    fields["layer_types"] = R"(["sliding_attention","full_attention"])";
    EXPECT_EQ(read(architecture, fields).window, (std::vector<int>{7, 0}));
    fields["sliding_window"] = "null";
    refuses(ErrorCode::kInvalidFile, architecture, fields, {"layer_types[0]", "no sliding window"});
    fields["sliding_window"] = "";
    refuses(ErrorCode::kInvalidFile, architecture, fields, {"sliding_window", "missing"});
  }
  refuses(ErrorCode::kInvalidFile, "Qwen2ForCausalLM", {{"layer_types", R"(["full_attention"])"}},
          {"layer_types", "has 1 entries, num_hidden_layers is 2"});
  refuses(ErrorCode::kUnsupported, "Qwen2ForCausalLM", {{"layer_types", R"(["full_attention","chunked_attention"])"}},
          {"layer_types[1]", "\"chunked_attention\""});
}

TEST_F(ModelConfigTest, GathersEosIdsOfBothFiles) {
  directory_.write("generation_config.json", R"({"eos_token_id":[7,2,5]})");
  EXPECT_EQ(read("LlamaForCausalLM").eos_token_ids, (std::vector<TokenId>{2, 5, 7}));
  EXPECT_EQ(read("LlamaForCausalLM", {{"eos_token_id", "[9,7]"}}).eos_token_ids, (std::vector<TokenId>{2, 5, 7, 9}));
  directory_.write("generation_config.json", R"({"eos_token_id":null,"temperature":0.6})");
  EXPECT_EQ(read("LlamaForCausalLM").eos_token_ids, std::vector<TokenId>{2});
  for (const std::string ids : {"[16]", "-1", "\"2\"", "[1.5]", "true"}) {
    directory_.write("generation_config.json", "{\"eos_token_id\":" + ids + "}");
    expect_error(ErrorCode::kInvalidFile, {"generation_config.json", "eos_token_id"},
                 [&] { read("LlamaForCausalLM"); });
  }
  directory_.write("generation_config.json", "{");
  expect_error(ErrorCode::kInvalidFile, {"generation_config.json", "malformed"}, [&] { read("LlamaForCausalLM"); });
}

TEST_F(ModelConfigTest, RefusesOtherArchitectures) {
  for (const std::string architecture : {"Qwen2MoeForCausalLM", "LLaMAForCausalLM", "LlamaModel", "GPT2LMHeadModel"}) {
    refuses(ErrorCode::kUnsupported, "LlamaForCausalLM", {{"architectures", "[\"" + architecture + "\"]"}},
            {"architectures[0]", "\"" + architecture + "\"", "LlamaForCausalLM, MistralForCausalLM"});
  }
  refuses(ErrorCode::kUnsupported, "LlamaForCausalLM", {{"architectures", ""}, {"model_type", "\"mixtral\""}},
          {"model_type", "\"mixtral\""});
  refuses(ErrorCode::kUnsupported, "LlamaForCausalLM", {{"architectures", R"(["LlamaForCausalLM","X"])"}},
          {"architectures", "2"});
  refuses(ErrorCode::kInvalidFile, "LlamaForCausalLM", {{"model_type", "\"qwen2\""}},
          {"model_type", "\"qwen2\" contradicts architecture LlamaForCausalLM"});
  refuses(ErrorCode::kInvalidFile, "LlamaForCausalLM", {{"architectures", ""}, {"model_type", ""}},
          {"model_type", "missing"});
  refuses(ErrorCode::kInvalidFile, "LlamaForCausalLM", {{"architectures", "\"LlamaForCausalLM\""}},
          {"architectures", "expected array"});
}

TEST_F(ModelConfigTest, RefusesUnsupportedFeatures) {
  refuses(ErrorCode::kUnsupported, "LlamaForCausalLM", {{"quantization_config", R"({"quant_method":"gptq","bits":4})"}},
          {"quantization_config", "gptq"});
  refuses(ErrorCode::kUnsupported, "LlamaForCausalLM", {{"hidden_act", "\"gelu\""}}, {"hidden_act", "gelu", "silu"});
  refuses(ErrorCode::kUnsupported, "LlamaForCausalLM", {{"torch_dtype", "\"float64\""}}, {"torch_dtype", "float64"});
  refuses(ErrorCode::kUnsupported, "LlamaForCausalLM", {{"dtype", "\"int8\""}}, {"\"dtype\"", "int8"});
  refuses(ErrorCode::kUnsupported, "Qwen2ForCausalLM", {{"is_causal", "false"}}, {"is_causal"});
  refuses(ErrorCode::kUnsupported, "Qwen2ForCausalLM", {{"use_mrope", "true"}}, {"use_mrope"});
}

TEST_F(ModelConfigTest, RefusesNumbersOutOfRange) {
  const Fields limits{{"vocab_size", "16777217"},
                      {"hidden_size", "1048577"},
                      {"intermediate_size", "1048577"},
                      {"num_hidden_layers", "1001"},
                      {"num_attention_heads", "16385"},
                      {"num_key_value_heads", "16385"},
                      {"max_position_embeddings", "1073741825"}};
  for (const auto& [name, too_large] : limits) {
    for (const std::string& value : {too_large, std::string("0"), std::string("-1"), std::string("2.0"),
                                     std::string("\"8\""), std::string("18446744073709551615"), std::string("true")}) {
      refuses(ErrorCode::kInvalidFile, "LlamaForCausalLM", {{name, value}}, {"\"" + name + "\""});
    }
  }
  for (const std::string name :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    refuses(ErrorCode::kInvalidFile, "LlamaForCausalLM", {{name, ""}}, {"\"" + name + "\"", "missing"});
  }
  refuses(ErrorCode::kInvalidFile, "Qwen2ForCausalLM", {{"num_key_value_heads", ""}},
          {"num_key_value_heads", "missing"});
  refuses(ErrorCode::kInvalidFile, "LlamaForCausalLM", {{"num_attention_heads", "6"}, {"num_key_value_heads", "4"}},
          {"num_key_value_heads", "4 does not divide num_attention_heads 6"});
  refuses(ErrorCode::kInvalidFile, "LlamaForCausalLM", {{"num_key_value_heads", "4"}}, {"num_key_value_heads", "4"});
  for (const std::string eps : {"0", "-1e-6", "2", "\"x\""}) {
    refuses(ErrorCode::kInvalidFile, "LlamaForCausalLM", {{"rms_norm_eps", eps}}, {"rms_norm_eps"});
  }
  refuses(ErrorCode::kInvalidFile, "LlamaForCausalLM", {{"tie_word_embeddings", "1"}},
          {"tie_word_embeddings", "boolean"});
}

TEST_F(ModelConfigTest, RefusesFilesThatAreNoConfig) {
  expect_error(ErrorCode::kNotFound, {"config.json"}, [&] { load_model_config(directory_.path()); });
  expect_error(ErrorCode::kNotFound, {"/nonexistent-directory"}, [] { load_model_config("/nonexistent-directory"); });
  for (const std::string text : {"", "null", "[]", "3", "{", "{\"architectures\":[\"LlamaForCausalLM\"],}"}) {
    directory_.write("config.json", text);
    expect_error(ErrorCode::kInvalidFile, {"config.json"}, [&] { load_model_config(directory_.path()); });
  }
}

}  // namespace
}  // namespace fastspec::test
