// A scanner over the pattern's characters; it knows only whether it stands inside a character class.
#include "text/regex_syntax.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "io/json.h"

namespace fastspec::text {

namespace {

constexpr std::string_view kSpace =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr std::string_view kNotSpace =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}";
// Oniguruma's \w: letters, marks, decimal and letter numbers, connectors, circled letters, and the Latin-1 digits.
constexpr std::string_view kWord =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}"
    "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
bool is_alnum(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (position_ < pattern_.size()) {
      if (in_class_) {
        class_item();
      } else {
        item();
      }
    }
    if (in_class_) refuse("unterminated character class");
    return std::move(out_);
  }

 private:
  char peek(std::size_t offset = 0) const {
    return position_ + offset < pattern_.size() ? pattern_[position_ + offset] : '\0';
  }
  bool starts_with(std::string_view text) const { return pattern_.substr(position_).starts_with(text); }

  [[noreturn]] void refuse(std::string_view construct) const {
    fail(ErrorCode::kUnsupported, where_, ": regular expression \"", shown(pattern_), "\": ", shown(construct, 40),
         " at byte ", position_, " is not supported");
  }

  void copy(std::size_t count) {
    out_ += pattern_.substr(position_, count);
    position_ += count;
  }

  void item() {
    switch (peek()) {
      case '\\':
        escape();
        return;
      case '[':
        open_class();
        return;
      case '(':
        open_group();
        return;
      case '{':
        interval();
        return;
      default:
        copy(1);
    }
  }

  void open_class() {
    copy(1);
    if (peek() == '^') copy(1);
    if (peek() == ']') refuse("empty character class");
    in_class_ = true;
    after_set_ = false;
  }

  void class_item() {
    const char c = peek();
    const bool after_set = after_set_;
    after_set_ = false;
    if (c == '\\') {
      escape();
    } else if (c == ']') {
      copy(1);
      in_class_ = false;
    } else if (c == '[') {
      refuse("[ inside a character class");
    } else if (c == '&' && peek(1) == '&') {
      refuse("&& inside a character class");
    } else {
      if (c == '-' && after_set) out_ += '\\';  // a literal dash, which must not join the expanded set into a range
      copy(1);
    }
  }

  void emit_set(std::string_view items, bool negated) {
    if (!in_class_) out_ += negated ? "[^" : "[";
    out_ += items;
    if (!in_class_) out_ += ']';
    after_set_ = in_class_;
    position_ += 2;
  }

  void escape() {
    const char c = peek(1);
    if (c == 's') return emit_set(kSpace, false);
    if (c == 'S') return in_class_ ? emit_set(kNotSpace, false) : emit_set(kSpace, true);
    if (c == 'w') return emit_set(kWord, false);
    if (c == 'W' && !in_class_) return emit_set(kWord, true);
    if (c == 'd') return emit_property("\\p{Nd}");
    if (c == 'D') return emit_property("\\P{Nd}");
    if (c == 'p' || c == 'P') return property();
    if (c == 'x' || c == 'u') return code_point();
    if (c == 'v') {
      out_ += "\\x{b}";
      position_ += 2;
      return;
    }
    const bool control = c != '\0' && std::strchr("nrtfae", c) != nullptr;
    const bool anchor = !in_class_ && c != '\0' && std::strchr("AzZ", c) != nullptr;
    const bool punctuation = c > ' ' && c < 0x7F && !is_alnum(c);
    if (!control && !anchor && !punctuation && c != ' ') refuse(pattern_.substr(position_, 2));
    copy(2);
  }

  void emit_property(std::string_view property_text) {
    out_ += property_text;
    position_ += 2;
    after_set_ = in_class_;
  }

  void property() {
    const std::size_t end = pattern_.find('}', position_);
    if (peek(2) != '{' || end == std::string_view::npos) refuse("\\p without {name}");
    std::string_view name = pattern_.substr(position_ + 3, end - position_ - 3);
    bool negated = peek(1) == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    const bool plain =
        !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return is_alnum(c) || c == '_'; });
    if (!plain) refuse("\\p{" + std::string(name) + "}");
    // Names of one or two letters are general categories, longer ones scripts. PCRE2 would take a bare script name as
    // "used in this script", which holds shared punctuation too.
    out_ += negated ? "\\P{" : "\\p{";
    if (name.size() > 2) out_ += "sc:";
    out_ += name;
    out_ += '}';
    position_ = end + 1;
    after_set_ = in_class_;
  }

  /// \xHH (below 80), \x{H...} and \uHHHH, all spelled \x{H...} for PCRE2.
  void code_point() {
    std::string digits;
    std::size_t length = 2;
    if (peek(1) == 'x' && peek(2) == '{') {
      for (length = 3; is_hex(peek(length)); ++length) digits += peek(length);
      if (peek(length++) != '}') digits.clear();
    } else {
      const std::size_t count = peek(1) == 'x' ? 2 : 4;
      for (; digits.size() < count && is_hex(peek(length)); ++length) digits += peek(length);
      if (digits.size() < count || (count == 2 && digits[0] > '7')) digits.clear();
    }
    if (digits.empty() || digits.size() > 6) refuse(pattern_.substr(position_, length));
    out_ += "\\x{" + digits + "}";
    position_ += length;
  }

  void open_group() {
    if (peek(1) == '*') refuse("(*");
    if (peek(1) != '?') return copy(1);
    for (std::string_view opening : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
      if (starts_with(opening)) return copy(opening.size());
    }
    std::string flags;
    std::size_t length = 2;
    for (; peek(length) == 'i' || peek(length) == 'm' || peek(length) == '-'; ++length) {
      flags += peek(length) == 'm' ? 's' : peek(length);
    }
    const bool scoped = peek(length) == ':';
    const bool leading = peek(length) == ')' && position_ == 0;  // elsewhere Ruby and PCRE2 differ in the extent
    if (flags.empty() || !(scoped || leading)) refuse(pattern_.substr(position_, length + 1));
    out_ += "(?" + flags + peek(length);
    position_ += length + 1;
  }

  /// {n}, {n,}, {,n} and {n,m}; any other brace is literal.
  void interval() {
    std::size_t length = 1;
    std::string low, high;
    for (; is_digit(peek(length)); ++length) low += peek(length);
    const bool comma = peek(length) == ',';
    if (comma) ++length;
    for (; comma && is_digit(peek(length)); ++length) high += peek(length);
    if (peek(length) != '}' || (low.empty() && high.empty())) {
      out_ += "\\{";
      ++position_;
      return;
    }
    ++length;
    if (peek(length) == '+') refuse("{n,m}+");
    if (peek(length) == '?' && !comma) refuse("{n}?");
    out_ += "{" + (low.empty() ? "0" : low) + (comma ? "," + high : "") + "}";
    position_ += length;
  }

  std::string_view pattern_;
  const std::string& where_;
  std::string out_;
  std::size_t position_ = 0;
  bool in_class_ = false;
  bool after_set_ = false;  // inside a class, right behind an escape that stands for several characters
};

}  // namespace

std::string translate_regex(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

}  // namespace fastspec::text
