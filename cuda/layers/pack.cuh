// Groups of elements that one memory access moves, the choice of their width, and the choice of an element type.
#pragma once

#include <cstdint>

#include "backend/params.h"
#include "common/element.cuh"

namespace fastspec::cuda {

/// kWidth elements, moved by one access of up to 16 bytes.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth <= 16 ? sizeof(T) * kWidth : 16) Pack {
  T value[kWidth];
};

/// Elements of T in 16 bytes.
template <typename T>
constexpr int kFullWidth = 16 / static_cast<int>(sizeof(T));

template <int kWidth, typename T>
__device__ __forceinline__ Pack<T, kWidth> load_pack(const T* source) {
  return *reinterpret_cast<const Pack<T, kWidth>*>(source);
}

template <int kWidth, typename T>
__device__ __forceinline__ void store_pack(T* destination, const Pack<T, kWidth>& pack) {
  *reinterpret_cast<Pack<T, kWidth>*>(destination) = pack;
}

/// First element of a row; Matrix::row() is for the host.
template <typename T>
__device__ __forceinline__ T* row_of(const Matrix& matrix, std::int64_t row) {
  return static_cast<T*>(matrix.data) + row * matrix.stride;
}

inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// Whether every row of a matrix is whole 16-byte packs.
inline bool has_full_packs(const Matrix& matrix) {
  const std::int64_t width = static_cast<std::int64_t>(16 / size_of(matrix.dtype));
  return is_aligned(matrix.data) && matrix.cols % width == 0 && matrix.stride % width == 0;
}

/// Calls function(T{}) with the element type of `dtype`.
template <typename Function>
void with_element(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::kFloat32:
      function(float{});
      return;
    case DType::kBFloat16:
      function(Bf16{});
      return;
    case DType::kFloat16:
      function(Fp16{});
      return;
  }
}

/// A number that is a type, so that a generic lambda can take it.
template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

/// with_element, and the width of packs: function(T{}, Constant<width>{}).
template <typename Function>
void with_packs(DType dtype, bool full, Function&& function) {
  with_element(dtype, [&](auto element) {
    if (full) {
      function(element, Constant<kFullWidth<decltype(element)>>{});
    } else {
      function(element, Constant<1>{});
    }
  });
}

inline int ceil_div(std::int64_t value, int divisor) {
  return static_cast<int>((value + divisor - 1) / divisor);
}

}  // namespace fastspec::cuda
