// Tokenizer::load and the order of the steps: added tokens, normalizer, pre-tokenizer, BPE, post-processor; and back.
#include <fastspec/tokenizer.h>

#include "base/check.h"
#include "base/log.h"
#include "io/json.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/stream_decoder.h"
#include "text/unicode.h"

namespace fastspec {

namespace {

class JsonTokenizer : public Tokenizer, public std::enable_shared_from_this<JsonTokenizer> {
 public:
  explicit JsonTokenizer(const JsonView& json)
      : normalizer_(optional_part<text::Normalizer>(json, "normalizer")),
        pre_tokenizer_(optional_part<text::PreTokenizer>(json, "pre_tokenizer")),
        model_(json.at("model")),
        added_(as_pointer(json.find("added_tokens")), model_, normalizer_.get()),
        decoder_(as_pointer(json.find("decoder"))) {
    if (auto part = json.find("post_processor")) post_processor_ = text::PostProcessor::from_json(*part, vocab_size());
    for (const char* name : {"truncation", "padding"}) {
      // Both are settings of a training run that were saved with the file; a prompt is neither cut nor padded.
      if (json.find(name)) log(LogLevel::kInfo, json.file(), ": field \"", name, "\" is ignored");
    }
  }

  std::vector<TokenId> encode(std::string_view input, bool add_special_tokens) const override {
    std::string repaired;
    if (text::valid_utf8_prefix(input) != input.size()) {
      repaired = text::repair_utf8(input);
      input = repaired;
    }
    std::vector<TokenId> ids;
    text::BpeEncoder bpe(model_);
    for (const text::TextSpan& span : added_.split(input, /*normalized=*/false)) {
      if (span.id >= 0) {
        ids.push_back(span.id);
      } else {
        encode_span(input.substr(span.begin, span.end - span.begin), span.begin == 0, bpe, ids);
      }
    }
    if (add_special_tokens && post_processor_) ids = post_processor_->apply(std::move(ids));
    return ids;
  }

  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override {
    text::DecoderRun run = decoder_.start();
    std::string result;
    for (TokenId id : ids) {
      if (const std::string* spelling = spelling_of(id, skip_special_tokens)) run.push(*spelling, result);
    }
    run.finish(result);
    return result;
  }

  std::unique_ptr<Stream> stream(bool skip_special_tokens) const override {
    return std::make_unique<text::StreamDecoder>(
        shared_from_this(), [this, skip_special_tokens](TokenId id) { return spelling_of(id, skip_special_tokens); },
        decoder_);
  }

  int vocab_size() const noexcept override { return std::max(model_.id_space(), added_.id_space()); }

  std::optional<TokenId> token_to_id(std::string_view token) const override {
    if (const text::AddedToken* added = added_.find(token)) return added->id;
    return model_.token_to_id(token);
  }

  std::string id_to_token(TokenId id) const override {
    check_id(id);
    const std::string* token = find_token(id);
    return token != nullptr ? *token : std::string();
  }

  bool is_special(TokenId id) const noexcept override {
    const text::AddedToken* added = added_.find(id);
    return added != nullptr && added->special;
  }

 private:
  template <typename Part>
  static std::unique_ptr<const Part> optional_part(const JsonView& json, const char* name) {
    auto part = json.find(name);
    return part ? Part::from_json(*part) : nullptr;
  }
  static const JsonView* as_pointer(const std::optional<JsonView>& json) { return json ? &*json : nullptr; }

  /// Text between added tokens that are not normalized.
  void encode_span(std::string_view raw, bool at_input_start, text::BpeEncoder& bpe, std::vector<TokenId>& ids) const {
    std::string normalized(raw);
    if (normalizer_) normalized = normalizer_->apply(std::move(normalized));
    for (const text::TextSpan& span : added_.split(normalized, /*normalized=*/true)) {
      if (span.id >= 0) {
        ids.push_back(span.id);
        continue;
      }
      text::PieceList list;
      list.text = normalized.substr(span.begin, span.end - span.begin);
      list.pieces.push_back({0, list.text.size()});
      list.at_input_start = at_input_start && span.begin == 0;
      if (pre_tokenizer_) pre_tokenizer_->apply(list);
      for (const text::PieceList::Piece& piece : list.pieces) bpe.append(list.view(piece), ids);
    }
  }

  void check_id(TokenId id) const {
    if (id >= 0 && id < vocab_size()) return;
    fail(ErrorCode::kInvalidArgument, "token id ", id, " is outside of the vocabulary [0, ", vocab_size(), ")");
  }

  const std::string* find_token(TokenId id) const {
    if (const text::AddedToken* added = added_.find(id)) return &added->content;
    if (id >= model_.id_space() || model_.id_to_token(id).empty()) return nullptr;
    return &model_.id_to_token(id);
  }

  const std::string* spelling_of(TokenId id, bool skip_special_tokens) const {
    check_id(id);
    if (skip_special_tokens && is_special(id)) return nullptr;
    return find_token(id);
  }

  std::unique_ptr<const text::Normalizer> normalizer_;
  std::unique_ptr<const text::PreTokenizer> pre_tokenizer_;
  text::BpeModel model_;
  text::AddedTokens added_;
  text::Decoder decoder_;
  std::unique_ptr<const text::PostProcessor> post_processor_;
};

}  // namespace

std::shared_ptr<const Tokenizer> Tokenizer::load(const std::filesystem::path& path) {
  std::error_code status;
  const bool directory = std::filesystem::is_directory(path, status);
  const std::filesystem::path file = directory ? path / "tokenizer.json" : path;
  const Json json = parse_json_file(file);
  return std::make_shared<const JsonTokenizer>(JsonView(json, file.string()));
}

}  // namespace fastspec
