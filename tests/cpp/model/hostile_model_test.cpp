// Hundreds of broken model directories: each loads or is refused by an Error that names the directory's file. Nothing
// crashes, and neither host nor device memory is taken in a claimed size.
#include <fastspec/error.h>
#include <gtest/gtest.h>

#include "model/weights.h"
#include "recording_device.h"
#include "support/allocation_watch.h"
#include "support/checkpoint_files.h"
#include "support/mutations.h"
#include "support/temporary_directory.h"

namespace fastspec::test {
namespace {

constexpr std::size_t kFileBytes = 8000;  // the tiny checkpoints are smaller
// The staging buffer of the loader is the largest allocation that no file asks for.
constexpr std::size_t kAllocationLimit = (std::size_t{2} << 20) + 4096;

struct Tally {
  int cases = 0;
  int refused = 0;
};

void load_hostile(const std::filesystem::path& directory, const std::string& what, Tally& tally) {
  ++tally.cases;
  const AllocationWatch watch;
  RecordingDevice device;
  try {
    const ModelConfig config = load_model_config(directory);
    ASSERT_EQ(config.window.size(), static_cast<std::size_t>(config.num_layers)) << what;
    for (double frequency : rope_inverse_frequencies(config.rope, config.head_dim)) {
      ASSERT_TRUE(frequency > 0 && frequency < 1e10) << what << ": " << frequency;
    }
    const Weights weights = load_weights(directory, config, DType::kFloat32, device);
    EXPECT_EQ(weights.layers.size(), static_cast<std::size_t>(config.num_layers)) << what;
  } catch (const Error& error) {
    ++tally.refused;
    EXPECT_NE(std::string(error.what()).find(directory.string()), std::string::npos) << what << ": " << error.what();
    EXPECT_NE(error.code(), ErrorCode::kInternal) << what << ": " << error.what();
  }
  EXPECT_LT(watch.largest(), kAllocationLimit) << what;
  EXPECT_LT(device.allocated_bytes, 2 * kFileBytes) << what;
}

struct Base {
  std::string architecture;
  std::map<std::string, std::string> fields;
  TinyTensors tensors;
};

const std::vector<Base>& bases() {
  static const std::vector<Base> kBases{
      {"LlamaForCausalLM",
       {{"rope_scaling",
         R"({"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
             "original_max_position_embeddings":32})"},
        {"rope_theta", "500000.0"}},
       {}},
      {"MistralForCausalLM", {{"sliding_window", "4"}}, {.dtype = "BF16"}},
      {"Qwen2ForCausalLM",
       {{"rope_parameters",
         R"({"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32,"rope_theta":1000000.0})"},
        {"use_sliding_window", "true"},
        {"sliding_window", "4"},
        {"max_window_layers", "1"},
        {"layer_types", R"(["full_attention","sliding_attention"])"}},
       {.dtype = "F16", .qkv_bias = true}},
      {"Qwen3ForCausalLM", {{"tie_word_embeddings", "true"}}, {.qk_norm = true, .lm_head = false}},
  };
  return kBases;
}

TEST(HostileModel, MutatedConfigsLoadOrAreRefused) {
  Tally bytes, documents;
  Random random(11);
  for (const Base& base : bases()) {
    const TemporaryDirectory directory;
    const std::string valid = tiny_config(base.architecture, base.fields);
    directory.write("model.safetensors", safetensors_file(tiny_tensors(base.tensors)));
    directory.write("config.json", valid);
    Tally unchanged;
    load_hostile(directory.path(), base.architecture, unchanged);
    ASSERT_EQ(unchanged.refused, 0) << base.architecture;
    for (int i = 0; i < 150; ++i) {
      const std::string what = base.architecture + " case " + std::to_string(i);
      directory.write("config.json", mutate_bytes(valid, random));
      load_hostile(directory.path(), "bytes " + what, bytes);
      directory.write("config.json", mutate_json(nlohmann::json::parse(valid), random));
      load_hostile(directory.path(), "json " + what, documents);
    }
  }
  EXPECT_EQ(bytes.cases + documents.cases, 1200);
  // Unknown and optional fields may change freely, so fewer are refused than of the weights' headers.
  EXPECT_GT(bytes.refused, 300);
  EXPECT_GT(documents.refused, 240);
}

TEST(HostileModel, MutatedGenerationConfigsLoadOrAreRefused) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", safetensors_file(tiny_tensors()));
  directory.write("config.json", tiny_config("LlamaForCausalLM"));
  const nlohmann::json valid = {{"eos_token_id", {2, 5}}, {"bos_token_id", 1}};
  Tally tally;
  Random random(13);
  for (int i = 0; i < 100; ++i) {
    directory.write("generation_config.json", mutate_bytes(valid.dump(), random));
    load_hostile(directory.path(), "bytes case " + std::to_string(i), tally);
    directory.write("generation_config.json", mutate_json(valid, random));
    load_hostile(directory.path(), "json case " + std::to_string(i), tally);
  }
  EXPECT_GT(tally.refused, 80);
}

TEST(HostileModel, MutatedWeightsLoadOrAreRefused) {
  const TemporaryDirectory directory;
  directory.write("config.json", tiny_config("LlamaForCausalLM"));
  const std::string valid = safetensors_file(tiny_tensors());
  const std::size_t front = 8 + static_cast<unsigned char>(valid[0]) + 256u * static_cast<unsigned char>(valid[1]);
  const nlohmann::json header = nlohmann::json::parse(valid.substr(8, front - 8));
  Tally bytes, documents;
  Random random(17);
  for (int i = 0; i < 200; ++i) {
    directory.write("model.safetensors", mutate_bytes(valid.substr(0, front), random) + valid.substr(front));
    load_hostile(directory.path(), "bytes case " + std::to_string(i), bytes);
    directory.write("model.safetensors", frame_safetensors(mutate_json(header, random), valid.substr(front)));
    load_hostile(directory.path(), "json case " + std::to_string(i), documents);
  }
  EXPECT_GT(bytes.refused, 180);
  EXPECT_GT(documents.refused, 180);
}

}  // namespace
}  // namespace fastspec::test
