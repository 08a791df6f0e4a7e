// Both backends of a comparison, and data on both sides: values are rounded to the element type first, so that the two
// compute from the same numbers.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/half.h"

namespace fastspec::gpu_check {

using Random = std::mt19937_64;

inline int pick(Random& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<std::uint64_t>(high - low + 1));
}

inline std::vector<float> normal(std::size_t count, float scale, Random& random) {
  std::normal_distribution<float> distribution(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

inline std::vector<std::byte> to_bytes(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  cpu::dispatch_dtype(dtype, [&]<typename T>(T) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      T element;
      cpu::from_float(values[i], element);
      std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
  });
  return bytes;
}

inline std::vector<float> from_bytes(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<float> values(bytes.size() / size_of(dtype));
  cpu::dispatch_dtype(dtype, [&]<typename T>(T) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      T element;
      std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
      values[i] = cpu::to_float(element);
    }
  });
  return values;
}

/// Rounded to the element type.
inline std::vector<float> rounded(const std::vector<float>& values, DType dtype) {
  return from_bytes(to_bytes(values, dtype), dtype);
}

/// What rounding alone may do to an output of a few operations.
inline double tolerance(DType dtype) {
  return dtype == DType::kFloat32 ? 2e-5 : dtype == DType::kFloat16 ? 2e-3 : 1.6e-2;
}

/// The GPU backend of one element type, and the reference.
class Sides {
 public:
  explicit Sides(const std::string& device, DType type)
      : dtype(type), gpu(make_backend(device, type, 1)), cpu(make_backend("cpu:reference", type, 2)) {}

  /// An array as it is.
  template <typename T>
  Buffer put(const std::vector<T>& values) {
    Buffer buffer = gpu.device->allocate(values.size() * sizeof(T), "test array");
    if (!values.empty()) gpu.device->copy_to_device(buffer.data(), values.data(), values.size() * sizeof(T));
    return buffer;
  }
  /// Numbers as elements of `type`.
  Buffer put(const std::vector<float>& values, DType type) { return put(to_bytes(values, type)); }
  /// Memory of `count` elements that are all NaN.
  Buffer poisoned(std::size_t count, DType type) {
    return put(std::vector<std::byte>(count * size_of(type), std::byte{0xff}));
  }
  std::vector<float> get(const Buffer& buffer, std::size_t count, DType type) {
    std::vector<std::byte> bytes(count * size_of(type));
    gpu.device->copy_to_host(bytes.data(), buffer.data(), bytes.size());
    return from_bytes(bytes, type);
  }

  DType dtype;
  Backend gpu;
  Backend cpu;
};

/// A matrix on both sides, rows `stride` apart.
class PairedMatrix {
 public:
  PairedMatrix(Sides& sides, int rows, int cols, int padding, const std::vector<float>& values, DType dtype)
      : dtype_(dtype), rows_(rows), cols_(cols), stride_(cols + padding) {
    host_ = rounded(values, dtype);
    device_ = sides.put(host_, dtype);
  }
  /// Random values.
  PairedMatrix(Sides& sides, int rows, int cols, int padding, float scale, Random& random, DType dtype)
      : PairedMatrix(sides, rows, cols, padding, normal(std::size_t(rows) * (cols + padding), scale, random), dtype) {}
  /// An output: every element NaN.
  PairedMatrix(Sides& sides, int rows, int cols, int padding, DType dtype)
      : dtype_(dtype), rows_(rows), cols_(cols), stride_(cols + padding) {
    host_.assign(std::size_t(rows) * stride_, std::nanf(""));
    device_ = sides.poisoned(host_.size(), dtype);
  }

  Matrix host() { return {host_.data(), DType::kFloat32, rows_, cols_, stride_}; }
  Matrix device() const { return {device_.data(), dtype_, rows_, cols_, stride_}; }

  /// The device's values; padding too, as NaN where it still is.
  std::vector<float> seen(Sides& sides) const { return dense(sides.get(device_, host_.size(), dtype_)); }
  std::vector<float> expected() const { return dense(host_); }
  /// Whether the device left the padding between rows alone.
  bool padding_untouched(Sides& sides) const {
    const std::vector<float> values = sides.get(device_, host_.size(), dtype_);
    for (int row = 0; row < rows_; ++row) {
      for (std::int64_t i = cols_; i < stride_; ++i) {
        const float before = host_[row * stride_ + i], after = values[row * stride_ + i];
        if (before != after && !(std::isnan(before) && std::isnan(after))) return false;
      }
    }
    return true;
  }

 private:
  std::vector<float> dense(const std::vector<float>& strided) const {
    std::vector<float> values;
    values.reserve(std::size_t(rows_) * cols_);
    for (int row = 0; row < rows_; ++row) {
      const auto begin = strided.begin() + static_cast<std::ptrdiff_t>(row * stride_);
      values.insert(values.end(), begin, begin + cols_);
    }
    return values;
  }

  DType dtype_;
  int rows_, cols_;
  std::int64_t stride_;
  std::vector<float> host_;
  Buffer device_;
};

}  // namespace fastspec::gpu_check
