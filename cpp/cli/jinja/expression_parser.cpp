// One function a level of precedence, lowest first.
#include "cli/jinja/expression_parser.h"

#include <fastspec/error.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace fastspec::cli::jinja {
namespace {

constexpr int kMaxDepth = 200;   // of calls while parsing
constexpr int kMaxHeight = 200;  // of a tree, which grows in long chains too: a + b + c ..., a.b.c ..., a | b | c ...

using Kind = Expression::Kind;

[[noreturn]] void fail_depth() {
  throw Error(ErrorCode::kUnsupported, "template: nested too deeply or too long a chain");
}

/// Counts a child, which may be null, in the height: whoever walks or destroys a tree relies on its bound.
ExpressionPtr below(Expression& parent, ExpressionPtr child) {
  if (child != nullptr) parent.height = std::max(parent.height, child->height + 1);
  if (parent.height > kMaxHeight) fail_depth();
  return child;
}

void adopt(Expression& parent, ExpressionPtr child) {
  parent.children.push_back(below(parent, std::move(child)));
}

template <typename... Children>
ExpressionPtr make(Kind kind, std::string text, Children... children) {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->text = std::move(text);
  (adopt(*node, std::move(children)), ...);
  return node;
}

ExpressionPtr make_literal(Json value) {
  auto node = std::make_unique<Expression>();
  node->literal = std::move(value);
  return node;
}

}  // namespace

ExpressionParser::Depth::Depth(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.depth_ > kMaxDepth) fail_depth();
}

const Token& ExpressionParser::peek(std::size_t ahead) const {
  return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
}

