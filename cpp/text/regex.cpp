// PCRE2 behind Pattern and Finder. Patterns come from files, so sizes and work are limited everywhere.
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "io/json.h"
#include "text/regex_syntax.h"
#include "text/unicode.h"

namespace fastspec::text {

namespace {

constexpr std::size_t kMaxPatternBytes = 64 << 10;
constexpr std::uint32_t kBaseMatchLimit = 20'000;  // backtracking steps of one search, and ...
constexpr std::uint64_t kMatchLimitPerByte = 16;   // ... as many again for every byte ahead
constexpr std::uint32_t kHeapLimitKiB = 64 << 10;

std::string message_of(int error) {
  PCRE2_UCHAR buffer[256];
  const int length = pcre2_get_error_message(error, buffer, sizeof(buffer));
  if (length < 0) return "error " + std::to_string(error);
  return std::string(reinterpret_cast<const char*>(buffer), static_cast<std::size_t>(length));
}

}  // namespace

void Pattern::FreeCode::operator()(pcre2_real_code_8* code) const noexcept {
  pcre2_code_free(code);
}
void Finder::FreeMatch::operator()(pcre2_real_match_data_8* data) const noexcept {
  pcre2_match_data_free(data);
}
void Finder::FreeMatch::operator()(pcre2_real_match_context_8* context) const noexcept {
  pcre2_match_context_free(context);
}

Pattern Pattern::from_json(const JsonView& json) {
  const std::vector<std::string> names = json.names();
  if (names.size() != 1 || (names[0] != "String" && names[0] != "Regex")) {
    json.refuse(ErrorCode::kUnsupported, "expected a pattern {\"String\": ...} or {\"Regex\": ...}");
  }
  const JsonView text = json.at(names[0]);
  if (text.as_string().empty()) text.refuse(ErrorCode::kInvalidFile, "the pattern is empty");
  const std::string where = text.file() + ": field \"" + text.field() + "\"";
  if (names[0] == "Regex") return from_regex(text.as_string(), where);
  Pattern pattern = from_literal(text.as_string());
  pattern.where_ = where;
  return pattern;
}

Pattern Pattern::from_literal(std::string text) {
  Pattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

Pattern Pattern::from_regex(std::string_view regex, const std::string& where) {
  if (regex.size() > kMaxPatternBytes) {
    fail(ErrorCode::kUnsupported, where, ": regular expression of ", regex.size(), " bytes, more than ",
         kMaxPatternBytes);
  }
  const std::string translated = translate_regex(regex, where);
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  FS_CHECK(context != nullptr);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Pattern pattern;
  pattern.where_ = where;
  pattern.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, context.get()));
  if (pattern.code_ == nullptr) {
    fail(ErrorCode::kInvalidFile, where, ": regular expression \"", shown(regex), "\": ", message_of(error));
  }
  // Without JIT support in the library, or for a pattern it cannot take, the interpreter answers the same.
  pcre2_jit_compile(pattern.code_.get(), PCRE2_JIT_COMPLETE);
  return pattern;
}

Finder::Finder(const Pattern& pattern) : pattern_(pattern) {
  if (pattern.literal_) return;
  data_.reset(pcre2_match_data_create(1, nullptr));
  context_.reset(pcre2_match_context_create(nullptr));
  FS_CHECK(data_ != nullptr && context_ != nullptr);
  pcre2_set_heap_limit(context_.get(), kHeapLimitKiB);
}

void Finder::reset(std::string_view text) {
  text_ = text;
  from_ = 0;
  last_end_.reset();
}

std::optional<Finder::Match> Finder::search(std::size_t from) {
  const std::uint64_t limit = kBaseMatchLimit + kMatchLimitPerByte * (text_.size() - from);
  pcre2_set_match_limit(context_.get(), static_cast<std::uint32_t>(std::min<std::uint64_t>(limit, UINT32_MAX)));
  const auto match = [&](std::uint32_t options) {
    return pcre2_match(pattern_.code_.get(), reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), from,
                       PCRE2_NO_UTF_CHECK | options, data_.get(), context_.get());
  };
  int result = match(0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) {
    fail(ErrorCode::kInvalidFile, pattern_.where_, ": regular expression gave up on ", text_.size() - from,
         " bytes of text: ", message_of(result));
  }
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data_.get());
  return Match{range[0], std::max(range[0], range[1])};
}

std::optional<Finder::Match> Finder::next() {
  if (pattern_.literal_) {
    const std::size_t begin = text_.find(*pattern_.literal_, from_);
    if (begin == std::string_view::npos) return std::nullopt;
    from_ = begin + pattern_.literal_->size();
    return Match{begin, from_};
  }
  while (from_ <= text_.size()) {
    const std::optional<Match> match = search(from_);
    if (!match) return std::nullopt;
    const bool empty = match->first == match->second;
    if (empty && last_end_ == match->second) {
      from_ += from_ < text_.size() ? utf8_length(static_cast<unsigned char>(text_[from_])) : 1;
      continue;
    }
    from_ = match->second;
    last_end_ = match->second;
    return match;
  }
  return std::nullopt;
}

}  // namespace fastspec::text
