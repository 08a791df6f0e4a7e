// Makes messages, which quote files and arguments of strangers, fit for a terminal.
#include "cli/report.h"

#include <cstdint>
#include <cstdio>

namespace fastspec::cli {
namespace {

constexpr std::size_t kMaxBytes = 4096;

/// Bytes of the printable character that a text begins with; 0 for a control character or no UTF-8.
std::size_t printable_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return first >= 0x20 && first != 0x7F ? 1 : 0;
  const std::size_t length = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  if (length == 0 || length > text.size()) return 0;
  std::uint32_t code = first & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte & 0x3Fu);
  }
  static constexpr std::uint32_t kFirst[] = {0, 0, 0xA0, 0x800, 0x10000};  // U+0080 to U+009F are controls too
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  return code < kFirst[length] || code > 0x10FFFF || surrogate ? 0 : length;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty() && result.size() < kMaxBytes) {
    const std::size_t length = printable_length(text);
    if (length > 0) {
      result += text.substr(0, length);
    } else if (text[0] == '\n') {
      result += ' ';
    } else {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(text[0])));
      result += escape;
    }
    text.remove_prefix(length > 0 ? length : 1);
  }
  return text.empty() ? result : result + "...";
}

int report(const std::string& message, int code) {
  std::fprintf(stderr, "fastspec-cli: %s\n", printable(message).c_str());
  return code;
}

}  // namespace fastspec::cli
