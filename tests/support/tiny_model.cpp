// Random models and a word tokenizer.
#include "support/tiny_model.h"

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"

namespace fastspec::testing {

namespace {

class WeightMaker {
 public:
  WeightMaker(std::uint64_t seed, DType dtype, Device& device, std::uint64_t noise_seed, float noise)
      : random_(seed), noise_random_(noise_seed), noise_(noise), dtype_(dtype), device_(device) {}

  Weight matrix(int out_features, int in_features) {
    const float scale = 1.5f / std::sqrt(static_cast<float>(in_features));
    std::vector<float> values = normal(std::size_t(out_features) * in_features, scale, 0);
    Weight weight{nullptr, dtype_, out_features, in_features};
    if (dtype_ == DType::kFloat32) {
      weight.data = keep(values.data(), values.size() * sizeof(float));
    } else {
      FS_CHECK(dtype_ == DType::kBFloat16);
      std::vector<std::uint16_t> halves;
      for (const float value : values) {
        std::uint32_t bits;
        std::memcpy(&bits, &value, sizeof(bits));
        halves.push_back(static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16));
      }
      weight.data = keep(halves.data(), halves.size() * sizeof(std::uint16_t));
    }
    return weight;
  }

  Vector vector(int size, float scale, float mean) {
    const std::vector<float> values = normal(size, scale, mean);
    return {static_cast<const float*>(keep(values.data(), values.size() * sizeof(float))), size};
  }

  std::vector<Buffer> take_buffers() { return std::move(buffers_); }

 private:
  std::vector<float> normal(std::size_t count, float scale, float mean) {
    std::normal_distribution<float> unit;
    std::vector<float> values(count);
    for (float& value : values) {
      value = mean + scale * unit(random_);
      if (noise_ != 0) value += scale * noise_ * unit(noise_random_);
    }
    return values;
  }

  const void* keep(const void* data, std::size_t bytes) {
    buffers_.push_back(device_.allocate(bytes, "test weights"));
    device_.copy_to_device(buffers_.back().data(), data, bytes);
    return buffers_.back().data();
  }

  std::mt19937_64 random_;
  std::mt19937_64 noise_random_;
  float noise_;
  DType dtype_;
  Device& device_;
  std::vector<Buffer> buffers_;
};

class WordTokenizer final : public Tokenizer {
 public:
  explicit WordTokenizer(int vocab_size) {
    for (int id = 0; id + 1 < vocab_size; ++id) {
      std::string word;
      for (int rest = id, letters = 1 + id % 3; letters > 0; --letters, rest /= 4)
        word += static_cast<char>('a' + rest % 4);
      words_.push_back(word);
    }
    words_.emplace_back();
  }

  std::vector<TokenId> encode(std::string_view, bool) const override {
    fail(ErrorCode::kUnsupported, "the test tokenizer only decodes");
  }
  std::string decode(std::span<const TokenId> ids, bool) const override {
    std::string text;
    for (const TokenId id : ids) text += words_.at(id);
    return text;
  }
  int vocab_size() const noexcept override { return static_cast<int>(words_.size()); }
  std::optional<TokenId> token_to_id(std::string_view) const override { return std::nullopt; }
  std::string id_to_token(TokenId id) const override { return words_.at(id); }
  bool is_special(TokenId id) const noexcept override { return id + 1 == vocab_size(); }

  class WordStream final : public Stream {
   public:
    explicit WordStream(const WordTokenizer& tokenizer) : tokenizer_(tokenizer) {}
    std::string push(TokenId id) override { return tokenizer_.words_.at(id); }
    std::string finish() override { return {}; }

   private:
    const WordTokenizer& tokenizer_;
  };
  std::unique_ptr<Stream> stream(bool) const override { return std::make_unique<WordStream>(*this); }

 private:
  std::vector<std::string> words_;
};

}  // namespace

