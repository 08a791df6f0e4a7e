// Reads BpeModel from the "model" object of tokenizer.json. Every id and every merge is checked here, so that encoding
// never has to.
#include <limits>

#include "text/bpe.h"
#include "text/id_limit.h"
#include "text/unicode.h"

namespace fastspec::text {

BpeModel::BpeModel(const JsonView& json) {
  load_options(json);
  load_vocabulary(json.at("vocab"));
  load_merges(json.at("merges"));
  index_characters();
  if (auto unknown = json.find("unk_token")) {
    unknown_id_ = token_to_id(unknown->as_string());
    if (!unknown_id_) {
      unknown->refuse(ErrorCode::kInvalidFile, "token \"", shown(unknown->as_string()), "\" is not in the vocabulary");
    }
  }
}

void BpeModel::load_options(const JsonView& json) {
  // Files from before the field was introduced (GPT-2's own) hold BPE only.
  const std::string type = json.string_or("type", "BPE");
  if (type != "BPE") {
    json.at("type").refuse(ErrorCode::kUnsupported, "model type \"", shown(type), "\" is not supported");
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const std::string affix = json.string_or(name, "");
    if (!affix.empty()) json.at(name).refuse(ErrorCode::kUnsupported, "\"", shown(affix), "\" is not supported");
  }
  if (const double dropout = json.number_or("dropout", 0); dropout != 0) {
    json.at("dropout").refuse(ErrorCode::kUnsupported, dropout, " is not supported: encoding must be deterministic");
  }
  byte_fallback_ = json.bool_or("byte_fallback", false);
  fuse_unknown_ = json.bool_or("fuse_unk", false);
  ignore_merges_ = json.bool_or("ignore_merges", false);
}

void BpeModel::load_vocabulary(const JsonView& json) {
  json.names();  // fails unless this is an object
  const auto& entries = json.value().get_ref<const Json::object_t&>();
  const std::int64_t limit = id_limit(entries.size());
  ids_.reserve(entries.size());
  std::size_t id_space = 0;
  for (const auto& [token, value] : entries) {
    const JsonView place(value, json.file(), json.field() + "." + shown(token));
    id_space = std::max(id_space, static_cast<std::size_t>(place.as_integer(0, limit - 1)) + 1);
  }
  if (entries.empty()) json.refuse(ErrorCode::kInvalidFile, "the vocabulary is empty");
  tokens_.resize(id_space);
  std::vector<bool> taken(id_space);
  for (const auto& [token, value] : entries) {
    const auto id = value.get<std::size_t>();
    if (taken[id]) {
      json.refuse(ErrorCode::kInvalidFile, "id ", id, " belongs to both \"", shown(tokens_[id]), "\" and \"",
                  shown(token), "\"");
    }
    taken[id] = true;
    tokens_[id] = token;
    ids_.emplace(tokens_[id], static_cast<TokenId>(id));
  }
}

void BpeModel::load_merges(const JsonView& json) {
  const std::size_t count = json.array_size();
  if (count > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    json.refuse(ErrorCode::kInvalidFile, count, " merges");
  }
  merges_.reserve(count);
  for (std::size_t rank = 0; rank < count; ++rank) {
    const Json& entry = json.value()[rank];
    if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
      add_merge(json, entry[0].get_ref<const std::string&>(), entry[1].get_ref<const std::string&>(), rank);
      continue;
    }
    const JsonView place = json.at(rank);
    if (!entry.is_string()) place.refuse(ErrorCode::kInvalidFile, "expected \"left right\" or [left, right]");
    const std::string_view line = place.as_string();
    if (line.starts_with("#version")) continue;
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      place.refuse(ErrorCode::kInvalidFile, "merge \"", shown(line), "\" is not two tokens with one space between");
    }
    add_merge(json, line.substr(0, space), line.substr(space + 1), rank);
  }
}

void BpeModel::add_merge(const JsonView& place, std::string_view left, std::string_view right, std::size_t rank) {
  const auto id_of = [&](std::string_view token) {
    const std::optional<TokenId> id = token_to_id(token);
    if (!id) {
      place.at(rank).refuse(ErrorCode::kInvalidFile, "token \"", shown(token), "\" is not in the vocabulary");
    }
    return *id;
  };
  const TokenId left_id = id_of(left);
  const TokenId right_id = id_of(right);
  const TokenId result = id_of(std::string(left).append(right));
  merges_.insert(left_id, right_id, {static_cast<std::int32_t>(rank), result});
}

void BpeModel::index_characters() {
  low_characters_.assign(1 << 16, -1);
  byte_ids_.fill(-1);
  for (const auto& [token, id] : ids_) {
    if (!token.empty() && token.size() == utf8_length(static_cast<unsigned char>(token.front()))) {
      std::size_t position = 0;
      const char32_t code_point = next_code_point(token, position);
      if (code_point < low_characters_.size()) low_characters_[code_point] = id;
    }
  }
  constexpr char kHex[] = "0123456789ABCDEF";
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const std::string token = std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + ">";
    byte_ids_[byte] = token_to_id(token).value_or(-1);
  }
}

}  // namespace fastspec::text
