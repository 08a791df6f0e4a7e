// Template text to tokens, with Jinja's rules for white space around tags already applied.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fastspec::cli::jinja {

struct Token {
  enum class Kind {
    kText,
    kBlockBegin,
    kBlockEnd,
    kOutputBegin,
    kOutputEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;  // of a string: its value
  int line = 0;
};

/// @throws Error(kInvalidFile) naming the line.
std::vector<Token> tokenize(std::string_view source);

}  // namespace fastspec::cli::jinja
