// Translation of regular expressions from the dialect of tokenizer.json (Oniguruma, Ruby syntax) to PCRE2's. Compiles
// and matches nothing.
#pragma once

#include <string>
#include <string_view>

namespace fastspec::text {

/// Inside of a character class: what \w means in the places where the reference uses Rust's regular expressions
/// instead.
inline constexpr std::string_view kRustWordClass =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200c}\\x{200d}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}"
    "\\x{1f170}-\\x{1f189}";

/// The PCRE2 pattern (options UTF, UCP, MULTILINE; newline LF) that matches what `pattern` matches under Oniguruma.
///
/// Where the dialects agree the text is kept. Differences handled: \s and \w (PCRE2's \s holds U+180E, its \w lacks
/// marks),
/// (?m:...) (dot matches newline, PCRE2's (?s:...)), {,n}, \v, \uHHHH. Constructs whose meaning differs in ways that a
/// pattern cannot express are refused instead of matching something else: \b, \h, \R and other escapes, back
/// references, nested classes and &&, {n,m}+ (not possessive in Ruby), {n}? (optional in Ruby), (?x), named groups,
/// inline flags after the start. Letters, digits and other \p{..} follow the Unicode version of the linked PCRE2.
/// @param where file and field, the start of every error message.
/// @throws Error(kUnsupported) naming the construct.
std::string translate_regex(std::string_view pattern, const std::string& where);

}  // namespace fastspec::text
