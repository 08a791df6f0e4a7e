// The part of the Jinja language that chat templates are written in, with the results of Python's jinja2 (trim_blocks
// and lstrip_blocks on, as transformers sets them). What is not in it is refused by name and never guessed. Templates
// come from strangers: depth, steps and output are bounded. Knows nothing of chats or models.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fastspec::cli::jinja {

using Json = nlohmann::ordered_json;

struct Body;

class Template {
 public:
  /// @throws Error(kInvalidFile) for text that is no template, Error(kUnsupported) naming a statement that is not
  /// built.
  static Template parse(std::string_view source);
  Template(Template&&) noexcept;
  ~Template();

  /// @param variables an object.
  /// @param poll called now and then; may throw to end the rendering.
  /// @throws Error(kUnsupported) naming a filter, test, method or function that is not built,
  /// Error(kInvalidArgument) where the template itself refuses or fails.
  std::string render(const Json& variables, const std::function<void()>& poll) const;

 private:
  explicit Template(std::unique_ptr<Body> body);
  std::unique_ptr<Body> body_;
};

}  // namespace fastspec::cli::jinja
