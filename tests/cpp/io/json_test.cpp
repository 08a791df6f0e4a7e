// The strict JSON reader: limits, duplicates and messages that name file and field.
#include "io/json.h"

#include <gtest/gtest.h>

#include <functional>

namespace fastspec {
namespace {

std::string error_of(const std::function<void()>& action, ErrorCode expected = ErrorCode::kInvalidFile) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), expected) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

TEST(Json, ReadsTypedFields) {
  const Json json = parse_json(R"({"a": 1, "b": "x", "c": [true, 2.5, null], "d": {"e": -7}})", "f.json");
  const JsonView view(json, "f.json");
  EXPECT_EQ(view.at("a").as_integer(), 1);
  EXPECT_EQ(view.at("a").as_number(), 1.0);
  EXPECT_EQ(view.at("b").as_string(), "x");
  EXPECT_TRUE(view.at("c").at(0).as_bool());
  EXPECT_EQ(view.at("c").at(1).as_number(), 2.5);
  EXPECT_EQ(view.at("c").elements().size(), 3u);
  EXPECT_EQ(view.at("d").at("e").as_integer(), -7);
  EXPECT_EQ(view.at("d").names(), std::vector<std::string>{"e"});
  EXPECT_FALSE(view.find("absent"));
  EXPECT_EQ(view.integer_or("absent", 5), 5);
  EXPECT_EQ(view.string_or("b", "y"), "x");
}

TEST(Json, ErrorsNameFileFieldAndTypes) {
  const Json json =
      parse_json(R"({"hidden_size": "x", "rope": {"factor": true}, "n": 18446744073709551615})", "config.json");
  const JsonView view(json, "config.json");
  EXPECT_EQ(error_of([&] { view.at("hidden_size").as_integer(); }),
            "config.json: field \"hidden_size\": expected integer, got string");
  EXPECT_EQ(error_of([&] { view.at("rope").at("factor").as_number(); }),
            "config.json: field \"rope.factor\": expected number, got boolean");
  EXPECT_EQ(error_of([&] { view.at("rope").at("type"); }), "config.json: field \"rope.type\" is missing");
  EXPECT_NE(error_of([&] { view.at("n").as_integer(); }).find("18446744073709551615"), std::string::npos);
  EXPECT_NE(error_of([&] { view.at("hidden_size").at(0); }).find("expected array"), std::string::npos);
}

TEST(Json, RefusesWhatPassesTheLimits) {
  const std::string deep = std::string(2'000'000, '[');
  EXPECT_NE(error_of([&] { parse_json(deep, "deep.json"); }).find("deep.json: nested deeper"), std::string::npos);
  JsonLimits small;
  small.max_bytes = 3;
  EXPECT_NE(error_of([&] { parse_json("[1,2]", "big.json", small); }).find("5 bytes"), std::string::npos);
  std::string allowed = "1";
  for (int i = 0; i < 128; ++i) allowed = "[" + allowed + "]";
  EXPECT_NO_THROW(parse_json(allowed, "x"));
  EXPECT_NE(error_of([&] { parse_json("[" + allowed + "]", "x"); }).find("128 levels"), std::string::npos);
}

TEST(Json, DuplicateNamesAreRefusedUnlessAllowed) {
  const char* text = R"({"w": {"a": 1, "a": [2]}, "v": 3})";
  EXPECT_NE(error_of([&] { parse_json(text, "x.json"); }).find("\"a\" occurs twice"), std::string::npos);
  JsonLimits lax;
  lax.allow_duplicate_names = true;
  EXPECT_EQ(parse_json(text, "x.json", lax).dump(), R"({"v":3,"w":{"a":[2]}})");
}

TEST(Json, RefusesMalformedText) {
  for (const char* text : {"", "{", "[1,]", "{\"a\" 1}", "nul", "[1] x", "\"\xff\"", "\"\\ud800\"", "1e999", "NaN"}) {
    const std::string message = error_of([&] { parse_json(text, "bad.json"); });
    EXPECT_EQ(message.rfind("bad.json: ", 0), 0u) << message;
  }
}

TEST(Json, MissingFile) {
  const std::string message = error_of([] { parse_json_file("/nonexistent/config.json"); }, ErrorCode::kNotFound);
  EXPECT_EQ(message, "/nonexistent/config.json: no such file");
}

}  // namespace
}  // namespace fastspec
