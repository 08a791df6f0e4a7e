// Finds the template and the special tokens that it may use.
#include "cli/chat_template.h"

#include <fastspec/error.h>

#include <optional>
#include <system_error>

#include "cli/command.h"
#include "cli/files.h"
#include "cli/json_reader.h"

namespace fastspec::cli {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

/// The text of a file; nothing when it is not there.
std::optional<std::string> read_if_there(const fs::path& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (status.type() == fs::file_type::not_found) return std::nullopt;
  if (error) throw Error(ErrorCode::kNotFound, file.string() + ": " + error.message());
  // Reading a pipe or a device would wait or not end.
  if (!fs::is_regular_file(status)) throw Error(ErrorCode::kInvalidFile, file.string() + ": is no regular file");
  return read_text(file.string());
}

/// An object; an empty one for a file that is not there.
Json read_object(const fs::path& file) {
  const std::optional<std::string> text = read_if_there(file);
  if (!text) return Json::object();
  Json value = parse_json<Json>(*text, file.string());
  if (!value.is_object()) throw Error(ErrorCode::kInvalidFile, file.string() + ": expected a JSON object");
  return value;
}

/// The template's text out of a file that may hold one, or several with names.
Json template_in(const Json& config) {
  const Json found = config.value("chat_template", Json());
  if (!found.is_array()) return found;
  for (const Json& entry : found) {
    if (entry.is_object() && entry.value("name", Json()) == "default") return entry.value("template", Json());
  }
  return nullptr;
}

std::string find_source(const fs::path& directory, const Json& config) {
  if (const std::optional<std::string> text = read_if_there(directory / "chat_template.jinja")) return *text;
  Json found = template_in(config);
  if (found.is_null()) found = template_in(read_object(directory / "chat_template.json"));
  if (found.is_null()) {
    throw Error(ErrorCode::kNotFound, directory.string() +
                                          " has no chat template (chat_template.jinja, or chat_template in " +
                                          "tokenizer_config.json): it may be a base model; use fastspec-cli generate");
  }
  if (!found.is_string()) {
    throw Error(ErrorCode::kInvalidFile, directory.string() + ": chat_template is no string");
  }
  return found.get<std::string>();
}

jinja::Json find_special_tokens(const fs::path& directory, const Json& config) {
  jinja::Json tokens = jinja::Json::object();
  const Json map = read_object(directory / "special_tokens_map.json");
  for (const Json* source : {&map, &config}) {
    for (const char* name :
         {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
      Json value = source->value(name, Json());
      if (value.is_object()) value = value.value("content", Json());
      if (value.is_string()) tokens[name] = value.get<std::string>();
    }
  }
  return tokens;
}

[[noreturn]] void rethrow(const Error& error, const fs::path& directory) {
  std::string message = directory.string() + ": chat " + error.what();
  if (error.code() == ErrorCode::kUnsupported) {
    message += " is not rendered by this program; `python -m fastspec chat --model " + directory.string() + "` does it";
  }
  throw Error(error.code(), message);
}

}  // namespace

ChatTemplate ChatTemplate::load(const fs::path& directory) {
  const Json config = read_object(directory / "tokenizer_config.json");
  const std::string source = find_source(directory, config);
  try {
    return {directory, jinja::Template::parse(source), find_special_tokens(directory, config)};
  } catch (const Error& error) {
    rethrow(error, directory);
  }
}

std::string ChatTemplate::render(const jinja::Json& messages) const {
  jinja::Json variables = special_tokens_;
  variables["messages"] = messages;
  variables["add_generation_prompt"] = true;
  variables["tools"] = nullptr;
  variables["documents"] = nullptr;
  try {
    return compiled_.render(variables, [] {
      if (interrupted()) throw Interrupted();
    });
  } catch (const Error& error) {
    rethrow(error, directory_);
  }
}

}  // namespace fastspec::cli
