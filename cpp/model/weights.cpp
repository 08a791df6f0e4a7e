// Places a checkpoint's tensors in device memory. First every expected tensor is found and its shape compared, then
// memory is allocated, then data is converted chunk by chunk: a claim of the config is never trusted before the file
// backs it.
#include "model/weights.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/convert.h"

namespace fastspec {

namespace {

constexpr std::size_t kStagingBytes = std::size_t{2} << 20;  // fits the last-level cache beside its source
constexpr std::size_t kVectorAlignment = 64 / sizeof(float);

using Shape = std::vector<std::int64_t>;

/// A matrix to build by stacking tensors of the checkpoint, and where its description goes.
struct MatrixPlan {
  Weight* target;
  std::vector<const TensorInfo*> parts;
  int out_features;
  int in_features;
};

struct VectorPlan {
  Vector* target;
  std::vector<const TensorInfo*> parts;
  int size;
};

/// Finds the expected tensors and remembers which of the checkpoint's names are accounted for.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& directory)
      : directory_(directory.string()),
        tensors_(directory),
        prefix_(tensors_.find("model.norm.weight") ? "model." : "") {}

  bool has(const std::string& name) const { return tensors_.find(name) != nullptr; }
  const std::string& prefix() const { return prefix_; }

  const TensorInfo* expect(const std::string& name, const Shape& shape) {
    const TensorInfo* tensor = tensors_.find(name);
    if (tensor == nullptr) fail(ErrorCode::kNotFound, directory_, ": tensor \"", name, "\" is missing");
    if (tensor->shape != shape) {
      TensorInfo expected;
      expected.shape = shape;
      fail(ErrorCode::kInvalidFile, tensor->file, ": tensor \"", name, "\" has shape ", tensor->shape_text(),
           ", but config.json asks for ", expected.shape_text());
    }
    used_.insert(name);
    return tensor;
  }

  /// A second copy of a tied tensor. Were it another one, tying would change what the model computes.
  void expect_copy(const std::string& name, const std::string& original) {
    const TensorInfo* first = tensors_.find(original);
    const TensorInfo* second = tensors_.find(name);
    const bool same = first->dtype == second->dtype && first->shape == second->shape &&
                      std::memcmp(first->data.data(), second->data.data(), first->data.size()) == 0;
    if (!same) {
      fail(ErrorCode::kInvalidFile, second->file, ": tensor \"", name, "\" differs from \"", original,
           "\", but config.json says tie_word_embeddings");
    }
    used_.insert(name);
  }

  /// A tensor that nothing reads changes what the model computes: half a model must not load.
  void refuse_unexpected() const {
    for (const std::string& name : tensors_.names()) {
      if (!used_.contains(name) && !name.ends_with("rotary_emb.inv_freq")) {
        fail(ErrorCode::kUnsupported, directory_, ": unexpected tensor \"", shown(name, 200),
             "\" is not part of the model that config.json describes");
      }
    }
  }

 private:
  std::string directory_;
  SafetensorsDirectory tensors_;
  std::string prefix_;
  std::set<std::string> used_;
};

/// What to load, in full, before anything is allocated.
class LoadPlan {
 public:
  LoadPlan(Checkpoint& checkpoint, const ModelConfig& config, Weights& weights)
      : checkpoint_(checkpoint), config_(config) {
    const std::string prefix = checkpoint.prefix();
    weights.layers.resize(static_cast<std::size_t>(config.num_layers));
    add_embeddings(prefix, weights);
    add_vector(weights.final_norm, {{prefix + "norm.weight", config.hidden_size}});
    for (std::size_t i = 0; i < weights.layers.size(); ++i) {
      add_layer(prefix + "layers." + std::to_string(i) + ".", weights.layers[i]);
    }
  }

  const std::vector<MatrixPlan>& matrices() const { return matrices_; }
  const std::vector<VectorPlan>& vectors() const { return vectors_; }

 private:
  using Part = std::pair<std::string, int>;  // tensor, rows

  void add_embeddings(const std::string& prefix, Weights& weights) {
    const std::string embedding = prefix + "embed_tokens.weight";
    const std::string head = "lm_head.weight";
    if (!config_.tie_word_embeddings) {
      add_matrix(weights.embedding, {{embedding, config_.vocab_size}}, config_.hidden_size);
      add_matrix(weights.lm_head, {{head, config_.vocab_size}}, config_.hidden_size);
      return;
    }
    // Writers that drop shared tensors keep either name, others keep both.
    const bool only_head = !checkpoint_.has(embedding) && checkpoint_.has(head);
    add_matrix(weights.embedding, {{only_head ? head : embedding, config_.vocab_size}}, config_.hidden_size);
    if (!only_head && checkpoint_.has(head)) checkpoint_.expect_copy(head, embedding);
  }

  void add_layer(const std::string& name, LayerWeights& layer) {
    const int q = config_.q_size(), kv = config_.kv_size();
    const int hidden = config_.hidden_size, inner = config_.intermediate_size;
    const std::string attention = name + "self_attn.", mlp = name + "mlp.";
    add_vector(layer.attention_norm, {{name + "input_layernorm.weight", hidden}});
    add_vector(layer.mlp_norm, {{name + "post_attention_layernorm.weight", hidden}});
    const std::array<Part, 3> qkv{{{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}}};
    add_linear(attention, qkv, hidden, layer.qkv, config_.qkv_bias ? &layer.qkv_bias : nullptr);
    const std::array<Part, 1> o{{{"o_proj", hidden}}};
    add_linear(attention, o, q, layer.o, config_.o_bias ? &layer.o_bias : nullptr);
    const std::array<Part, 2> gate_up{{{"gate_proj", inner}, {"up_proj", inner}}};
    add_linear(mlp, gate_up, hidden, layer.gate_up, config_.mlp_bias ? &layer.gate_up_bias : nullptr);
    const std::array<Part, 1> down{{{"down_proj", hidden}}};
    add_linear(mlp, down, inner, layer.down, config_.mlp_bias ? &layer.down_bias : nullptr);
    if (config_.qk_norm) {
      add_vector(layer.q_norm, {{attention + "q_norm.weight", config_.head_dim}});
      add_vector(layer.k_norm, {{attention + "k_norm.weight", config_.head_dim}});
    }
  }

  void add_linear(const std::string& prefix, std::span<const Part> parts, int in_features, Weight& weight,
                  Vector* bias) {
    std::vector<Part> weights, biases;
    for (const auto& [name, rows] : parts) {
      weights.emplace_back(prefix + name + ".weight", rows);
      biases.emplace_back(prefix + name + ".bias", rows);
    }
    add_matrix(weight, weights, in_features);
    if (bias != nullptr) add_vector(*bias, biases);
  }

  void add_matrix(Weight& target, const std::vector<Part>& parts, int in_features) {
    MatrixPlan plan{&target, {}, 0, in_features};
    for (const auto& [name, rows] : parts) {
      plan.parts.push_back(checkpoint_.expect(name, {rows, in_features}));
      plan.out_features += rows;
    }
    matrices_.push_back(std::move(plan));
  }

  void add_vector(Vector& target, const std::vector<Part>& parts) {
    VectorPlan plan{&target, {}, 0};
    for (const auto& [name, size] : parts) {
      plan.parts.push_back(checkpoint_.expect(name, {size}));
      plan.size += size;
    }
    vectors_.push_back(std::move(plan));
  }

  Checkpoint& checkpoint_;
  const ModelConfig& config_;
  std::vector<MatrixPlan> matrices_;
  std::vector<VectorPlan> vectors_;
};

/// Moves tensors into device memory through one small host buffer.
class Loader {
 public:
  Loader(Device& device, DType dtype, std::size_t total, const LoadProgress& progress)
      : device_(device), dtype_(dtype), total_(total), progress_(progress), staging_(kStagingBytes) {}

