// printf into a string, for the tables that commands print.
#pragma once

#include <string>

namespace fastspec::cli {

/// At most 511 characters.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

}  // namespace fastspec::cli
