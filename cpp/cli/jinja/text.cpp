// UTF-8 by hand: the program links no Unicode library.
#include "cli/jinja/text.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>

namespace fastspec::cli::jinja {
namespace {

std::size_t length_of_character(std::string_view text, std::size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  const std::size_t length = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
  return std::min(length, text.size() - at);
}

bool is_space(std::string_view character) {
  if (character.size() == 1) {
    const auto byte = static_cast<unsigned char>(character[0]);
    return (byte >= 0x09 && byte <= 0x0D) || (byte >= 0x1C && byte <= 0x20);
  }
  // NEL, no-break space; Ogham, en quad to hair space, separators, narrow and medium spaces, ideographic space.
  if (character == "\xC2\x85" || character == "\xC2\xA0" || character == "\xE1\x9A\x80") return true;
  if (character == "\xE2\x80\xA8" || character == "\xE2\x80\xA9" || character == "\xE2\x80\xAF") return true;
  if (character == "\xE2\x81\x9F" || character == "\xE3\x80\x80") return true;
  return character.size() == 3 && character.starts_with("\xE2\x80") && static_cast<unsigned char>(character[2]) <= 0x8A;
}

template <typename Predicate>
std::string strip_if(std::string_view text, bool left, bool right, Predicate removed) {
  if (left) {
    while (!text.empty()) {
      const std::size_t length = length_of_character(text, 0);
      if (!removed(text.substr(0, length))) break;
      text.remove_prefix(length);
    }
  }
  while (right && !text.empty()) {
    std::size_t begin = text.size() - 1;
    while (begin > 0 && text.size() - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!removed(text.substr(begin))) break;
    text.remove_suffix(text.size() - begin);
  }
  return std::string(text);
}

void append_utf8(std::string& text, std::uint32_t code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
  } else if (code < 0x10000) {
    text += {static_cast<char>(0xE0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3F)),
             static_cast<char>(0x80 | (code & 0x3F))};
  } else {
    text += {static_cast<char>(0xF0 | (code >> 18)), static_cast<char>(0x80 | ((code >> 12) & 0x3F)),
             static_cast<char>(0x80 | ((code >> 6) & 0x3F)), static_cast<char>(0x80 | (code & 0x3F))};
  }
}

/// The character of \xXX, \uXXXX or \UXXXXXXXX, whose digits begin at `at`; moves `at` behind them.
std::optional<std::uint32_t> read_code(std::string_view text, std::size_t& at, std::size_t digits) {
  std::uint32_t code = 0;
  if (at + digits > text.size()) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + at + digits, code, 16);
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  if (error != std::errc() || end != text.data() + at + digits || code > 0x10FFFF || surrogate) return std::nullopt;
  at += digits;
  return code;
}

}  // namespace

std::string strip(std::string_view text, bool left, bool right) {
  return strip_if(text, left, right, is_space);
}

std::string strip(std::string_view text, bool left, bool right, std::string_view set) {
  const std::vector<std::string_view> removed = characters(set);
  return strip_if(text, left, right, [&](std::string_view character) {
    return std::find(removed.begin(), removed.end(), character) != removed.end();
  });
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> result;
  for (std::size_t at = 0; at < text.size(); at += result.back().size()) {
    result.push_back(text.substr(at, length_of_character(text, at)));
  }
  return result;
}

std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); at += length_of_character(text, at)) ++count;
  return count;
}

std::string_view character_at(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  while (at < text.size() && index-- > 0) at += length_of_character(text, at);
  return at < text.size() ? text.substr(at, length_of_character(text, at)) : std::string_view();
}

std::size_t find(std::string_view text, std::string_view part) {
  // Not std::string::find, whose time is the product of the lengths.
  const void* const found = memmem(text.data(), text.size(), part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::optional<std::string> unescape(std::string_view text) {
  static constexpr std::string_view kLetters = "ntrabfv\\'\"";
  static constexpr std::string_view kValues = "\n\t\r\a\b\f\v\\'\"";
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] != '\\' || at + 1 >= text.size()) {
      result += text[at++];
      continue;
    }
    const char letter = text[at + 1];
    at += 2;
    if (const std::size_t known = kLetters.find(letter); known != std::string_view::npos) {
      result += kValues[known];
    } else if (letter == '\n') {
      // an escaped end of line is nothing
    } else if (letter == 'x' || letter == 'u' || letter == 'U') {
      const auto code = read_code(text, at, letter == 'x' ? 2 : letter == 'u' ? 4 : 8);
      if (!code) return std::nullopt;
      append_utf8(result, *code);
    } else if ((letter >= '0' && letter <= '7') || letter == 'N') {
      return std::nullopt;
    } else {
      result += {'\\', letter};
    }
  }
  return result;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (std::size_t found = 0; (found = find(text, from)) != std::string_view::npos;) {
    result.append(text.substr(0, found)).append(to);
    text.remove_prefix(found + from.size());
  }
  return result.append(text);
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> pieces;
  while (true) {
    const std::size_t found = find(text, separator);
    pieces.push_back(text.substr(0, found));
    if (found == std::string_view::npos) return pieces;
    text.remove_prefix(found + separator.size());
  }
}

}  // namespace fastspec::cli::jinja
