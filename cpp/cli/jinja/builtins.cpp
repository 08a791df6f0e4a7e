// Filters, tests, methods and functions that chat templates use. A name that is not here is refused.
#include <fastspec/error.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>
#include <initializer_list>
#include <optional>

#include "cli/jinja/text.h"
#include "cli/jinja/value.h"

namespace fastspec::cli::jinja {
namespace {

/// The argument at a position or of a name.
std::optional<Value> argument(const Arguments& arguments, std::size_t position, const std::string& name) {
  if (position < arguments.positional.size()) return arguments.positional[position];
  for (const auto& [key, value] : arguments.named) {
    if (key == name) return value;
  }
  return std::nullopt;
}

/// Refuses another number of arguments, and names other than these.
void expect_count(const std::string& what, const Arguments& arguments, std::size_t least, std::size_t most,
                  std::initializer_list<std::string_view> names = {}) {
  for (const auto& [name, value] : arguments.named) {
    if (std::find(names.begin(), names.end(), name) == names.end()) fail_unsupported(what + " with " + name + "=");
  }
  const std::size_t count = arguments.positional.size() + arguments.named.size();
  if (count < least || count > most) fail_unsupported(what + " with " + std::to_string(count) + " arguments");
}

const std::string& string_argument(const std::string& what, const Arguments& arguments, std::size_t position) {
  if (position >= arguments.positional.size() || !arguments.positional[position].is_string()) {
    fail_unsupported(what + " with such arguments");
  }
  return arguments.positional[position].string();
}

std::string change_case(const std::string& what, std::string text, bool upper) {
  for (char& character : text) {
    if (static_cast<unsigned char>(character) >= 0x80) fail_unsupported(what + " of a text beyond ASCII");
    const auto byte = static_cast<unsigned char>(character);
    character = static_cast<char>(upper ? std::toupper(byte) : std::tolower(byte));
  }
  return text;
}

std::int64_t length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) return static_cast<std::int64_t>(count_characters(value.string()));
  if (value.is_array() || value.is_object()) return static_cast<std::int64_t>(value.data->size());
  fail_render("the length of a number or nothing");
}

Json pairs_of(const Value& object) {
  Json pairs = Json::array();
  for (const auto& [key, item] : object.data->items()) pairs.push_back(Json::array({key, item}));
  return pairs;
}

Value string_method(const std::string& text, const std::string& name, const Arguments& arguments) {
  const std::string what = "the method " + name + "()";
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    expect_count(what, arguments, 0, 1);
    const bool left = name != "rstrip";
    const bool right = name != "lstrip";
    if (arguments.positional.empty()) return Value::of(strip(text, left, right));
    return Value::of(strip(text, left, right, string_argument(what, arguments, 0)));
  }
  if (name == "upper" || name == "lower") {
    expect_count(what, arguments, 0, 0);
    return Value::of(change_case(what, text, name == "upper"));
  }
  if (name == "startswith" || name == "endswith") {
    expect_count(what, arguments, 1, 1);
    const std::string& part = string_argument(what, arguments, 0);
    return Value::of(name == "startswith" ? text.starts_with(part) : text.ends_with(part));
  }
  if (name == "split") {
    expect_count(what, arguments, 1, 1);
    const std::string& separator = string_argument(what, arguments, 0);
    if (separator.empty()) fail_render("split() by nothing");
    return Value::of(Json(split(text, separator)));
  }
  if (name == "replace") {
    expect_count(what, arguments, 2, 2);
    const std::string& from = string_argument(what, arguments, 0);
    if (from.empty()) fail_unsupported(what + " of nothing");
    const std::string& to = string_argument(what, arguments, 1);
    if (text.size() / from.size() * to.size() > kMaxText) fail_render("a text that is too long");
    return Value::of(replace_all(text, from, to));
  }
  fail_unsupported(what + " of a text");
}

}  // namespace

