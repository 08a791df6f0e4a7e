// One-line diagnostics to stderr, filtered by FASTSPEC_LOG (error, warning, info, debug; default warning). No state but
// the level.
#pragma once

#include <sstream>
#include <string_view>

namespace fastspec {

enum class LogLevel { kError, kWarning, kInfo, kDebug };

/// True when messages of this level are printed.
bool log_enabled(LogLevel level) noexcept;
void write_log(LogLevel level, std::string_view message);

template <typename... Parts>
void log(LogLevel level, const Parts&... parts) {
  if (!log_enabled(level)) return;
  std::ostringstream message;
  (message << ... << parts);
  write_log(level, message.str());
}

}  // namespace fastspec
