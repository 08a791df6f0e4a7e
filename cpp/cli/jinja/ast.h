// What the parser hands to the evaluator. Data only.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/jinja/template.h"

namespace fastspec::cli::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind {
    kLiteral,      // literal
    kName,         // text
    kList,         // children
    kDict,         // children: key, value, key, value, ...
    kAttribute,    // children[0] . text
    kIndex,        // children[0] [ children[1] ]
    kSlice,        // children[0] [ children[1] : children[2] : children[3] ], absent ones null
    kCall,         // children[0] ( children[1...], named )
    kFilter,       // children[0] | text ( children[1...], named )
    kTest,         // children[0] is text ( children[1...] )
    kNegative,     // - children[0]
    kNot,          // not children[0]
    kAnd,          // children[0] and children[1]
    kOr,           // children[0] or children[1]
    kBinary,       // children[0] text children[1]
    kConditional,  // children[0] if children[1] else children[2] (may be null)
  };
  Kind kind = Kind::kLiteral;
  int height = 1;  // of the tree below
  std::string text;
  Json literal;
  std::vector<ExpressionPtr> children;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Statement;

struct Body {
  std::vector<Statement> statements;
};

struct Statement {
  enum class Kind {
    kText,    // text
    kOutput,  // {{ value }}
    kIf,      // branches: condition (null for else) and body
    kFor,     // for names in value if condition: branches[0] is the body, branches[1], if there, the else
    kSet,     // names[0] [. attribute] = value, or the text of branches[0]
    kMacro,   // text(names = defaults): branches[0]
    kGroup,   // branches[0], as if it stood here
    kBreak,
    kContinue,
  };
  struct Branch {
    ExpressionPtr condition;
    Body body;
  };
  Kind kind = Kind::kText;
  std::string text;
  std::vector<std::string> names;
  std::string attribute;
  ExpressionPtr value;
  ExpressionPtr condition;
  std::vector<ExpressionPtr> defaults;  // of the last names
  std::vector<Branch> branches;
};

}  // namespace fastspec::cli::jinja
