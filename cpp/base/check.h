// Throwing checks. FS_CHECK guards invariants of our own (a failure is a bug); fail() reports what a user gave.
#pragma once

#include <fastspec/error.h>

#include <sstream>
#include <string>

namespace fastspec {

/// Throws Error(code) with the parts streamed into one message.
template <typename... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Error(code, message.str());
}

namespace detail {
template <typename... Parts>
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const Parts&... parts) {
  fail(ErrorCode::kInternal, file, ":", line, ": check failed: ", condition, " ", parts...);
}
}  // namespace detail

}  // namespace fastspec

// Never compiled out: a broken invariant must surface as an exception in release builds too.
#define FS_CHECK(condition, ...)                                                                   \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      ::fastspec::detail::check_failed(__FILE__, __LINE__, #condition __VA_OPT__(, ) __VA_ARGS__); \
    }                                                                                              \
  } while (false)
