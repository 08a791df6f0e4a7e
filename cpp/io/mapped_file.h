// One regular file mapped read-only into memory. Interprets nothing. A file that is cut short while it is mapped is the
// business of whoever cuts it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <utility>

namespace fastspec {

class MappedFile {
 public:
  /// @throws Error(kNotFound) naming the path when it is no regular file or cannot be opened or mapped.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  /// The whole file; empty for an empty file.
  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace fastspec