Value call_method(const Value& object, const std::string& name, const Arguments& arguments) {
  if (object.is_string()) return string_method(object.string(), name, arguments);
  const std::string what = "the method " + name + "()";
  if (object.is_object()) {
    if (name == "items" || name == "keys") {
      expect_count(what, arguments, 0, 0);
      return name == "items" ? Value::of(pairs_of(object)) : apply_filter("list", object, {});
    }
    if (name == "get") {
      expect_count(what, arguments, 1, 2);
      const Value found = member(object, arguments.positional[0]);
      if (!found.is_undefined()) return found;
      return arguments.positional.size() > 1 ? arguments.positional[1] : Value::of(Json(nullptr));
    }
  }
  if (object.is_undefined()) fail_render(what + " of undefined \"" + object.name + "\"");
  fail_unsupported(what);
}

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments) {
  const std::string what = "the filter \"" + name + "\"";
  if (name == "trim") {
    expect_count(what, arguments, 0, 1);
    const std::string text = to_text(value);
    if (arguments.positional.empty()) return Value::of(strip(text, true, true));
    return Value::of(strip(text, true, true, string_argument(what, arguments, 0)));
  }
  const bool takes_nothing = name != "default" && name != "d" && name != "join" && name != "replace";
  if (takes_nothing) expect_count(what, arguments, 0, 0);
  if (name == "length" || name == "count") return Value::of(length_of(value));
  if (name == "upper" || name == "lower") return Value::of(change_case(what, to_text(value), name == "upper"));
  if (name == "capitalize") {
    std::string text = change_case(what, to_text(value), false);
    if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
    return Value::of(std::move(text));
  }
  if (name == "string" || name == "safe") return Value::of(to_text(value));
  if (name == "default" || name == "d") {
    expect_count(what, arguments, 0, 2, {"default_value", "boolean"});
    const auto for_false = argument(arguments, 1, "boolean");
    const bool replaced = value.is_undefined() || (for_false && is_true(*for_false) && !is_true(value));
    return replaced ? argument(arguments, 0, "default_value").value_or(Value::of(std::string())) : value;
  }
  if (name == "list") {
    Json list = Json::array();
    for (const Value& item : items_of(value)) list.push_back(*item.data);
    return Value::of(std::move(list));
  }
  if (name == "first" || name == "last") {
    if (value.is_string() || value.is_array()) return member(value, Value::of(Json(name == "first" ? 0 : -1)));
    const std::vector<Value> items = items_of(value);
    if (items.empty()) return Value::undefined(name);
    return name == "first" ? items.front() : items.back();
  }
  if (name == "items" && value.is_object()) return Value::of(pairs_of(value));
  if (name == "join") {
    expect_count(what, arguments, 0, 1, {"d"});
    const auto given = argument(arguments, 0, "d");
    const std::string separator = given ? to_text(*given) : std::string();
    std::string text;
    bool first = true;
    const auto append = [&](std::string_view item) {
      if (!first) text += separator;
      text += item;
      if (text.size() > kMaxText) fail_render("a text that is too long");
      first = false;
    };
    if (value.is_string()) {
      for (const std::string_view character : characters(value.string())) append(character);
    } else {
      for (const Value& item : items_of(value)) append(to_text(item));
    }
    return Value::of(std::move(text));
  }
  if (name == "replace") return string_method(to_text(value), name, arguments);
  fail_unsupported(what);
}

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments) {
  const auto boolean = [&] { return value.is_data() && value.data->is_boolean(); };
  const bool takes_one = name == "equalto" || name == "eq" || name == "in";
  expect_count("the test \"" + name + "\"", arguments, takes_one ? 1 : 0, takes_one ? 1 : 0);
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_data() && value.data->is_null();
  if (name == "string") return value.is_string();
  if (name == "mapping") return value.is_object();
  if (name == "iterable" || name == "sequence") {
    return value.is_undefined() || value.is_string() || value.is_array() || value.is_object();
  }
  if (name == "number") return value.is_number() || boolean();
  if (name == "integer") return value.is_integer();
  if (name == "boolean") return boolean();
  if (name == "true") return boolean() && value.data->get<bool>();
  if (name == "false") return boolean() && !value.data->get<bool>();
  if ((name == "odd" || name == "even") && value.is_integer()) {
    return (value.integer() % 2 != 0) == (name == "odd");
  }
  if (takes_one && !arguments.positional.empty()) {
    const Value& other = arguments.positional[0];
    return name == "in" ? is_true(apply_binary("in", value, other)) : are_equal(value, other);
  }
  fail_unsupported("the test \"" + name + "\"");
}

bool is_function(const std::string& name) {
  static constexpr std::array<std::string_view, 4> kNames = {"raise_exception", "namespace", "range", "strftime_now"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

Value call_function(const std::string& name, const Arguments& arguments) {
  const std::string what = "the function " + name + "()";
  if (name == "raise_exception") {
    expect_count(what, arguments, 1, 1);
    throw Error(ErrorCode::kInvalidArgument,
                "the model's chat template refuses this conversation: " + to_text(arguments.positional[0]));
  }
  if (name == "namespace") {
    if (!arguments.positional.empty()) fail_unsupported(what + " with such arguments");
    Value value;
    value.kind = Value::Kind::kNamespace;
    value.fields = std::make_shared<Json>(Json::object());
    for (const auto& [key, field] : arguments.named) {
      if (!field.is_data()) fail_unsupported("a namespace with a field that is no data");
      (*value.fields)[key] = *field.data;
    }
    return value;
  }
  if (name == "strftime_now") {
    expect_count(what, arguments, 1, 1);
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    localtime_r(&now, &parts);
    char text[256];
    // The dot keeps an empty result apart from one that is too long.
    const std::string format = string_argument(what, arguments, 0) + ".";
    const std::size_t size = std::strftime(text, sizeof(text), format.c_str(), &parts);
    if (size == 0) fail_render("a date that is too long");
    return Value::of(std::string(text, size - 1));
  }
  expect_count(what, arguments, 1, 2);
  std::int64_t bounds[2] = {0, 0};
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    if (!arguments.positional[i].is_integer()) fail_unsupported(what + " with such arguments");
    bounds[i] = arguments.positional[i].integer();
  }
  if (arguments.positional.size() == 1) std::swap(bounds[0], bounds[1]);
  // As unsigned numbers: the distance of two signed ones may not be one.
  const auto length = static_cast<std::uint64_t>(bounds[1]) - static_cast<std::uint64_t>(bounds[0]);
  if (bounds[1] > bounds[0] && length > 100000) fail_render("a range of more than 100000");
  Json numbers = Json::array();
  for (std::int64_t i = bounds[0]; i < bounds[1]; ++i) numbers.push_back(i);
  return Value::of(std::move(numbers));
}

}  // namespace fastspec::cli::jinja
