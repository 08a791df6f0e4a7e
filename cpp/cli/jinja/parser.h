// Tokens to a tree.
#pragma once

#include <memory>
#include <string_view>

#include "cli/jinja/ast.h"

namespace fastspec::cli::jinja {

/// @throws Error(kInvalidFile) naming the line, Error(kUnsupported) naming the statement.
std::unique_ptr<Body> parse_template(std::string_view source);

}  // namespace fastspec::cli::jinja
