// Spellings of the public enums that have no home of their own.
#include <fastspec/error.h>
#include <fastspec/tensor.h>
#include <fastspec/version.h>

#include "base/check.h"

namespace fastspec {

const char* to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kInvalidFile:
      return "invalid_file";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kOutOfMemory:
      return "out_of_memory";
    case ErrorCode::kDeviceFailure:
      return "device_failure";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

const char* to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
  }
  return "unknown";
}

DType parse_dtype(std::string_view name) {
  if (name == "float32" || name == "F32") return DType::kFloat32;
  if (name == "bfloat16" || name == "BF16") return DType::kBFloat16;
  if (name == "float16" || name == "F16") return DType::kFloat16;
  fail(ErrorCode::kInvalidArgument, "dtype \"", name, "\": expected float32, bfloat16 or float16");
}

const char* version() noexcept {
  return FASTSPEC_VERSION;
}

}  // namespace fastspec
