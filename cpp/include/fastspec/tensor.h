// Element types, shared by the public configuration and the backends. Holds no data and no device code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fastspec {

enum class DType : std::uint8_t { kFloat32, kBFloat16, kFloat16 };

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) noexcept {
  return dtype == DType::kFloat32 ? 4 : 2;
}

/// "float32", "bfloat16" or "float16".
const char* to_string(DType dtype) noexcept;

/// Accepts the names above and the safetensors spellings F32, BF16, F16.
/// @throws Error(kInvalidArgument) for any other name.
DType parse_dtype(std::string_view name);

}  // namespace fastspec
