// Patterns of tokenizer.json: a literal string or a regular expression, searched for in valid UTF-8. Nothing else may
// include PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;

namespace fastspec {
class JsonView;
}

namespace fastspec::text {

/// Immutable, safe to share between threads; searching is done through a Finder.
class Pattern {
 public:
  /// Reads {"String": s} or {"Regex": r}. Errors at match time name the same field.
  /// @throws Error(kInvalidFile, kUnsupported)
  static Pattern from_json(const JsonView& json);
  static Pattern from_regex(std::string_view regex, const std::string& where);
  static Pattern from_literal(std::string text);

  /// The literal string, when it is one.
  const std::optional<std::string>& literal() const noexcept { return literal_; }
  /// File and field that it came from, for messages.
  const std::string& where() const noexcept { return where_; }

 private:
  friend class Finder;
  Pattern() = default;

  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const noexcept;
  };
  std::string where_;
  std::optional<std::string> literal_;
  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
};

/// Successive matches of a pattern, left to right, not overlapping; an empty match right behind another one is skipped.
/// The work of one search is limited in proportion to the text, so a hostile pattern ends in an error, not in a hang.
class Finder {
 public:
  using Match = std::pair<std::size_t, std::size_t>;  // begin and end in bytes

  explicit Finder(const Pattern& pattern);
  /// Starts over on another text, which must be valid UTF-8 and outlive the search.
  void reset(std::string_view text);
  /// The next match, or nothing. @throws Error(kInvalidFile) when the pattern exceeds its limits.
  std::optional<Match> next();

 private:
  std::optional<Match> search(std::size_t from);

  struct FreeMatch {
    void operator()(pcre2_real_match_data_8* data) const noexcept;
    void operator()(pcre2_real_match_context_8* context) const noexcept;
  };
  const Pattern& pattern_;
  std::string_view text_;
  std::size_t from_ = 0;
  std::optional<std::size_t> last_end_;
  std::unique_ptr<pcre2_real_match_data_8, FreeMatch> data_;
  std::unique_ptr<pcre2_real_match_context_8, FreeMatch> context_;
};

}  // namespace fastspec::text