  void load_matrix(const MatrixPlan& plan, Weights& weights) {
    const auto elements = static_cast<std::size_t>(plan.out_features) * static_cast<std::size_t>(plan.in_features);
    Buffer buffer = device_.allocate(elements * size_of(dtype_), plan.parts.front()->name.c_str());
    auto* place = buffer.as<std::byte>();
    for (const TensorInfo* part : plan.parts) place = copy(*part, place, dtype_);
    *plan.target = Weight{buffer.data(), dtype_, plan.out_features, plan.in_features};
    weights.buffers.push_back(std::move(buffer));
  }

  /// All vectors share one buffer: there are many and they are small.
  void load_vectors(const std::vector<VectorPlan>& plans, Weights& weights) {
    std::size_t elements = 0;
    for (const VectorPlan& plan : plans) elements += padded(plan.size);
    Buffer buffer = device_.allocate(elements * sizeof(float), "norm weights and biases");
    float* place = buffer.as<float>();
    for (const VectorPlan& plan : plans) {
      auto* next = reinterpret_cast<std::byte*>(place);
      for (const TensorInfo* part : plan.parts) next = copy(*part, next, DType::kFloat32);
      *plan.target = Vector{place, plan.size};
      place += padded(plan.size);
    }
    weights.buffers.push_back(std::move(buffer));
  }

  static std::size_t padded(int size) {
    return (static_cast<std::size_t>(size) + kVectorAlignment - 1) / kVectorAlignment * kVectorAlignment;
  }

 private:
  /// Returns the place behind the copied tensor.
  std::byte* copy(const TensorInfo& tensor, std::byte* destination, DType dtype) {
    const std::size_t source_size = size_of(tensor.dtype), size = size_of(dtype);
    const std::size_t count = tensor.data.size() / source_size;
    const std::size_t step = kStagingBytes / size;
    for (std::size_t first = 0; first < count; first += step) {
      const std::size_t elements = std::min(step, count - first);
      const std::byte* source = tensor.data.data() + first * source_size;
      if (tensor.dtype != dtype) {
        convert_elements(source, tensor.dtype, staging_.data(), dtype, elements);
        source = staging_.data();
      }
      device_.copy_to_device(destination + first * size, source, elements * size);
      done_ += elements * size;
      if (progress_) progress_(done_, total_);
    }
    return destination + count * size;
  }

  Device& device_;
  DType dtype_;
  std::size_t done_ = 0;
  std::size_t total_;
  const LoadProgress& progress_;
  std::vector<std::byte> staging_;
};

std::size_t bytes_to_load(const LoadPlan& plan, DType dtype) {
  std::size_t bytes = 0;
  for (const MatrixPlan& matrix : plan.matrices()) {
    bytes +=
        static_cast<std::size_t>(matrix.out_features) * static_cast<std::size_t>(matrix.in_features) * size_of(dtype);
  }
  for (const VectorPlan& vector : plan.vectors()) bytes += static_cast<std::size_t>(vector.size) * sizeof(float);
  return bytes;
}

}  // namespace

std::size_t Weights::bytes() const {
  std::size_t total = 0;
  for (const Buffer& buffer : buffers) total += buffer.bytes();
  return total;
}

Weights load_weights(const std::filesystem::path& directory, const ModelConfig& config, DType dtype, Device& device,
                     const LoadProgress& progress) {
  Weights weights;
  Checkpoint checkpoint(directory);
  const LoadPlan plan(checkpoint, config, weights);
  checkpoint.refuse_unexpected();

  const std::size_t bytes = bytes_to_load(plan, dtype);
  if (device.total_bytes() > 0 && bytes > device.available_bytes()) {
    fail(ErrorCode::kOutOfMemory, directory.string(), ": the weights take ", bytes, " bytes in ", to_string(dtype),
         ", ", device.name(), " has ", device.available_bytes(), " of ", device.total_bytes(), " bytes available");
  }
  Loader loader(device, dtype, bytes, progress);
  for (const MatrixPlan& matrix : plan.matrices()) loader.load_matrix(matrix, weights);
  loader.load_vectors(plan.vectors(), weights);
  if (config.tie_word_embeddings) weights.lm_head = weights.embedding;
  return weights;
}

}  // namespace fastspec
