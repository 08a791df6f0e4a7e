// UTF-8 by table-free state machines; the well-formed byte ranges are those of the Unicode standard, table 3-7.
#include "text/unicode.h"

#include <cstring>

namespace fastspec::text {

void append_utf8(std::string& text, char32_t c) {
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += static_cast<char>(0xC0 | (c >> 6));
    text += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    text += static_cast<char>(0xE0 | (c >> 12));
    text += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    text += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    text += static_cast<char>(0xF0 | (c >> 18));
    text += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    text += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    text += static_cast<char>(0x80 | (c & 0x3F));
  }
}

char32_t next_code_point(std::string_view text, std::size_t& position) {
  const auto byte = [&](std::size_t offset) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[position + offset]));
  };
  const char32_t lead = byte(0);
  char32_t result = lead;
  std::size_t length = 1;
  if (lead >= 0xF0) {
    result = ((lead & 0x07) << 18) | ((byte(1) & 0x3F) << 12) | ((byte(2) & 0x3F) << 6) | (byte(3) & 0x3F);
    length = 4;
  } else if (lead >= 0xE0) {
    result = ((lead & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F);
    length = 3;
  } else if (lead >= 0xC0) {
    result = ((lead & 0x1F) << 6) | (byte(1) & 0x3F);
    length = 2;
  }
  position += length;
  return result;
}

std::size_t previous_boundary(std::string_view text, std::size_t position) {
  do {
    --position;
  } while (position > 0 && (static_cast<unsigned char>(text[position]) & 0xC0) == 0x80);
  return position;
}

bool is_white_space(char32_t c) {
  if (c <= 0x20) return c == 0x20 || (c >= 0x09 && c <= 0x0D);
  if (c < 0x1680) return c == 0x85 || c == 0xA0;
  return c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

void Utf8Repair::push_byte(unsigned char byte, std::string& out) {
  if (num_needed_ > 0) {
    if (byte >= lowest_ && byte <= highest_) {
      waiting_[num_waiting_++] = static_cast<char>(byte);
      lowest_ = 0x80;
      highest_ = 0xBF;
      if (--num_needed_ == 0) {
        out.append(waiting_, static_cast<std::size_t>(num_waiting_));
        num_waiting_ = 0;
      }
      return;
    }
    finish(out);  // the character broke off; this byte starts anew
  }
  if (byte < 0x80) {
    out += static_cast<char>(byte);
    return;
  }
  if (byte < 0xC2 || byte > 0xF4) {
    out += kReplacementCharacter;
    return;
  }
  num_needed_ = static_cast<int>(utf8_length(byte)) - 1;
  lowest_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
  highest_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
  waiting_[num_waiting_++] = static_cast<char>(byte);
}

void Utf8Repair::push(std::string_view bytes, std::string& out) {
  for (char c : bytes) push_byte(static_cast<unsigned char>(c), out);
}

void Utf8Repair::finish(std::string& out) {
  if (num_needed_ > 0) out += kReplacementCharacter;
  num_needed_ = num_waiting_ = 0;
  lowest_ = 0x80;
  highest_ = 0xBF;
}

std::size_t valid_utf8_prefix(std::string_view text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  std::size_t i = 0;
  while (i < text.size()) {
    if (bytes[i] < 0x80) {
      std::uint64_t eight = 0;
      while (i + 8 <= text.size()) {
        std::memcpy(&eight, bytes + i, 8);
        if ((eight & 0x8080808080808080ULL) != 0) break;
        i += 8;
      }
      while (i < text.size() && bytes[i] < 0x80) ++i;
      continue;
    }
    const unsigned char lead = bytes[i];
    if (lead < 0xC2 || lead > 0xF4) return i;
    const std::size_t length = utf8_length(lead);
    if (i + length > text.size()) return i;
    const unsigned char lowest = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned char highest = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (bytes[i + 1] < lowest || bytes[i + 1] > highest) return i;
    for (std::size_t k = 2; k < length; ++k) {
      if ((bytes[i + k] & 0xC0) != 0x80) return i;
    }
    i += length;
  }
  return i;
}

std::string repair_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  Utf8Repair repair;
  repair.push(text, result);
  repair.finish(result);
  return result;
}

}  // namespace fastspec::text
