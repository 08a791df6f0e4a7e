// Statements: text, output, if, for, set, macro, generation, break, continue.
#include "cli/jinja/parser.h"

#include <fastspec/error.h>

#include <algorithm>
#include <initializer_list>

#include "cli/jinja/expression_parser.h"

namespace fastspec::cli::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::string_view source) : ExpressionParser(tokenize(source)) {}

  Body run() {
    Body body = parse_body({});
    if (peek().kind != Token::Kind::kEnd) fail("the end of the template");
    return body;
  }

 private:
  using Kind = Statement::Kind;

  /// True at "{% word" for one of the words; takes nothing.
  bool at_tag(std::initializer_list<std::string_view> words) const {
    if (peek().kind != Token::Kind::kBlockBegin || peek(1).kind != Token::Kind::kName) return false;
    return std::find(words.begin(), words.end(), peek(1).text) != words.end();
  }

  void end_block() {
    if (peek().kind != Token::Kind::kBlockEnd) fail("\"%}\"");
    take();
  }

  /// Takes "{% word %}".
  void expect_tag(std::string_view word) {
    if (peek().kind != Token::Kind::kBlockBegin) fail("{% " + std::string(word) + " %}");
    take();
    expect_name(word);
    end_block();
  }

  /// Statements up to a tag that begins with one of the words, or to the end.
  Body parse_body(std::initializer_list<std::string_view> ends) {
    const Depth depth(*this);
    Body body;
    while (peek().kind != Token::Kind::kEnd && !at_tag(ends)) body.statements.push_back(parse_statement());
    return body;
  }

  Statement parse_statement() {
    Statement statement;
    if (peek().kind == Token::Kind::kText) {
      statement.text = take().text;
    } else if (peek().kind == Token::Kind::kOutputBegin) {
      take();
      statement.kind = Kind::kOutput;
      statement.value = expression();
      if (peek().kind != Token::Kind::kOutputEnd) fail("\"}}\"");
      take();
    } else {
      take();
      parse_block(statement);
    }
    return statement;
  }

  void parse_block(Statement& statement) {
    const std::string word = expect_identifier();
    if (word == "if") return parse_if(statement);
    if (word == "for") return parse_for(statement);
    if (word == "set") return parse_set(statement);
    if (word == "macro") return parse_macro(statement);
    if (word == "break" || word == "continue") {
      statement.kind = word == "break" ? Kind::kBreak : Kind::kContinue;
      return end_block();
    }
    if (word == "generation") {
      statement.kind = Kind::kGroup;
      end_block();
      statement.branches.push_back({nullptr, parse_body({"endgeneration"})});
      return expect_tag("endgeneration");
    }
    throw Error(ErrorCode::kUnsupported, "template: the statement {% " + word + " %}");
  }

  void parse_if(Statement& statement) {
    statement.kind = Kind::kIf;
    ExpressionPtr condition = expression();
    while (true) {
      end_block();
      Body body = parse_body({"elif", "else", "endif"});
      statement.branches.push_back({std::move(condition), std::move(body)});
      if (peek().kind == Token::Kind::kEnd) fail("{% endif %}");
      take();
      const std::string word = take().text;
      if (word == "endif") return end_block();
      condition = word == "elif" ? expression() : nullptr;
    }
  }

  void parse_for(Statement& statement) {
    statement.kind = Kind::kFor;
    do {
      statement.names.push_back(expect_identifier());
    } while (take_operator(","));
    expect_name("in");
    statement.value = or_expression();
    if (take_name("if")) statement.condition = expression();
    end_block();
    statement.branches.push_back({nullptr, parse_body({"else", "endfor"})});
    if (at_tag({"else"})) {
      expect_tag("else");
      statement.branches.push_back({nullptr, parse_body({"endfor"})});
    }
    expect_tag("endfor");
  }

  void parse_set(Statement& statement) {
    statement.kind = Kind::kSet;
    statement.names.push_back(expect_identifier());
    if (take_operator(".")) statement.attribute = expect_identifier();
    if (at_operator(",")) throw Error(ErrorCode::kUnsupported, "template: {% set %} of several names");
    if (take_operator("=")) {
      statement.value = tuple_expression();
      return end_block();
    }
    if (at_operator("|")) throw Error(ErrorCode::kUnsupported, "template: {% set %} with a filter");
    end_block();
    statement.branches.push_back({nullptr, parse_body({"endset"})});
    expect_tag("endset");
  }

  void parse_macro(Statement& statement) {
    statement.kind = Kind::kMacro;
    statement.text = expect_identifier();
    expect_operator("(");
    while (!take_operator(")")) {
      if (!statement.names.empty()) expect_operator(",");
      statement.names.push_back(expect_identifier());
      if (take_operator("=")) {
        statement.defaults.push_back(expression());
      } else if (!statement.defaults.empty()) {
        fail("a default");
      }
    }
    end_block();
    statement.branches.push_back({nullptr, parse_body({"endmacro"})});
    expect_tag("endmacro");
  }
};

}  // namespace

std::unique_ptr<Body> parse_template(std::string_view source) {
  return std::make_unique<Body>(Parser(source).run());
}

}  // namespace fastspec::cli::jinja
