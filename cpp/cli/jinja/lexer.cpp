// The lexer: text outside tags, then the words inside them.
#include "cli/jinja/lexer.h"

#include <fastspec/error.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "cli/jinja/text.h"

namespace fastspec::cli::jinja {
namespace {

constexpr std::size_t kMaxSourceBytes = 1 << 20;
constexpr std::size_t kMaxNameBytes = 256;  // names are compared and copied often

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const std::size_t tag = find_tag();
      read_text(tag);
      if (tag == std::string::npos) break;
      read_tag();
    }
    add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kInvalidFile, "template, line " + std::to_string(line_) + ": " + what);
  }

  void add(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  bool starts_with(std::string_view word) const { return std::string_view(source_).substr(at_).starts_with(word); }

  void advance(std::size_t count) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + count), '\n'));
    at_ += count;
    line_starting_ = count == 0 ? line_starting_ : source_[at_ - 1] == '\n';
  }

  void skip_space() {
    while (at_ < source_.size()) {
      std::size_t length = 1;
      while (at_ + length < source_.size() && (static_cast<unsigned char>(source_[at_ + length]) & 0xC0) == 0x80)
        ++length;
      if (!strip(std::string_view(source_).substr(at_, length), true, false).empty()) return;
      advance(length);
    }
  }

  std::size_t find_tag() const {
    for (std::size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' && (source_[i + 1] == '%' || source_[i + 1] == '{' || source_[i + 1] == '#')) return i;
    }
    return std::string::npos;
  }

  /// Text up to a tag, without the white space that the tag removes.
  void read_text(std::size_t tag) {
    const bool line_starting = line_starting_;
    const std::size_t end = tag == std::string::npos ? source_.size() : tag;
    std::string text = source_.substr(at_, end - at_);
    if (tag != std::string::npos) {
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
      if (sign == '-') {
        text = strip(text, false, true);
      } else if (sign != '+' && source_[tag + 1] != '{') {
        const std::size_t newline = text.rfind('\n');
        const std::size_t line_begin = newline == std::string::npos ? 0 : newline + 1;
        const bool begins_line = newline != std::string::npos || line_starting;
        if (begins_line && strip(std::string_view(text).substr(line_begin), true, true).empty())
          text.resize(line_begin);
      }
    }
    if (!text.empty()) add(Token::Kind::kText, text);
    if (end > at_) advance(end - at_);
  }

  void read_tag() {
    const char type = source_[at_ + 1];
    advance(2);
    if (at_ < source_.size() && (source_[at_] == '-' || (source_[at_] == '+' && type != '{'))) advance(1);
    if (type == '#') return read_comment();
    add(type == '%' ? Token::Kind::kBlockBegin : Token::Kind::kOutputBegin, "");
    const std::string close = type == '%' ? "%}" : "}}";
    int depth = 0;  // "}}" may end two dicts instead of the tag
    while (true) {
      skip_space();
      if (at_ >= source_.size()) fail("a tag that does not end");
      if (depth == 0 && ends_tag(close)) break;
      read_word(depth);
    }
    add(type == '%' ? Token::Kind::kBlockEnd : Token::Kind::kOutputEnd, "");
    leave_tag(close, type == '%');
  }

  bool ends_tag(const std::string& close) const {
    return starts_with(close) || starts_with("-" + close) || (close == "%}" && starts_with("+%}"));
  }

  /// Steps over the end of a tag and the white space that it removes.
  void leave_tag(const std::string& close, bool removes_newline) {
    if (starts_with("-" + close)) {
      advance(1 + close.size());
      skip_space();
    } else if (starts_with("+" + close)) {
      advance(1 + close.size());
    } else {
      advance(close.size());
      if (removes_newline && starts_with("\n")) advance(1);
    }
  }

  void read_comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail("a comment that does not end");
    const bool sign = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+');
    advance(end - at_ - (sign ? 1 : 0));
    leave_tag("#}", true);
  }

  void read_word(int& depth) {
    const char first = source_[at_];
    if (std::isalpha(static_cast<unsigned char>(first)) != 0 || first == '_') return read_name();
    if (std::isdigit(static_cast<unsigned char>(first)) != 0) return read_number();
    if (first == '"' || first == '\'') return read_string();
    static constexpr std::array<std::string_view, 5> kLong = {"==", "!=", "<=", ">=", "//"};
    for (const std::string_view word : kLong) {
      if (starts_with(word)) {
        add(Token::Kind::kOperator, std::string(word));
        return advance(2);
      }
    }
    if (std::string_view("+-*/%<>=.,:|~()[]{}").find(first) == std::string_view::npos) {
      fail(std::string("unexpected character \"") + first + "\"");
    }
    if (first == '(' || first == '[' || first == '{') ++depth;
    if ((first == ')' || first == ']' || first == '}') && --depth < 0) fail("a bracket too many");
    add(Token::Kind::kOperator, std::string(1, first));
    advance(1);
  }

  void read_name() {
    std::size_t end = at_;
    while (end < source_.size() &&
           (std::isalnum(static_cast<unsigned char>(source_[end])) != 0 || source_[end] == '_')) {
      ++end;
    }
    if (end - at_ > kMaxNameBytes) fail("a name of " + std::to_string(end - at_) + " bytes: too long");
    add(Token::Kind::kName, source_.substr(at_, end - at_));
    advance(end - at_);
  }

  void read_number() {
    const auto digits = [this](std::size_t from) {
      while (from < source_.size() && std::isdigit(static_cast<unsigned char>(source_[from])) != 0) ++from;
      return from;
    };
    std::size_t end = digits(at_);
    const bool fraction = end + 1 < source_.size() && source_[end] == '.' && digits(end + 1) > end + 1;
    if (fraction) end = digits(end + 1);
    add(fraction ? Token::Kind::kFloat : Token::Kind::kInteger, source_.substr(at_, end - at_));
    advance(end - at_);
  }

  void read_string() {
    const char quote = source_[at_];
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("a string that does not end");
    const auto value = unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1));
    if (!value) fail("an escape sequence that is not known");
    add(Token::Kind::kString, *value);
    advance(end + 1 - at_);
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

/// One newline convention, and without the last newline: what jinja2 does to a source.
std::string normalize(std::string_view source) {
  std::string text;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else if (i + 1 >= source.size() || source[i + 1] != '\n') {
      text += '\n';
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    throw Error(ErrorCode::kInvalidFile, "template of " + std::to_string(source.size()) + " bytes: too long");
  }
  return Lexer(normalize(source)).run();
}

}  // namespace fastspec::cli::jinja
