// See format.h.
#include "cli/format.h"

#include <cstdarg>
#include <cstdio>

namespace fastspec::cli {

std::string format(const char* pattern, ...) {
  char text[512];
  std::va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof(text), pattern, arguments);
  va_end(arguments);
  return text;
}

}  // namespace fastspec::cli
