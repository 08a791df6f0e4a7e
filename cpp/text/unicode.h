// UTF-8 in and out, and the one character class that the reference tokenizer hard-codes. Knows no tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fastspec::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

/// Appends one code point as UTF-8.
void append_utf8(std::string& text, char32_t code_point);

/// Decodes the code point that starts at `position` of valid UTF-8 and moves `position` past it.
char32_t next_code_point(std::string_view text, std::size_t& position);

/// Start of the code point that ends at `position` (> 0) of valid UTF-8.
std::size_t previous_boundary(std::string_view text, std::size_t position);

/// Number of bytes of the character that a lead byte of valid UTF-8 announces.
inline std::size_t utf8_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xE0) return 2;
  return lead < 0xF0 ? 3 : 4;
}

/// Length of the longest prefix that is valid UTF-8.
std::size_t valid_utf8_prefix(std::string_view text);

/// Unicode property White_Space: what Rust's char::is_whitespace and Oniguruma's \s accept.
bool is_white_space(char32_t code_point);

/// Turns a stream of bytes into valid UTF-8. Every maximal ill-formed part becomes one U+FFFD (the Unicode
/// recommendation, which Rust and Python follow too); the start of a character waits for its end.
class Utf8Repair {
 public:
  /// Appends to `out` what is certain after these bytes.
  void push(std::string_view bytes, std::string& out);
  /// Ends the stream: an unfinished character becomes U+FFFD.
  void finish(std::string& out);

 private:
  void push_byte(unsigned char byte, std::string& out);

  char waiting_[4] = {};
  int num_waiting_ = 0;
  int num_needed_ = 0;           // continuation bytes still to come
  unsigned char lowest_ = 0x80;  // range of the next continuation byte (narrower after E0, ED, F0, F4)
  unsigned char highest_ = 0xBF;
};

/// The whole text at once.
std::string repair_utf8(std::string_view text);

}  // namespace fastspec::text
