// Bytes that print as themselves in Latin-1 keep their code point; the others take U+0100 upwards in order.
#include "text/byte_alphabet.h"

#include <array>

#include "text/unicode.h"

namespace fastspec::text {

namespace {

constexpr int kNumShifted = 256 - 188;  // 188 bytes keep their code point

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<int, 256 + kNumShifted> byte{};  // by code point; -1 for those outside the alphabet
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (int& byte : alphabet.byte) byte = -1;
  char32_t shifted = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const char32_t character = printable ? static_cast<char32_t>(byte) : shifted++;
    alphabet.character[static_cast<std::size_t>(byte)] = character;
    alphabet.byte[character] = byte;
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

void append_byte_characters(std::string_view bytes, std::string& out) {
  for (char c : bytes) append_utf8(out, kAlphabet.character[static_cast<unsigned char>(c)]);
}

void append_token_bytes(std::string_view token, std::string& out) {
  const std::size_t before = out.size();
  for (std::size_t position = 0; position < token.size();) {
    const char32_t character = next_code_point(token, position);
    const int byte = character < kAlphabet.byte.size() ? kAlphabet.byte[character] : -1;
    if (byte < 0) {
      out.resize(before);
      out += token;
      return;
    }
    out += static_cast<char>(byte);
  }
}

}  // namespace fastspec::text
