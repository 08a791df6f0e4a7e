// The alphabet of byte-level BPE: 256 printable characters that stand for the 256 bytes (GPT-2). Knows no tokens.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fastspec::text {

/// Appends the characters that stand for the bytes.
void append_byte_characters(std::string_view bytes, std::string& out);

/// Appends the bytes that a token's characters stand for; a token with any other character is taken as it is (added
/// tokens spelled in plain text, for instance).
void append_token_bytes(std::string_view token, std::string& out);

}  // namespace fastspec::text
