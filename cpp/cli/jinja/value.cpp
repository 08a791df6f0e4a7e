// Truth, equality, text, members and operators.
#include "cli/jinja/value.h"

#include <fastspec/error.h>

#include <algorithm>
#include <cmath>

#include "cli/jinja/text.h"

namespace fastspec::cli::jinja {
namespace {

std::string type_name(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kUndefined:
      return "undefined \"" + value.name + "\"";
    case Value::Kind::kData:
      return value.data->type_name();
    case Value::Kind::kNamespace:
      return "namespace";
    case Value::Kind::kMacro:
    case Value::Kind::kFunction:
      return "function";
  }
  return "?";
}

[[noreturn]] void fail_types(const std::string& operation, const Value& left, const Value& right) {
  fail_render(type_name(left) + " " + operation + " " + type_name(right) + " cannot be computed");
}

bool contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) fail_types("in", item, container);
    return find(container.string(), item.string()) != std::string::npos;
  }
  if (container.is_object()) return item.is_string() && container.data->contains(item.string());
  const std::vector<Value> items = items_of(container);
  return std::any_of(items.begin(), items.end(), [&](const Value& each) { return are_equal(each, item); });
}

Value add(const Value& left, const Value& right) {
  if (left.is_string() && right.is_string()) {
    if (left.string().size() + right.string().size() > kMaxText) fail_render("a text that is too long");
    return Value::of(left.string() + right.string());
  }
  if (left.is_array() && right.is_array()) {
    Json sum = *left.data;
    sum.insert(sum.end(), right.data->begin(), right.data->end());
    return Value::of(std::move(sum));
  }
  fail_types("+", left, right);
}

Value arithmetic(const std::string& operation, const Value& left, const Value& right) {
  if (left.is_integer() && right.is_integer() && operation != "/") {
    const std::int64_t a = left.integer();
    const std::int64_t b = right.integer();
    constexpr std::int64_t kLimit = 1 << 30;
    for (const std::int64_t number : {a, b}) {
      if (number < -kLimit || number > kLimit) fail_unsupported("numbers beyond a billion");
    }
    if (operation == "+") return Value::of(a + b);
    if (operation == "-") return Value::of(a - b);
    if (operation == "*") return Value::of(a * b);
    if (b == 0) fail_render("a division by zero");
    const std::int64_t quotient = a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
    if (operation == "//") return Value::of(quotient);
    return Value::of(a - quotient * b);
  }
  const double a = left.data->get<double>();
  const double b = right.data->get<double>();
  if (operation == "+") return Value::of(a + b);
  if (operation == "-") return Value::of(a - b);
  if (operation == "*") return Value::of(a * b);
  if (operation != "/") fail_unsupported("the operator " + operation + " of fractions");
  if (b == 0) fail_render("a division by zero");
  return Value::of(a / b);
}

bool is_less(const std::string& operation, const Value& left, const Value& right) {
  if (left.is_integer() && right.is_integer()) return left.integer() < right.integer();
  if (left.is_number() && right.is_number()) return left.data->get<double>() < right.data->get<double>();
  if (left.is_string() && right.is_string()) return left.string() < right.string();
  fail_types(operation, left, right);
}

constexpr int kMaxNesting = 200;  // of lists and dicts in one another

std::size_t size_within(const Json& data, int levels) {
  if (levels == 0) fail_render("lists and dicts nested too deeply");
  std::size_t size = sizeof(Json);
  if (data.is_string()) return size + sizeof(std::string) + data.get_ref<const std::string&>().size();
  if (data.is_object()) {
    for (const auto& [key, item] : data.items()) size += sizeof(key) + key.size() + size_within(item, levels - 1);
  } else if (data.is_array()) {
    for (const Json& item : data) size += size_within(item, levels - 1);
  }
  return size;
}

}  // namespace

void fail_render(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "template: " + what);
}
void fail_unsupported(const std::string& what) {
  throw Error(ErrorCode::kUnsupported, "template: " + what);
}

std::int64_t Value::integer() const {
  const auto number = data->get<std::int64_t>();
  if (data->is_number_unsigned() && number < 0) fail_unsupported("a number beyond 64 bits");
  return number;
}

std::size_t size_of(const Json& data) {
  return size_within(data, kMaxNesting);
}

bool is_true(const Value& value) {
  if (value.is_undefined()) return false;
  if (!value.is_data()) return true;
  const Json& data = *value.data;
  if (data.is_null()) return false;
  if (data.is_boolean()) return data.get<bool>();
  if (data.is_number()) return data.get<double>() != 0;
  if (data.is_string()) return !value.string().empty();
  return !data.empty();
}

bool are_equal(const Value& left, const Value& right) {
  if (left.is_undefined() || right.is_undefined()) return left.is_undefined() && right.is_undefined();
  if (!left.is_data() || !right.is_data())
    fail_unsupported("comparing " + type_name(left) + " with " + type_name(right));
  if (left.data->is_boolean() != right.data->is_boolean() && (left.is_number() || right.is_number())) {
    const auto number = [](const Json& data) {
      return data.is_boolean() ? double(data.get<bool>()) : data.get<double>();
    };
    return number(*left.data) == number(*right.data);
  }
  if (left.is_integer() && right.is_integer()) return left.integer() == right.integer();
  return *left.data == *right.data;
}

