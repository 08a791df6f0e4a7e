// Strings the way Python sees them: by characters, with Unicode white space. UTF-8 in and out.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fastspec::cli::jinja {

/// Without the white space (as str.isspace() has it) at one or both ends.
std::string strip(std::string_view text, bool left, bool right);
/// The same, for a set of characters.
std::string strip(std::string_view text, bool left, bool right, std::string_view characters);
/// The characters of a text, as parts of it; a byte that is no UTF-8 is one.
std::vector<std::string_view> characters(std::string_view text);
std::size_t count_characters(std::string_view text);
/// One of them; empty behind the last.
std::string_view character_at(std::string_view text, std::size_t index);
/// Where a part begins, or npos; in time proportional to both lengths, whatever they hold.
std::size_t find(std::string_view text, std::string_view part);
/// The value of a string literal's inside; nullopt for an escape that is not known.
std::optional<std::string> unescape(std::string_view text);
/// All occurrences replaced.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);
/// Pieces between occurrences of a separator, which must not be empty, as parts of the text.
std::vector<std::string_view> split(std::string_view text, std::string_view separator);

}  // namespace fastspec::cli::jinja
