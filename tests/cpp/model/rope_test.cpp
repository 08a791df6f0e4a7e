// Rotary embedding: the frequencies against values stored from transformers (support/make_rope_values.py), and the
// refusals of what is not computed.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "io/json.h"
#include "model/model_config.h"
#include "support/checkpoint_files.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace fastspec::test {
namespace {

TEST(Rope, FrequenciesEqualTransformers) {
  const Json cases = parse_json_file(std::string(FASTSPEC_SOURCE_DIR) + "/tests/cpp/model/rope_values.json");
  ASSERT_GE(cases.size(), 19u);
  int scaled = 0;
  for (const Json& stored : cases) {
    const TemporaryDirectory directory;
    directory.write("config.json", stored["config"].dump());
    const std::string what = stored["config"].dump();
    const ModelConfig config = load_model_config(directory.path());
    const std::vector<double> actual = rope_inverse_frequencies(config.rope, config.head_dim);
    const auto expected = stored["inverse_frequencies"].get<std::vector<double>>();
    ASSERT_EQ(actual.size(), expected.size()) << what;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(actual[i] / expected[i], 1.0, 1e-12) << "index " << i << " of " << what;
    }
    EXPECT_NEAR(config.rope.attention_factor, stored["attention_factor"].get<double>(), 1e-12) << what;
    scaled += config.rope.type != RopeType::kDefault;
  }
  EXPECT_GE(scaled, 16);
}

class RopeConfigTest : public testing::Test {
 protected:
  RopeConfig read(const std::map<std::string, std::string>& fields) {
    directory_.write("config.json", tiny_config("LlamaForCausalLM", fields));
    return load_model_config(directory_.path()).rope;
  }
  void refuses(ErrorCode code, const std::map<std::string, std::string>& fields,
               std::initializer_list<std::string> parts) {
    const std::string message = expect_error(code, parts, [&] { read(fields); });
    EXPECT_NE(message.find("config.json"), std::string::npos) << message;
  }
  TemporaryDirectory directory_;
};

