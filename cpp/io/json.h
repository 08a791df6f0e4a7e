// Strict reading of JSON files that may be hostile: sizes, depth and duplicate names are checked, typed access names
// the file and the field. Knows no file format of its own; writes no JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"

namespace fastspec {

using Json = nlohmann::json;

/// What parse_json() refuses before or while it builds the document.
struct JsonLimits {
  std::size_t max_bytes = std::size_t{64} << 20;  // text size; a document needs up to ~20 times this in memory
  int max_depth = 128;                            // nested arrays and objects
  /// RFC 8259 leaves duplicate names open and most readers let the last one win. Two readers that differ see two
  /// different files, so they are refused unless a caller says otherwise (then the last one wins).
  bool allow_duplicate_names = false;
};

/// Parses text. `what` (a file name) starts every error message.
/// @throws Error(kInvalidFile) for malformed JSON, invalid UTF-8, or a document beyond the limits.
Json parse_json(std::string_view text, const std::string& what, const JsonLimits& limits = {});

/// Parses a file; `what` is the path as given.
/// @throws Error(kNotFound) when there is no such regular file, otherwise as parse_json().
Json parse_json_file(const std::filesystem::path& path, const JsonLimits& limits = {});

/// One value of a document together with its place ("config.json", "rope_scaling.factor"), for typed access whose
/// errors say where. Refers to the document, which must outlive it. Loops over very many values should walk value()
/// themselves.
class JsonView {
 public:
  JsonView(const Json& value, std::string file, std::string field = {})
      : value_(&value), file_(std::move(file)), field_(std::move(field)) {}

  const Json& value() const noexcept { return *value_; }
  const std::string& file() const noexcept { return file_; }
  /// Path of this value inside the document, empty for the document itself.
  const std::string& field() const noexcept { return field_; }
  bool is_null() const noexcept { return value_->is_null(); }

  /// Member `name` of an object. @throws Error(kInvalidFile) when this is no object or has no such member.
  JsonView at(const std::string& name) const;
  /// Member `name`, or nothing when it is absent or null. @throws Error(kInvalidFile) when this is no object.
  std::optional<JsonView> find(const std::string& name) const;
  /// Element of an array. @throws Error(kInvalidFile) when this is no array or is too short.
  JsonView at(std::size_t index) const;
  /// All elements of an array. @throws Error(kInvalidFile) when this is no array.
  std::vector<JsonView> elements() const;
  /// Number of elements of an array. @throws Error(kInvalidFile) when this is no array.
  std::size_t array_size() const;
  /// Names of an object's members, sorted. @throws Error(kInvalidFile) when this is no object.
  std::vector<std::string> names() const;

  /// Typed values. No conversion between types, but as_number() takes integers too.
  /// @throws Error(kInvalidFile) naming file, field, the expected type and the one found.
  const std::string& as_string() const;
  bool as_bool() const;
  double as_number() const;
  /// @throws also when the value lies outside [min, max].
  std::int64_t as_integer(std::int64_t min = std::numeric_limits<std::int64_t>::min(),
                          std::int64_t max = std::numeric_limits<std::int64_t>::max()) const;

  /// Member `name`, or `fallback` when it is absent or null; wrong types are errors.
  std::string string_or(const std::string& name, const std::string& fallback) const;
  bool bool_or(const std::string& name, bool fallback) const;
  double number_or(const std::string& name, double fallback) const;
  std::int64_t integer_or(const std::string& name, std::int64_t fallback,
                          std::int64_t min = std::numeric_limits<std::int64_t>::min(),
                          std::int64_t max = std::numeric_limits<std::int64_t>::max()) const;

  /// Throws Error(code) whose message starts with file and field of this value.
  template <typename... Parts>
  [[noreturn]] void refuse(ErrorCode code, const Parts&... parts) const {
    if (field_.empty()) fastspec::fail(code, file_, ": ", parts...);
    fastspec::fail(code, file_, ": field \"", field_, "\": ", parts...);
  }

 private:
  [[noreturn]] void wrong_type(const char* expected) const;
  void expect_object() const;
  void expect_array() const;

  const Json* value_;
  std::string file_;
  std::string field_;
};

/// Text fit for an error message: at most `limit` bytes cut between characters, control characters shown as "?".
std::string shown(std::string_view text, std::size_t limit = 80);

}  // namespace fastspec
