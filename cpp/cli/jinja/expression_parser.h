// Expressions, in Jinja's order of precedence. Base of the statement parser; owns the position in the tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/jinja/ast.h"
#include "cli/jinja/lexer.h"

namespace fastspec::cli::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  const Token& peek(std::size_t ahead = 0) const;
  Token take();
  bool at_operator(std::string_view text) const;
  bool at_name(std::string_view text) const;
  bool take_operator(std::string_view text);
  bool take_name(std::string_view text);
  void expect_operator(std::string_view text);
  void expect_name(std::string_view text);
  std::string expect_identifier();
  [[noreturn]] void fail(const std::string& expected) const;

  /// A full expression; `a if b else c` included.
  ExpressionPtr expression();
  /// One without a trailing `if`, for `for x in ... if ...`.
  ExpressionPtr or_expression();
  /// Comma-separated expressions as one list, or a single one.
  ExpressionPtr tuple_expression();

  /// Counts nesting while it lives. @throws Error(kUnsupported) beyond the limit.
  class Depth {
   public:
    explicit Depth(ExpressionParser& parser);
    ~Depth() { --parser_.depth_; }

   private:
    ExpressionParser& parser_;
  };

 private:
  ExpressionPtr and_expression();
  ExpressionPtr not_expression();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr unary(bool with_filter);
  ExpressionPtr primary();
  ExpressionPtr list(std::string_view close);
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr value);
  ExpressionPtr subscript(ExpressionPtr value);
  ExpressionPtr filters(ExpressionPtr value);
  bool begins_test_argument() const;
  ExpressionPtr test(ExpressionPtr value);
  void arguments(Expression& call);

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace fastspec::cli::jinja
