// The chat template in a model's directory: a conversation to the text the model was trained on.
#pragma once

#include <filesystem>
#include <string>

#include "cli/jinja/template.h"

namespace fastspec::cli {

class ChatTemplate {
 public:
  /// Reads chat_template.jinja, or the chat_template of tokenizer_config.json or chat_template.json.
  /// @throws Error(kNotFound, kInvalidFile, kUnsupported) naming the file and what is at fault.
  static ChatTemplate load(const std::filesystem::path& directory);

  /// @param messages an array of {"role", "content"}.
  /// @throws Error(kUnsupported) naming what this program does not render and the Python command that does,
  /// Error(kInvalidArgument) where the template refuses the messages; Interrupted.
  std::string render(const jinja::Json& messages) const;

 private:
  ChatTemplate(std::filesystem::path directory, jinja::Template compiled, jinja::Json special_tokens)
      : directory_(std::move(directory)), compiled_(std::move(compiled)), special_tokens_(std::move(special_tokens)) {}

  std::filesystem::path directory_;
  jinja::Template compiled_;
  jinja::Json special_tokens_;  // bos_token and the like, as templates name them
};

}  // namespace fastspec::cli
