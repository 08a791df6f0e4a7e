// Read-only view of one or several safetensors files by mmap. Safe on hostile files: everything that a header claims is
// checked against the file before use, and nothing is allocated in a size that a file merely claims.
#pragma once

#include <fastspec/tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fastspec {

/// One tensor inside a mapped file. `data` lives as long as the SafetensorsDirectory that gave it.
struct TensorInfo {
  std::string name;
  std::string file;  // for messages
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;

  std::int64_t num_elements() const;
  std::string shape_text() const;  // "[49152, 576]"
};

/// The tensors of a model directory: `model.safetensors`, or the shards named by `model.safetensors.index.json`.
class SafetensorsDirectory {
 public:
  /// @throws Error(kNotFound, kInvalidFile, kUnsupported) naming the file and the tensor.
  explicit SafetensorsDirectory(const std::filesystem::path& directory);
  ~SafetensorsDirectory();
  SafetensorsDirectory(SafetensorsDirectory&&) noexcept;
  SafetensorsDirectory& operator=(SafetensorsDirectory&&) noexcept;

  /// nullptr when there is no tensor of that name. A tensor with a dtype that is no DType (I64, F8...) is refused when
  /// found.
  const TensorInfo* find(std::string_view name) const;
  /// The values of a one-dimensional I32 tensor; nullopt when there is none of that name.
  /// @throws Error(kInvalidFile) naming the tensor when it has another dtype or shape.
  std::optional<std::vector<std::int32_t>> find_integers(std::string_view name) const;
  /// All names, sorted.
  std::vector<std::string> names() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastspec
