// What an expression is worth. Data is shared, not copied: a conversation is looked at many times.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/jinja/ast.h"

namespace fastspec::cli::jinja {

struct Value {
  enum class Kind { kUndefined, kData, kNamespace, kMacro, kFunction };
  Kind kind = Kind::kUndefined;
  std::shared_ptr<const Json> data;
  std::shared_ptr<Json> fields;  // of a namespace: the one thing that can be changed
  const Statement* macro = nullptr;
  std::string name;  // of a function; of something undefined, what it was to be

  static Value undefined(std::string name) {
    Value value;
    value.name = std::move(name);
    return value;
  }
  static Value of(Json json) { return of(std::make_shared<const Json>(std::move(json))); }
  static Value of(std::shared_ptr<const Json> json) {
    Value value;
    value.kind = Kind::kData;
    value.data = std::move(json);
    return value;
  }
  static Value function(std::string name) {
    Value value = undefined(std::move(name));
    value.kind = Kind::kFunction;
    return value;
  }

  bool is_undefined() const { return kind == Kind::kUndefined; }
  bool is_data() const { return kind == Kind::kData; }
  bool is_string() const { return is_data() && data->is_string(); }
  bool is_array() const { return is_data() && data->is_array(); }
  bool is_object() const { return is_data() && data->is_object(); }
  bool is_integer() const { return is_data() && data->is_number_integer(); }
  bool is_number() const { return is_data() && data->is_number(); }
  const std::string& string() const { return data->get_ref<const std::string&>(); }
  /// @throws Error(kUnsupported) beyond 64 bits with sign.
  std::int64_t integer() const;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// For a template that fails on this conversation. @throws Error(kInvalidArgument).
[[noreturn]] void fail_render(const std::string& what);
/// For what is not built. @throws Error(kUnsupported).
[[noreturn]] void fail_unsupported(const std::string& what);

bool is_true(const Value& value);
bool are_equal(const Value& left, const Value& right);
/// What `{{ value }}` prints.
std::string to_text(const Value& value);
/// Longest text that an operation may make, in bytes.
inline constexpr std::size_t kMaxText = 4 << 20;
/// Bytes of memory that data takes, about. @throws Error(kInvalidArgument) for data nested too deeply.
std::size_t size_of(const Json& data);

/// What a loop runs over.
std::vector<Value> items_of(const Value& value);
/// `container.name` or `container["name"]`, `container[3]`; undefined where there is none.
Value member(const Value& container, const Value& key);

Value apply_binary(const std::string& operation, const Value& left, const Value& right);
/// Absent bounds are null.
Value apply_slice(const Value& value, const Value& start, const Value& stop, const Value& step);
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments);
Value call_method(const Value& object, const std::string& name, const Arguments& arguments);
/// Functions every template knows; is_function says which.
bool is_function(const std::string& name);
Value call_function(const std::string& name, const Arguments& arguments);

}  // namespace fastspec::cli::jinja
