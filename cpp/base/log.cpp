// Log level from the environment, and the one place that writes to stderr.
#include "base/log.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace fastspec {

namespace {

constexpr const char* kNames[] = {"error", "warning", "info", "debug"};

LogLevel level_from_environment() {
  const char* value = std::getenv("FASTSPEC_LOG");
  if (value == nullptr) return LogLevel::kWarning;
  for (int level = 0; level < 4; ++level) {
    if (std::string_view(value) == kNames[level]) return static_cast<LogLevel>(level);
  }
  std::fprintf(stderr, "[fastspec warning] FASTSPEC_LOG=%s is none of error, warning, info, debug: using warning\n",
               value);
  return LogLevel::kWarning;
}

}  // namespace

bool log_enabled(LogLevel level) noexcept {
  static const LogLevel threshold = level_from_environment();
  return level <= threshold;
}

void write_log(LogLevel level, std::string_view message) {
  std::string line = "[fastspec ";
  line += kNames[static_cast<int>(level)];
  line += "] ";
  line += message;
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace fastspec