Token ExpressionParser::take() {
  const Token token = peek();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool ExpressionParser::at_operator(std::string_view text) const {
  return peek().kind == Token::Kind::kOperator && peek().text == text;
}
bool ExpressionParser::at_name(std::string_view text) const {
  return peek().kind == Token::Kind::kName && peek().text == text;
}
bool ExpressionParser::take_operator(std::string_view text) {
  const bool found = at_operator(text);
  if (found) take();
  return found;
}
bool ExpressionParser::take_name(std::string_view text) {
  const bool found = at_name(text);
  if (found) take();
  return found;
}
void ExpressionParser::expect_operator(std::string_view text) {
  if (!take_operator(text)) fail("\"" + std::string(text) + "\"");
}
void ExpressionParser::expect_name(std::string_view text) {
  if (!take_name(text)) fail("\"" + std::string(text) + "\"");
}
std::string ExpressionParser::expect_identifier() {
  if (peek().kind != Token::Kind::kName) fail("a name");
  return take().text;
}

void ExpressionParser::fail(const std::string& expected) const {
  const std::string found = peek().text.empty() ? "the end of a tag" : "\"" + peek().text + "\"";
  throw Error(ErrorCode::kInvalidFile,
              "template, line " + std::to_string(peek().line) + ": expected " + expected + ", found " + found);
}

ExpressionPtr ExpressionParser::expression() {
  const Depth depth(*this);
  ExpressionPtr value = or_expression();
  while (take_name("if")) {
    ExpressionPtr condition = or_expression();
    ExpressionPtr otherwise = take_name("else") ? expression() : nullptr;
    value = make(Kind::kConditional, "", std::move(value), std::move(condition), std::move(otherwise));
  }
  return value;
}

ExpressionPtr ExpressionParser::tuple_expression() {
  ExpressionPtr first = expression();
  if (!at_operator(",")) return first;
  ExpressionPtr all = make(Kind::kList, "", std::move(first));
  while (take_operator(",")) adopt(*all, expression());
  return all;
}

ExpressionPtr ExpressionParser::or_expression() {
  ExpressionPtr left = and_expression();
  while (take_name("or")) left = make(Kind::kOr, "", std::move(left), and_expression());
  return left;
}

ExpressionPtr ExpressionParser::and_expression() {
  ExpressionPtr left = not_expression();
  while (take_name("and")) left = make(Kind::kAnd, "", std::move(left), not_expression());
  return left;
}

ExpressionPtr ExpressionParser::not_expression() {
  const Depth depth(*this);
  if (take_name("not")) return make(Kind::kNot, "", not_expression());
  return comparison();
}

ExpressionPtr ExpressionParser::comparison() {
  ExpressionPtr left = sum();
  static const char* const kOperators[] = {"==", "!=", "<", ">", "<=", ">="};
  bool compared = false;
  while (true) {
    std::string name;
    for (const char* candidate : kOperators) {
      if (at_operator(candidate)) name = candidate;
    }
    const bool negated = at_name("not") && peek(1).kind == Token::Kind::kName && peek(1).text == "in";
    if (at_name("in") || negated) name = "in";
    if (name.empty()) return left;
    if (compared) throw Error(ErrorCode::kUnsupported, "template: chained comparisons");
    compared = true;
    take();
    if (negated) take();
    left = make(Kind::kBinary, name, std::move(left), sum());
    if (negated) left = make(Kind::kNot, "", std::move(left));
  }
}

ExpressionPtr ExpressionParser::sum() {
  ExpressionPtr left = concatenation();
  while (at_operator("+") || at_operator("-")) {
    const std::string name = take().text;
    left = make(Kind::kBinary, name, std::move(left), concatenation());
  }
  return left;
}

ExpressionPtr ExpressionParser::concatenation() {
  ExpressionPtr left = product();
  while (take_operator("~")) left = make(Kind::kBinary, "~", std::move(left), product());
  return left;
}

ExpressionPtr ExpressionParser::product() {
  ExpressionPtr left = unary(true);
  while (at_operator("*") || at_operator("/") || at_operator("//") || at_operator("%")) {
    const std::string name = take().text;
    left = make(Kind::kBinary, name, std::move(left), unary(true));
  }
  return left;
}

ExpressionPtr ExpressionParser::unary(bool with_filter) {
  const Depth depth(*this);
  ExpressionPtr value;
  if (take_operator("-")) {
    value = make(Kind::kNegative, "", unary(false));
  } else {
    value = postfix(primary());
  }
  return with_filter ? filters(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::primary() {
  const Token token = peek();
  switch (token.kind) {
    case Token::Kind::kString: {
      std::string text;
      while (peek().kind == Token::Kind::kString) text += take().text;
      return make_literal(text);
    }
    case Token::Kind::kInteger: {
      std::int64_t value = 0;
      const auto parsed = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      if (parsed.ec != std::errc()) fail("a smaller number");
      if (value != 0 && token.text[0] == '0') fail("a number without leading zeros");
      take();
      return make_literal(value);
    }
    case Token::Kind::kFloat: {
      const double value = std::strtod(token.text.c_str(), nullptr);
      if (!std::isfinite(value)) fail("a smaller number");
      take();
      return make_literal(value);
    }
    case Token::Kind::kName: {
      const std::string name = take().text;
      if (name == "true" || name == "True") return make_literal(true);
      if (name == "false" || name == "False") return make_literal(false);
      if (name == "none" || name == "None") return make_literal(nullptr);
      return make(Kind::kName, name);
    }
    default:
      break;
  }
  if (take_operator("[")) return list("]");
  if (take_operator("{")) return dict();
  if (take_operator("(")) {
    ExpressionPtr inner = tuple_expression();
    expect_operator(")");
    return inner;
  }
  fail("an expression");
}

ExpressionPtr ExpressionParser::list(std::string_view close) {
  ExpressionPtr node = make(Kind::kList, "");
  while (!take_operator(close)) {
    if (!node->children.empty()) {
      expect_operator(",");
      if (take_operator(close)) break;
    }
    adopt(*node, expression());
  }
  return node;
}

ExpressionPtr ExpressionParser::dict() {
  ExpressionPtr node = make(Kind::kDict, "");
  while (!take_operator("}")) {
    if (!node->children.empty()) {
      expect_operator(",");
      if (take_operator("}")) break;
    }
    adopt(*node, expression());
    expect_operator(":");
    adopt(*node, expression());
  }
  return node;
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr value) {
  while (true) {
    if (take_operator(".")) {
      if (peek().kind == Token::Kind::kInteger) {
        value = make(Kind::kIndex, "", std::move(value), primary());
      } else {
        value = make(Kind::kAttribute, expect_identifier(), std::move(value));
      }
    } else if (take_operator("[")) {
      value = subscript(std::move(value));
    } else if (take_operator("(")) {
      value = make(Kind::kCall, "", std::move(value));
      arguments(*value);
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr value) {
  ExpressionPtr parts[3];
  int colons = 0;
  while (!take_operator("]")) {
    if (take_operator(":")) {
      if (++colons > 2) fail("\"]\"");
    } else if (parts[colons] == nullptr) {
      parts[colons] = expression();
    } else {
      fail("\"]\"");
    }
  }
  if (colons > 0) {
    return make(Kind::kSlice, "", std::move(value), std::move(parts[0]), std::move(parts[1]), std::move(parts[2]));
  }
  if (parts[0] == nullptr) fail("an index");
  return make(Kind::kIndex, "", std::move(value), std::move(parts[0]));
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr value) {
  while (true) {
    if (take_operator("|")) {
      value = make(Kind::kFilter, expect_identifier(), std::move(value));
      if (take_operator("(")) arguments(*value);
    } else if (take_name("is")) {
      value = test(std::move(value));
    } else if (take_operator("(")) {
      value = make(Kind::kCall, "", std::move(value));
      arguments(*value);
    } else {
      return value;
    }
  }
}

/// Whether an argument without parentheses follows the name of a test: `is in [...]`.
bool ExpressionParser::begins_test_argument() const {
  switch (peek().kind) {
    case Token::Kind::kString:
    case Token::Kind::kInteger:
    case Token::Kind::kFloat:
      return true;
    case Token::Kind::kName:
      return !at_name("else") && !at_name("or") && !at_name("and");
    case Token::Kind::kOperator:
      return at_operator("[") || at_operator("{");
    default:
      return false;
  }
}

ExpressionPtr ExpressionParser::test(ExpressionPtr value) {
  const bool negated = take_name("not");
  ExpressionPtr node = make(Kind::kTest, expect_identifier(), std::move(value));
  if (take_operator("(")) {
    arguments(*node);
  } else if (begins_test_argument()) {
    adopt(*node, postfix(primary()));
  }
  return negated ? make(Kind::kNot, "", std::move(node)) : std::move(node);
}

void ExpressionParser::arguments(Expression& call) {
  bool first = true;
  while (!take_operator(")")) {
    if (!first) {
      expect_operator(",");
      if (take_operator(")")) return;
    }
    first = false;
    const bool named =
        peek().kind == Token::Kind::kName && peek(1).kind == Token::Kind::kOperator && peek(1).text == "=";
    if (named) {
      std::string name = take().text;
      take();
      call.named.emplace_back(std::move(name), below(call, expression()));
    } else {
      adopt(call, expression());
    }
  }
}

}  // namespace fastspec::cli::jinja
