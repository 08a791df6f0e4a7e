// A byte trie per kind of text. The length of a token is limited, so that searching stays linear in the text.
#include "text/added_tokens.h"

#include <algorithm>

#include "text/id_limit.h"
#include "text/regex_syntax.h"
#include "text/unicode.h"

namespace fastspec::text {

namespace {

constexpr std::size_t kMaxTokenBytes = 1024;
constexpr std::size_t kMaxTotalBytes = std::size_t{4} << 20;

std::size_t white_space_begin(std::string_view text) {
  std::size_t begin = text.size();
  while (begin > 0) {
    const std::size_t previous = previous_boundary(text, begin);
    std::size_t position = previous;
    if (!is_white_space(next_code_point(text, position))) break;
    begin = previous;
  }
  return begin;
}

std::size_t white_space_length(std::string_view text) {
  std::size_t end = 0;
  for (std::size_t position = 0; position < text.size(); end = position) {
    if (!is_white_space(next_code_point(text, position))) break;
  }
  return end;
}

}  // namespace

TokenTrie::TokenTrie() : nodes_(1), roots_(256, 0) {}

void TokenTrie::insert(std::string_view token, std::size_t value) {
  std::uint32_t current = 0;
  for (char c : token) {
    const auto byte = static_cast<unsigned char>(c);
    auto& children = nodes_[current].children;
    auto child = std::lower_bound(children.begin(), children.end(), std::pair(byte, std::uint32_t{0}));
    if (child == children.end() || child->first != byte) {
      const auto created = static_cast<std::uint32_t>(nodes_.size());
      if (current == 0) roots_[byte] = created;
      children.insert(child, {byte, created});
      nodes_.emplace_back();
      current = created;
    } else {
      current = child->second;
    }
  }
  nodes_[current].value = value;
}

std::optional<TokenTrie::Match> TokenTrie::match_at(std::string_view text, std::size_t begin) const {
  std::optional<Match> longest;
  std::uint32_t current = roots_[static_cast<unsigned char>(text[begin])];
  for (std::size_t end = begin + 1; current != 0; ++end) {
    const Node& node = nodes_[current];
    if (node.value != kNoValue) longest = Match{begin, end, node.value};
    if (end == text.size()) break;
    const auto byte = static_cast<unsigned char>(text[end]);
    auto child = std::lower_bound(node.children.begin(), node.children.end(), std::pair(byte, std::uint32_t{0}));
    current = child != node.children.end() && child->first == byte ? child->second : 0;
  }
  return longest;
}

std::optional<TokenTrie::Match> TokenTrie::find(std::string_view text, std::size_t from) const {
  if (empty()) return std::nullopt;
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (roots_[static_cast<unsigned char>(text[begin])] == 0) continue;
    if (auto match = match_at(text, begin)) return match;
  }
  return std::nullopt;
}

AddedTokens::AddedTokens(const JsonView* json, const BpeModel& model, const Normalizer* normalizer)
    : word_character_(Pattern::from_regex("[" + std::string(kRustWordClass) + "]", "single_word")) {
  if (json == nullptr) return;
  load(*json, model);
  index(normalizer, json->file());
}

void AddedTokens::load(const JsonView& json, const BpeModel& model) {
  const std::vector<JsonView> entries = json.elements();
  const std::int64_t limit = id_limit(entries.size() + static_cast<std::size_t>(model.id_space()));
  std::size_t total_bytes = 0;
  for (const JsonView& entry : entries) {
    AddedToken token;
    token.content = entry.at("content").as_string();
    token.special = entry.bool_or("special", false);
    token.lstrip = entry.bool_or("lstrip", false);
    token.rstrip = entry.bool_or("rstrip", false);
    token.single_word = entry.bool_or("single_word", false);
    token.normalized = entry.bool_or("normalized", !token.special);
    const std::int64_t id = entry.at("id").as_integer(0, limit - 1);
    total_bytes += token.content.size();
    if (token.content.size() > kMaxTokenBytes || total_bytes > kMaxTotalBytes) {
      entry.at("content").refuse(ErrorCode::kUnsupported, token.content.size(), " bytes: more than ", kMaxTokenBytes,
                                 " in a token or ", kMaxTotalBytes, " in all of them");
    }
    if (token.content.empty()) continue;  // would match everywhere; the reference leaves it out too
    add(entry, std::move(token), id, model);
  }
}