ModelConfig tiny_config(int vocab_size, int max_positions) {
  ModelConfig config;
  config.architecture = "TestForCausalLM";
  config.model_type = "test";
  config.vocab_size = vocab_size;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.rms_norm_eps = 1e-5f;
  config.max_position_embeddings = max_positions;
  config.tie_word_embeddings = true;
  config.qkv_bias = true;
  config.qk_norm = true;
  config.window = {0, 24};
  config.eos_token_ids = {vocab_size - 1};
  return config;
}

Weights tiny_weights(const ModelConfig& config, std::uint64_t seed, DType dtype, Device& device,
                     std::uint64_t noise_seed, float noise) {
  WeightMaker make(seed, dtype, device, noise_seed, noise);
  Weights weights;
  weights.embedding = make.matrix(config.vocab_size, config.hidden_size);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    LayerWeights& target = weights.layers.emplace_back();
    target.attention_norm = make.vector(config.hidden_size, 0.1f, 1.0f);
    target.qkv = make.matrix(config.q_size() + 2 * config.kv_size(), config.hidden_size);
    target.qkv_bias = make.vector(config.q_size() + 2 * config.kv_size(), 0.1f, 0.0f);
    target.q_norm = make.vector(config.head_dim, 0.1f, 1.0f);
    target.k_norm = make.vector(config.head_dim, 0.1f, 1.0f);
    target.o = make.matrix(config.hidden_size, config.q_size());
    target.mlp_norm = make.vector(config.hidden_size, 0.1f, 1.0f);
    target.gate_up = make.matrix(2 * config.intermediate_size, config.hidden_size);
    target.down = make.matrix(config.hidden_size, config.intermediate_size);
  }
  weights.final_norm = make.vector(config.hidden_size, 0.1f, 1.0f);
  weights.lm_head = weights.embedding;
  weights.buffers = make.take_buffers();
  return weights;
}

LongSpecModel tiny_longspec(const ModelConfig& config, std::uint64_t target_seed, int window, DType dtype,
                            Device& device, const std::vector<TokenId>& vocabulary) {
  Weights like = tiny_weights(config, target_seed, dtype, device, target_seed + 1, 0.05f);
  const LayerWeights& last = like.layers.back();
  LongSpecModel model;
  model.config = {.intermediate_size = config.intermediate_size, .rms_norm_eps = config.rms_norm_eps, .window = window};
  LongSpecWeights& weights = model.weights;
  weights.self_norm = weights.cross_norm = last.attention_norm;
  weights.qkv = last.qkv;
  weights.qkv_bias = last.qkv_bias;
  weights.self_o = weights.cross_o = last.o;
  weights.cross_q = {last.qkv.data, dtype, config.q_size(), config.hidden_size};
  weights.cross_q_bias = {last.qkv_bias.data, config.q_size()};
  weights.mlp_norm = last.mlp_norm;
  weights.gate_up = last.gate_up;
  weights.down = last.down;
  weights.final_norm = like.final_norm;
  if (!vocabulary.empty()) prune_vocabulary(vocabulary, like.lm_head, device, weights);
  for (Buffer& buffer : like.buffers) weights.buffers.push_back(std::move(buffer));
  return model;
}

DFlashModel tiny_dflash(const ModelConfig& config, const Weights& target, std::uint64_t seed, DType dtype,
                        Device& device) {
  DFlashModel model;
  model.config.decoder = config;
  model.config.block_size = kTinyBlock;
  model.config.mask_token = config.vocab_size - 2;
  model.config.target_layers = {0, 1};
  model.weights = tiny_weights(config, seed, dtype, device);
  WeightMaker make(seed + 1, dtype, device, 0, 0);
  model.fc = make.matrix(config.hidden_size, 2 * config.hidden_size);
  model.hidden_norm = make.vector(config.hidden_size, 0.1f, 1.0f);
  for (Buffer& buffer : make.take_buffers()) model.weights.buffers.push_back(std::move(buffer));
  model.weights.embedding = target.embedding;
  model.weights.lm_head = target.lm_head;
  return model;
}

std::shared_ptr<const Tokenizer> tiny_tokenizer(int vocab_size) {
  return std::make_shared<WordTokenizer>(vocab_size);
}

}  // namespace fastspec::testing
