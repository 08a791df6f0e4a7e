// Errors for people: one line on standard error.
#pragma once

#include <string>
#include <string_view>

namespace fastspec::cli {

/// Text that cannot act on a terminal: line ends become spaces, other control characters and bytes that are no UTF-8
/// become \xNN. Cut where it is longer than a few thousand bytes.
std::string printable(std::string_view text);

/// Prints "fastspec-cli: message" and returns the exit code.
int report(const std::string& message, int code);

}  // namespace fastspec::cli