TEST_F(RopeConfigTest, BothSpellingsGiveTheSame) {
  const RopeConfig newer =
      read({{"rope_parameters",
             R"({"rope_type":"yarn","rope_theta":5e5,"factor":4,"original_max_position_embeddings":32})"}});
  EXPECT_EQ(newer.type, RopeType::kYarn);
  EXPECT_EQ(newer.theta, 5e5);
  EXPECT_EQ(newer.factor, 4.0);
  EXPECT_EQ(newer.original_max_position_embeddings, 32);
  EXPECT_NEAR(newer.attention_factor, 0.1 * std::log(4.0) + 1, 1e-15);
  for (const std::string name : {"type", "rope_type"}) {
    EXPECT_EQ(newer, read({{"rope_theta", "500000"}, {"rope_scaling", "{\"" + name + R"(":"yarn","factor":4.0,
                             "original_max_position_embeddings":32})"}}));
  }
}

TEST_F(RopeConfigTest, AbsentAndNullMeanDefault) {
  EXPECT_EQ(read({}), RopeConfig{});
  EXPECT_EQ(read({{"rope_scaling", "null"}, {"rope_parameters", "null"}, {"rope_theta", "null"}}), RopeConfig{});
  EXPECT_EQ(read({{"rope_parameters", R"({"rope_theta":10000.0})"}}), RopeConfig{});
  EXPECT_EQ(read({{"rope_scaling", R"({"type":"default","rope_type":"default"})"}}), RopeConfig{});
}

TEST_F(RopeConfigTest, UniformNestingIsOneEmbedding) {
  const std::string full = R"("full_attention":{"rope_type":"linear","factor":2.0,"rope_theta":1e4})";
  const RopeConfig rope =
      read({{"rope_parameters", "{" + full + R"(,"sliding_attention":{"rope_type":"linear","factor":2.0}})"}});
  EXPECT_EQ(rope.type, RopeType::kLinear);
  refuses(ErrorCode::kUnsupported,
          {{"rope_parameters", "{" + full + R"(,"sliding_attention":{"rope_type":"default"}})"}},
          {"rope_parameters.sliding_attention", "differs from \"full_attention\""});
  refuses(ErrorCode::kUnsupported, {{"rope_parameters", "{" + full + R"(,"sliding_attention":null})"}},
          {"rope_parameters.sliding_attention"});
}

TEST_F(RopeConfigTest, RefusesOtherTypesByName) {
  for (const std::string type : {"dynamic", "longrope", "su", "mrope", "proportional", "ntk"}) {
    refuses(ErrorCode::kUnsupported, {{"rope_scaling", "{\"type\":\"" + type + "\",\"factor\":2.0}"}},
            {"rope_scaling.type", "\"" + type + "\"", "default, linear, llama3, yarn"});
    refuses(ErrorCode::kUnsupported, {{"rope_parameters", "{\"rope_type\":\"" + type + "\"}"}},
            {"rope_parameters.rope_type", "\"" + type + "\""});
  }
  refuses(ErrorCode::kUnsupported, {{"rope_scaling", R"({"type":"linear","factor":2.0,"mrope_section":[1,2]})"}},
          {"rope_scaling.mrope_section"});
  refuses(ErrorCode::kUnsupported, {{"rope_scaling", R"({"factor":2.0})"}}, {"rope_scaling.factor"});
  refuses(ErrorCode::kUnsupported, {{"partial_rotary_factor", "0.5"}}, {"partial_rotary_factor", "1.0"});
  refuses(ErrorCode::kUnsupported, {{"rope_parameters", R"({"rope_theta":1e4,"partial_rotary_factor":0.5})"}},
          {"rope_parameters.partial_rotary_factor"});
  refuses(ErrorCode::kUnsupported, {{"rope_interleaved", "true"}}, {"rope_interleaved"});
}

TEST_F(RopeConfigTest, RefusesContradictions) {
  refuses(ErrorCode::kInvalidFile, {{"rope_scaling", R"({"type":"linear","rope_type":"yarn","factor":2.0})"}},
          {"rope_scaling.rope_type", "\"yarn\" contradicts", "linear"});
  refuses(ErrorCode::kInvalidFile,
          {{"rope_scaling", R"({"type":"linear","factor":2.0})"}, {"rope_parameters", R"({"rope_type":"default"})"}},
          {"rope_scaling", "contradicts \"rope_parameters\""});
  refuses(ErrorCode::kInvalidFile, {{"rope_theta", "20000.0"}, {"rope_parameters", R"({"rope_theta":10000.0})"}},
          {"rope_parameters.rope_theta", "10000", "20000"});
}

TEST_F(RopeConfigTest, RefusesValuesOutOfRange) {
  refuses(ErrorCode::kInvalidFile, {{"rope_scaling", "[]"}}, {"rope_scaling", "expected object"});
  refuses(ErrorCode::kInvalidFile, {{"rope_scaling", R"({"type":3})"}}, {"rope_scaling.type", "expected string"});
  refuses(ErrorCode::kInvalidFile, {{"rope_scaling", R"({"type":"linear"})"}}, {"rope_scaling.factor", "missing"});
  for (const std::string factor : {"0", "-2.0", "1e300", "\"2\"", "null"}) {
    refuses(ErrorCode::kInvalidFile, {{"rope_scaling", R"({"type":"linear","factor":)" + factor + "}"}},
            {"rope_scaling.factor"});
  }
  for (const std::string theta : {"0", "-1e4", "1", "1e300", "\"x\""}) {
    refuses(ErrorCode::kInvalidFile, {{"rope_theta", theta}}, {"rope_theta"});
  }
  const std::string yarn = R"({"rope_type":"yarn","factor":2.0,)";
  refuses(ErrorCode::kInvalidFile, {{"rope_scaling", yarn + R"("original_max_position_embeddings":0})"}},
          {"rope_scaling.original_max_position_embeddings"});
  refuses(ErrorCode::kInvalidFile, {{"rope_scaling", yarn + R"("beta_fast":1,"beta_slow":2})"}},
          {"rope_scaling", "beta_fast 1 must be greater than beta_slow 2"});
  refuses(ErrorCode::kInvalidFile, {{"rope_scaling", yarn + R"("truncate":1})"}}, {"truncate", "expected boolean"});
  refuses(ErrorCode::kInvalidFile, {{"rope_scaling", yarn + R"("attention_factor":-1})"}}, {"attention_factor"});
  refuses(ErrorCode::kInvalidFile,
          {{"rope_scaling", R"({"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4})"}},
          {"rope_scaling", "high_freq_factor 4 must be greater than low_freq_factor 4"});
  refuses(ErrorCode::kInvalidFile, {{"rope_scaling", R"({"rope_type":"llama3","factor":8,"high_freq_factor":4})"}},
          {"rope_scaling.low_freq_factor", "missing"});
}

}  // namespace
}  // namespace fastspec::test
