// See tensor_loader.h.
#include "model/tensor_loader.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "io/json.h"
#include "model/convert.h"

namespace fastspec {

namespace {

constexpr std::size_t kStagingBytes = std::size_t{2} << 20;  // fits the last-level cache beside its source
constexpr std::size_t kVectorAlignment = 64 / sizeof(float);

/// @param exponent bits of an element that are all set in a NaN and an infinity alone.
template <typename Element>
bool are_finite(std::span<const std::byte> data, Element exponent) {
  bool finite = true;
  for (std::size_t at = 0; at + sizeof(Element) <= data.size(); at += sizeof(Element)) {
    Element bits;
    std::memcpy(&bits, data.data() + at, sizeof(bits));
    finite &= (bits & exponent) != exponent;
  }
  return finite;
}

void check_finite(const TensorInfo& tensor) {
  bool finite = true;
  switch (tensor.dtype) {
    case DType::kFloat32:
      finite = are_finite<std::uint32_t>(tensor.data, 0x7F800000u);
      break;
    case DType::kBFloat16:
      finite = are_finite<std::uint16_t>(tensor.data, 0x7F80u);
      break;
    case DType::kFloat16:
      finite = are_finite<std::uint16_t>(tensor.data, 0x7C00u);
      break;
    default:
      break;
  }
  if (finite) return;
  fail(ErrorCode::kInvalidFile, tensor.file, ": tensor \"", tensor.name,
       "\" has values that are no finite numbers: its drafts would all be refused");
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& directory) : directory_(directory.string()), tensors_(directory) {}

const TensorInfo* Checkpoint::expect(const std::string& name, const std::vector<std::int64_t>& shape) {
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

void Checkpoint::expect_copy(const std::string& name, const std::string& original) {
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

std::optional<std::vector<std::int32_t>> Checkpoint::find_integers(const std::string& name) {
  std::optional<std::vector<std::int32_t>> values = tensors_.find_integers(name);
  if (values) used_.insert(name);
  return values;
}

bool Checkpoint::skip(const std::string& name) {
  if (!has(name)) return false;
  used_.insert(name);
  return true;
}

void Checkpoint::refuse_unexpected() const {
  for (const std::string& name : tensors_.names()) {
    if (!used_.contains(name) && !name.ends_with("rotary_emb.inv_freq")) {
      fail(ErrorCode::kUnsupported, directory_, ": unexpected tensor \"", shown(name, 200),
           "\" is not part of the model that config.json describes");
    }
  }
}

void LoadPlan::add_linear(const std::string& prefix, std::span<const Part> parts, int in_features, Weight& weight,
                          Vector* bias) {
  std::vector<Part> weights, biases;
  for (const auto& [name, rows] : parts) {
    weights.emplace_back(prefix + name + ".weight", rows);
    biases.emplace_back(prefix + name + ".bias", rows);
  }
  add_matrix(weight, weights, in_features);
  if (bias != nullptr) add_vector(*bias, biases);
}

void LoadPlan::add_matrix(Weight& target, const std::vector<Part>& parts, int in_features) {
  MatrixPlan plan{&target, {}, 0, in_features};
  for (const auto& [name, rows] : parts) {
    plan.parts.push_back(checkpoint_.expect(name, {rows, in_features}));
    plan.out_features += rows;
  }
  matrices_.push_back(std::move(plan));
}

void LoadPlan::add_vector(Vector& target, const std::vector<Part>& parts) {
  VectorPlan plan{&target, {}, 0};
  for (const auto& [name, size] : parts) {
    plan.parts.push_back(checkpoint_.expect(name, {size}));
    plan.size += size;
  }
  vectors_.push_back(std::move(plan));
}

/// Moves tensors into device memory through one small host buffer.
class LoadPlan::Loader {
 public:
  Loader(Device& device, DType dtype, std::size_t total, const LoadProgress& progress)
      : device_(device), dtype_(dtype), total_(total), progress_(progress), staging_(kStagingBytes) {}

  void load_matrix(const MatrixPlan& plan, std::vector<Buffer>& buffers) {
    const auto elements = static_cast<std::size_t>(plan.out_features) * static_cast<std::size_t>(plan.in_features);
    Buffer buffer = device_.allocate(elements * size_of(dtype_), plan.parts.front()->name.c_str());
    auto* place = buffer.as<std::byte>();
    for (const TensorInfo* part : plan.parts) place = copy(*part, place, dtype_);
    *plan.target = Weight{buffer.data(), dtype_, plan.out_features, plan.in_features};
    buffers.push_back(std::move(buffer));
  }

  /// All vectors share one buffer: there are many and they are small.
  void load_vectors(const std::vector<VectorPlan>& plans, std::vector<Buffer>& buffers) {
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
    buffers.push_back(std::move(buffer));
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

std::size_t LoadPlan::bytes(DType dtype) const {
  std::size_t total = 0;
  for (const MatrixPlan& matrix : matrices_) {
    total +=
        static_cast<std::size_t>(matrix.out_features) * static_cast<std::size_t>(matrix.in_features) * size_of(dtype);
  }
  for (const VectorPlan& vector : vectors_) total += static_cast<std::size_t>(vector.size) * sizeof(float);
  return total;
}

void LoadPlan::load(DType dtype, Device& device, const LoadProgress& progress, std::vector<Buffer>& buffers) const {
  const auto check = [](const TensorInfo* tensor) { check_finite(*tensor); };
  const std::size_t total = bytes(dtype);
  if (device.total_bytes() > 0 && total > device.available_bytes()) {
    fail(ErrorCode::kOutOfMemory, checkpoint_.directory(), ": the weights take ", total, " bytes in ", to_string(dtype),
         ", ", device.name(), " has ", device.available_bytes(), " of ", device.total_bytes(), " bytes available");
  }
  if (values_ == Values::kChecked) {
    for (const MatrixPlan& matrix : matrices_) std::for_each(matrix.parts.begin(), matrix.parts.end(), check);
    for (const VectorPlan& vector : vectors_) std::for_each(vector.parts.begin(), vector.parts.end(), check);
  }
  Loader loader(device, dtype, total, progress);
  for (const MatrixPlan& matrix : matrices_) loader.load_matrix(matrix, buffers);
  loader.load_vectors(vectors_, buffers);
}

}  // namespace fastspec
