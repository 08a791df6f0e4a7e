// Builds documents from nlohmann's event parser, which is iterative, so that limits are enforced while reading.
#include "io/json.h"

#include <algorithm>
#include <fstream>

namespace fastspec {

namespace {

/// Receives parser events and builds the document. Throws as soon as a limit is passed.
class DocumentBuilder : public nlohmann::json_sax<Json> {
 public:
  DocumentBuilder(const std::string& what, const JsonLimits& limits) : what_(what), limits_(limits) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(value)); }
  bool number_float(number_float_t value, const string_t&) override { return add(Json(value)); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    auto [member, inserted] = open_.back()->get_ref<Json::object_t&>().emplace(name, Json());
    if (!inserted && !limits_.allow_duplicate_names) {
      fail(ErrorCode::kInvalidFile, what_, ": name \"", shown(name), "\" occurs twice in one object");
    }
    member_ = &member->second;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..." without the parser's own tag
    std::string_view message = error.what();
    if (std::size_t end = message.find("] "); end != std::string_view::npos) message.remove_prefix(end + 2);
    fail(ErrorCode::kInvalidFile, what_, ": malformed JSON near byte ", position, ": ", shown(message, 240));
  }

 private:
  Json* place(Json&& value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      auto& array = open_.back()->get_ref<Json::array_t&>();
      array.push_back(std::move(value));
      return &array.back();
    }
    *member_ = std::move(value);
    return member_;
  }

  bool add(Json&& value) {
    place(std::move(value));
    return true;
  }

  bool open(Json&& empty) {
    if (open_.size() >= static_cast<std::size_t>(limits_.max_depth)) {
      fail(ErrorCode::kInvalidFile, what_, ": nested deeper than ", limits_.max_depth, " levels");
    }
    // The pointer stays valid: while a container is open, nothing is added to its parent.
    open_.push_back(place(std::move(empty)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& what_;
  const JsonLimits& limits_;
  Json root_;
  std::vector<Json*> open_;
  Json* member_ = nullptr;
};

std::string type_of(const Json& value) {
  if (value.is_number_integer()) return "integer";
  return value.type_name();
}

std::string joined(const std::string& field, const std::string& name) {
  return field.empty() ? shown(name) : field + "." + shown(name);
}

}  // namespace

Json parse_json(std::string_view text, const std::string& what, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    fail(ErrorCode::kInvalidFile, what, ": ", text.size(), " bytes of JSON, more than the limit of ", limits.max_bytes);
  }
  DocumentBuilder builder(what, limits);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) fail(ErrorCode::kInvalidFile, what, ": malformed JSON");
  return builder.take();
}

Json parse_json_file(const std::filesystem::path& path, const JsonLimits& limits) {
  const std::string what = path.string();
  std::error_code status;
  const std::filesystem::file_status found = std::filesystem::status(path, status);
  if (found.type() == std::filesystem::file_type::not_found) fail(ErrorCode::kNotFound, what, ": no such file");
  // Something is there: to go on as if it were not would hide a broken directory.
  if (status) fail(ErrorCode::kInvalidFile, what, ": cannot be read: ", status.message());
  if (!std::filesystem::is_regular_file(found)) fail(ErrorCode::kInvalidFile, what, ": is no regular file");
  const std::uintmax_t size = std::filesystem::file_size(path, status);
  if (status) fail(ErrorCode::kNotFound, what, ": ", status.message());
  if (size > limits.max_bytes) {
    fail(ErrorCode::kInvalidFile, what, ": ", size, " bytes of JSON, more than the limit of ", limits.max_bytes);
  }
  std::ifstream stream(path, std::ios::binary);
  std::string text(static_cast<std::size_t>(size), '\0');
  if (!stream || !stream.read(text.data(), static_cast<std::streamsize>(text.size()))) {
    fail(ErrorCode::kInvalidFile, what, ": cannot be read");
  }
  return parse_json(text, what, limits);
}

void JsonView::wrong_type(const char* expected) const {
  refuse(ErrorCode::kInvalidFile, "expected ", expected, ", got ", type_of(*value_));
}

void JsonView::expect_object() const {
  if (!value_->is_object()) wrong_type("object");
}

void JsonView::expect_array() const {
  if (!value_->is_array()) wrong_type("array");
}

JsonView JsonView::at(const std::string& name) const {
  expect_object();
  auto member = value_->find(name);
  if (member == value_->end()) {
    fastspec::fail(ErrorCode::kInvalidFile, file_, ": field \"", joined(field_, name), "\" is missing");
  }
  return JsonView(*member, file_, joined(field_, name));
}

std::optional<JsonView> JsonView::find(const std::string& name) const {
  expect_object();
  auto member = value_->find(name);
  if (member == value_->end() || member->is_null()) return std::nullopt;
  return JsonView(*member, file_, joined(field_, name));
}

JsonView JsonView::at(std::size_t index) const {
  expect_array();
  if (index >= value_->size()) {
    refuse(ErrorCode::kInvalidFile, "has ", value_->size(), " elements, element ", index, " is missing");
  }
  return JsonView((*value_)[index], file_, field_ + "[" + std::to_string(index) + "]");
}

std::vector<JsonView> JsonView::elements() const {
  expect_array();
  std::vector<JsonView> views;
  views.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i) views.push_back(at(i));
  return views;
}

std::size_t JsonView::array_size() const {
  expect_array();
  return value_->size();
}

std::vector<std::string> JsonView::names() const {
  expect_object();
  std::vector<std::string> names;
  names.reserve(value_->size());
  for (const auto& member : value_->get_ref<const Json::object_t&>()) names.push_back(member.first);
  return names;
}

const std::string& JsonView::as_string() const {
  if (!value_->is_string()) wrong_type("string");
  return value_->get_ref<const std::string&>();
}

bool JsonView::as_bool() const {
  if (!value_->is_boolean()) wrong_type("boolean");
  return value_->get<bool>();
}

double JsonView::as_number() const {
  if (!value_->is_number()) wrong_type("number");
  return value_->get<double>();
}

std::int64_t JsonView::as_integer(std::int64_t min, std::int64_t max) const {
  if (!value_->is_number_integer()) wrong_type("integer");
  const bool too_large = value_->is_number_unsigned() &&
                         value_->get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()};
  if (too_large || value_->get<std::int64_t>() < min || value_->get<std::int64_t>() > max) {
    refuse(ErrorCode::kInvalidFile, "value ", value_->dump(), " lies outside [", min, ", ", max, "]");
  }
  return value_->get<std::int64_t>();
}

std::string JsonView::string_or(const std::string& name, const std::string& fallback) const {
  auto member = find(name);
  return member ? member->as_string() : fallback;
}

bool JsonView::bool_or(const std::string& name, bool fallback) const {
  auto member = find(name);
  return member ? member->as_bool() : fallback;
}

double JsonView::number_or(const std::string& name, double fallback) const {
  auto member = find(name);
  return member ? member->as_number() : fallback;
}

std::int64_t JsonView::integer_or(const std::string& name, std::int64_t fallback, std::int64_t min,
                                  std::int64_t max) const {
  auto member = find(name);
  return member ? member->as_integer(min, max) : fallback;
}

std::string shown(std::string_view text, std::size_t limit) {
  std::string result;
  std::size_t length = std::min(text.size(), limit);
  while (length < text.size() && length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) --length;
  for (char c : text.substr(0, length)) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
    result += control ? '?' : c;
  }
  if (length < text.size()) result += "...";
  return result;
}

}  // namespace fastspec