void AddedTokens::add(const JsonView& place, AddedToken token, std::int64_t id, const BpeModel& model) {
  token.id = static_cast<TokenId>(id);
  const std::optional<TokenId> model_id = model.token_to_id(token.content);
  if (model_id && *model_id != token.id) {
    place.refuse(ErrorCode::kInvalidFile, "token \"", shown(token.content), "\" has id ", id, ", but ", *model_id,
                 " in model.vocab");
  }
  if (!model_id && token.id < model.id_space() && !model.id_to_token(token.id).empty()) {
    place.refuse(ErrorCode::kInvalidFile, "id ", id, " of token \"", shown(token.content), "\" belongs to \"",
                 shown(model.id_to_token(token.id)), "\" in model.vocab");
  }
  const bool new_content = by_content_.emplace(token.content, tokens_.size()).second;
  const bool new_id = by_id_.emplace(token.id, tokens_.size()).second;
  if (!new_content || !new_id) {
    place.refuse(ErrorCode::kInvalidFile, new_content ? "id " : "token \"",
                 new_content ? std::to_string(id) : shown(token.content) + "\"", " occurs twice");
  }
  id_space_ = std::max(id_space_, token.id + 1);
  tokens_.push_back(std::move(token));
}

void AddedTokens::index(const Normalizer* normalizer, const std::string& file) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    if (!token.normalized) {
      raw_trie_.insert(token.content, i);
      continue;
    }
    const std::string spelling = normalizer != nullptr ? normalizer->apply(token.content) : token.content;
    if (spelling.empty() || spelling.size() > 4 * kMaxTokenBytes) {
      fail(ErrorCode::kUnsupported, file, ": added token \"", shown(token.content), "\" has ", spelling.size(),
           " bytes after normalization");
    }
    normalized_trie_.insert(spelling, i);
  }
}

bool AddedTokens::stands_alone(std::string_view text, const TokenTrie::Match& match) const {
  Finder finder(word_character_);
  const auto is_word = [&](std::size_t begin, std::size_t end) {
    finder.reset(text.substr(begin, end - begin));
    return finder.next().has_value();
  };
  if (match.begin > 0 && is_word(previous_boundary(text, match.begin), match.begin)) return false;
  if (match.end == text.size()) return true;
  return !is_word(match.end, match.end + utf8_length(static_cast<unsigned char>(text[match.end])));
}

std::vector<TextSpan> AddedTokens::split(std::string_view text, bool normalized) const {
  const TokenTrie& trie = normalized ? normalized_trie_ : raw_trie_;
  std::vector<TextSpan> spans;
  std::size_t covered = 0;
  std::size_t from = 0;
  while (auto match = trie.find(text, from)) {
    from = match->end;
    const AddedToken& token = tokens_[match->value];
    if (token.single_word && !stands_alone(text, *match)) continue;
    std::size_t begin = match->begin;
    std::size_t end = match->end;
    // White space that the token before has taken is not taken twice.
    if (token.lstrip) begin = std::max(white_space_begin(text.substr(0, begin)), covered);
    if (token.rstrip) end += white_space_length(text.substr(end));
    if (covered < begin) spans.push_back({covered, begin});
    spans.push_back({begin, end, token.id});
    covered = end;
  }
  if (covered < text.size()) spans.push_back({covered, text.size()});
  return spans;
}

const AddedToken* AddedTokens::find(TokenId id) const {
  const auto entry = by_id_.find(id);
  return entry == by_id_.end() ? nullptr : &tokens_[entry->second];
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto entry = by_content_.find(std::string(content));
  return entry == by_content_.end() ? nullptr : &tokens_[entry->second];
}

}  // namespace fastspec::text
