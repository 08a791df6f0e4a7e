// From the tensors of a checkpoint to weights in device memory, for every kind of model. First every expected tensor is
// found and its shape compared, then memory is allocated, then data is converted chunk by chunk: a claim of a config is
// never trusted before the file backs it. Knows no model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/device.h"
#include "backend/params.h"
#include "io/safetensors.h"

namespace fastspec {

/// Called with (bytes done, bytes in all) while weights load.
using LoadProgress = std::function<void(std::size_t done, std::size_t total)>;

/// Finds the expected tensors and remembers which of the checkpoint's names are accounted for.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& directory);

  const std::string& directory() const { return directory_; }
  bool has(const std::string& name) const { return tensors_.find(name) != nullptr; }
  std::vector<std::string> names() const { return tensors_.names(); }
  /// @throws Error naming the tensor: kNotFound, or kInvalidFile for another shape.
  const TensorInfo* expect(const std::string& name, const std::vector<std::int64_t>& shape);
  /// A second copy of a tied tensor. Were it another one, tying would change what the model computes.
  void expect_copy(const std::string& name, const std::string& original);
  /// An optional list of int32. @throws Error(kInvalidFile, kUnsupported) where it is something else.
  std::optional<std::vector<std::int32_t>> find_integers(const std::string& name);
  /// Accounts for a tensor that is not read. @returns whether it is there.
  bool skip(const std::string& name);
  /// A tensor that nothing reads changes what the model computes: half a model must not load.
  void refuse_unexpected() const;

 private:
  std::string directory_;
  SafetensorsDirectory tensors_;
  std::set<std::string> used_;
};

/// What to load, in full, before anything is allocated. Targets are written by load() and must outlive it.
class LoadPlan {
 public:
  using Part = std::pair<std::string, int>;  // tensor, rows

  /// kChecked: a NaN or an infinity is refused. A target's would be seen in its first output; a drafter's nobody sees.
  enum class Values { kAny, kChecked };

  explicit LoadPlan(Checkpoint& checkpoint, Values values = Values::kAny) : checkpoint_(checkpoint), values_(values) {}

  /// A matrix of tensors [rows, in_features] stacked in order.
  void add_matrix(Weight& target, const std::vector<Part>& parts, int in_features);
  void add_vector(Vector& target, const std::vector<Part>& parts);
  /// Stacks prefix + name + ".weight" of every part, and ".bias" into `bias` unless it is null.
  void add_linear(const std::string& prefix, std::span<const Part> parts, int in_features, Weight& weight,
                  Vector* bias);

  /// Moves everything into device memory, which `buffers` then owns. Matrices take `dtype`, vectors float32.
  /// @throws Error(kInvalidFile) naming the tensor whose values are refused.
  void load(DType dtype, Device& device, const LoadProgress& progress, std::vector<Buffer>& buffers) const;

 private:
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
  class Loader;
  std::size_t bytes(DType dtype) const;

  Checkpoint& checkpoint_;
  Values values_;
  std::vector<MatrixPlan> matrices_;
  std::vector<VectorPlan> vectors_;
};

}  // namespace fastspec