std::string to_text(const Value& value) {
  if (value.is_undefined()) return "";
  if (value.is_string()) return value.string();
  if (value.is_data()) {
    if (value.data->is_null()) return "None";
    if (value.data->is_boolean()) return value.data->get<bool>() ? "True" : "False";
    if (value.is_integer()) return value.data->dump();
  }
  fail_unsupported("printing a value of type " + type_name(value));
}

std::vector<Value> items_of(const Value& value) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (value.is_string()) {
    for (const std::string_view character : characters(value.string())) items.push_back(Value::of(Json(character)));
  } else if (value.is_array()) {
    for (const Json& item : *value.data) items.push_back(Value::of(std::shared_ptr<const Json>(value.data, &item)));
  } else if (value.is_object()) {
    for (const auto& [key, item] : value.data->items()) items.push_back(Value::of(key));
  } else {
    fail_render("a loop over a value of type " + type_name(value));
  }
  return items;
}

Value member(const Value& container, const Value& key) {
  const std::string name = key.is_string() ? key.string() : key.is_integer() ? key.data->dump() : type_name(key);
  if (container.is_undefined()) fail_render("\"" + name + "\" of " + type_name(container));
  const Json* const fields = container.kind == Value::Kind::kNamespace ? container.fields.get() : container.data.get();
  if (fields == nullptr) return Value::undefined(name);
  if (fields->is_object()) {
    if (!key.is_string()) return Value::undefined(name);
    const auto found = fields->find(key.string());
    if (found == fields->end()) return Value::undefined(name);
    // A namespace changes, so what is read from it is a copy.
    if (container.kind == Value::Kind::kNamespace) return Value::of(*found);
    return Value::of(std::shared_ptr<const Json>(container.data, &*found));
  }
  if (!key.is_integer() || (!fields->is_array() && !fields->is_string())) return Value::undefined(name);
  const std::size_t size = fields->is_array() ? fields->size() : count_characters(container.string());
  std::int64_t index = key.integer();
  if (index < 0) index += static_cast<std::int64_t>(size);
  if (index < 0 || index >= static_cast<std::int64_t>(size)) return Value::undefined(name);
  const auto at = static_cast<std::size_t>(index);
  if (fields->is_string()) return Value::of(Json(character_at(container.string(), at)));
  return Value::of(std::shared_ptr<const Json>(container.data, &(*fields)[at]));
}

Value apply_binary(const std::string& operation, const Value& left, const Value& right) {
  if (operation == "==") return Value::of(are_equal(left, right));
  if (operation == "!=") return Value::of(!are_equal(left, right));
  if (operation == "in") return Value::of(contains(right, left));
  if (operation == "<") return Value::of(is_less(operation, left, right));
  if (operation == ">") return Value::of(is_less(operation, right, left));
  if (operation == "<=") return Value::of(!is_less(operation, right, left));
  if (operation == ">=") return Value::of(!is_less(operation, left, right));
  if (operation == "~") return add(Value::of(to_text(left)), Value::of(to_text(right)));
  if (left.is_number() && right.is_number()) return arithmetic(operation, left, right);
  if (operation == "+") return add(left, right);
  if (operation == "%" && left.is_string()) fail_unsupported("formatting with %");
  fail_types(operation, left, right);
}

Value apply_slice(const Value& value, const Value& start, const Value& stop, const Value& step) {
  if (!value.is_array() && !value.is_string()) fail_render("a slice of a value of type " + type_name(value));
  std::vector<std::string_view> letters;
  if (value.is_string()) letters = characters(value.string());
  const auto size = static_cast<std::int64_t>(value.is_string() ? letters.size() : value.data->size());
  const auto absent = [](const Value& part) { return part.is_data() && part.data->is_null(); };
  const auto read = [&](const Value& part, std::int64_t otherwise) {
    if (absent(part)) return otherwise;
    if (!part.is_integer()) fail_render("a slice by a value of type " + type_name(part));
    return part.integer();
  };
  // A longer step than the whole is as good as the whole.
  const std::int64_t stride = std::clamp<std::int64_t>(read(step, 1), -size - 1, size + 1);
  if (stride == 0) fail_render("a slice with step 0");
  const bool forward = stride > 0;
  const auto bound = [&](const Value& part, std::int64_t otherwise) {
    std::int64_t index = read(part, otherwise);
    if (index < 0 && !absent(part)) index += size;
    return std::clamp<std::int64_t>(index, forward ? 0 : -1, forward ? size : size - 1);
  };
  const std::int64_t first = bound(start, forward ? 0 : size - 1);
  const std::int64_t last = bound(stop, forward ? size : -1);
  Json result = Json::array();
  std::string text;
  for (std::int64_t i = first; forward ? i < last : i > last; i += stride) {
    const auto at = static_cast<std::size_t>(i);
    if (value.is_string()) {
      text += letters[at];
    } else {
      result.push_back((*value.data)[at]);
    }
  }
  return value.is_string() ? Value::of(std::move(text)) : Value::of(std::move(result));
}

}  // namespace fastspec::cli::jinja
