// The one exception type that crosses the library's surface. Must not depend on anything but the standard library.
#pragma once

#include <stdexcept>
#include <string>

namespace fastspec {

enum class ErrorCode {
  kInvalidArgument,  // an option, request or call that cannot be honoured
  kNotFound,         // a file or tensor that should be there and is not
  kInvalidFile,      // a file that is truncated, malformed or contradicts itself
  kUnsupported,      // well formed, but something this build does not do
  kOutOfMemory,      // a budget that cannot hold what was asked for
  kDeviceFailure,    // the device failed; the engine refuses every later call
  kInternal,         // a broken invariant: a bug in fastspec
};

/// Name of a code, for messages and bindings: "invalid_argument", "not_found", ...
const char* to_string(ErrorCode code) noexcept;

/// Thrown by every function of the library that fails. `what()` names the file, tensor, field or option at fault and
/// the values seen.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace fastspec
