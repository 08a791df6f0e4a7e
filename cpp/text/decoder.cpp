// The running steps, one small class per decoder type, and Decoder, which reads their order from the file.
#include "text/decoder.h"

#include <limits>

#include "text/byte_alphabet.h"
#include "text/limits.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace fastspec::text {

namespace {

/// Byte-level tokens: one text of bytes, repaired to UTF-8.
class ByteLevelStage : public DecoderStage {
 public:
  void push(std::string_view token) override {
    bytes_.clear();
    text_.clear();
    append_token_bytes(token, bytes_);
    repair_.push(bytes_, text_);
    forward(text_);
  }
  void finish() override {
    text_.clear();
    repair_.finish(text_);
    forward(text_);
    DecoderStage::finish();
  }

 private:
  Utf8Repair repair_;
  std::string bytes_;
  std::string text_;
};

class ReplaceStage : public DecoderStage {
 public:
  ReplaceStage(std::shared_ptr<const Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)), finder_(*pattern_) {}
  void push(std::string_view token) override {
    finder_.reset(token);
    text_.clear();
    std::size_t copied = 0;
    while (auto match = finder_.next()) {
      text_ += token.substr(copied, match->first - copied);
      append_limited(text_, content_, kMaxTokenBytes, pattern_->where());
      copied = match->second;
    }
    text_ += token.substr(copied);
    forward(text_);
  }

 private:
  std::shared_ptr<const Pattern> pattern_;
  std::string content_;
  Finder finder_;
  std::string text_;
};

/// Runs of tokens <0x00> .. <0xFF> become the text they spell; see Decoder for what a broken run becomes.
class ByteFallbackStage : public DecoderStage {
 public:
  void push(std::string_view token) override {
    const int byte = byte_of(token);
    if (byte >= 0) {
      run_ += static_cast<char>(byte);
      return;
    }
    end_run();
    forward(token);
  }
  void finish() override {
    end_run();
    DecoderStage::finish();
  }

 private:
  static int byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    const auto digit = [](char c) {
      if (c >= '0' && c <= '9') return c - '0';
      if (c >= 'A' && c <= 'F') return c - 'A' + 10;
      return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    };
    // The reference parses with Rust's from_str_radix, to which "+F" is 15.
    const int high = token[3] == '+' ? 0 : digit(token[3]);
    const int low = digit(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
  }
  void end_run() {
    if (run_.empty()) return;
    if (valid_utf8_prefix(run_) == run_.size()) {
      forward(run_);
    } else {
      for (std::size_t i = 0; i < run_.size(); ++i) forward(kReplacementCharacter);
    }
    run_.clear();
  }

  std::string run_;
};

class FuseStage : public DecoderStage {
 public:
  void push(std::string_view token) override { forward(token); }
};

/// Takes a character off both ends: of every token, or of one text that arrives in fragments.
class StripStage : public DecoderStage {
 public:
  StripStage(std::string content, std::int64_t start, std::int64_t stop, bool fused)
      : content_(std::move(content)), start_(start), stop_(stop), fused_(fused), left_(start) {}
  void push(std::string_view token) override {
    text_.clear();
    for (std::size_t begin = 0; begin < token.size();) {
      const std::string_view character = token.substr(begin, utf8_length(static_cast<unsigned char>(token[begin])));
      begin += character.size();
      push_character(character);
    }
    if (!fused_) {
      left_ = start_;
      waiting_ = 0;
    }
    forward(text_);
  }

 private:
  void push_character(std::string_view character) {
    if (character == content_) {
      if (left_ > 0) {
        --left_;
      } else if (waiting_ < stop_) {
        ++waiting_;  // may turn out to be the end
      } else {
        text_ += content_;
      }
      return;
    }
    left_ = 0;
    for (; waiting_ > 0; --waiting_) text_ += content_;
    text_ += character;
  }

  std::string content_;
  std::int64_t start_;
  std::int64_t stop_;
  bool fused_;
  std::int64_t left_;
  std::int64_t waiting_ = 0;
  std::string text_;
};

class MetaspaceStage : public DecoderStage {
 public:
  MetaspaceStage(std::string mark, bool strips_first) : mark_(std::move(mark)), strips_(strips_first) {}
  void push(std::string_view token) override {
    text_.clear();
    for (std::size_t begin = 0; begin < token.size();) {
      const std::string_view character = token.substr(begin, utf8_length(static_cast<unsigned char>(token[begin])));
      begin += character.size();
      if (character != mark_) {
        text_ += character;
      } else if (!strips_) {
        text_ += ' ';
      }
    }
    strips_ = false;
    forward(text_);
  }

 private:
  std::string mark_;
  bool strips_;  // the first token loses its marks
  std::string text_;
};

class JoinStage : public DecoderStage {
 public:
  void push(std::string_view token) override {
    if (!first_) forward(" ");
    first_ = false;
    forward(token);
  }

 private:
  bool first_ = true;
};

const std::string& one_character(const JsonView& json) {
  const std::string& text = json.as_string();
  if (text.empty() || text.size() != utf8_length(static_cast<unsigned char>(text.front()))) {
    json.refuse(ErrorCode::kInvalidFile, "expected one character");
  }
  return text;
}

}  // namespace

DecoderRun::DecoderRun(std::vector<std::unique_ptr<DecoderStage>> stages) : stages_(std::move(stages)) {
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    stages_[i]->set_next(i + 1 < stages_.size() ? stages_[i + 1].get() : &collector_);
  }
}

void DecoderRun::Collector::move_to(std::string& out) {
  out += text_;
  text_.clear();
}

void DecoderRun::push(std::string_view token, std::string& out) {
  stages_.front()->push(token);
  collector_.move_to(out);
}

void DecoderRun::finish(std::string& out) {
  stages_.front()->finish();
  collector_.move_to(out);
}

Decoder::Decoder(const JsonView* json) {
  if (json != nullptr) add(*json);
  if (json == nullptr) makers_.push_back([] { return std::make_unique<JoinStage>(); });
  if (makers_.empty()) makers_.push_back([] { return std::make_unique<FuseStage>(); });
}

DecoderRun Decoder::start() const {
  std::vector<std::unique_ptr<DecoderStage>> stages;
  stages.reserve(makers_.size());
  for (const auto& make : makers_) stages.push_back(make());
  return DecoderRun(std::move(stages));
}

void Decoder::expect_tokens(const JsonView& json) const {
  if (!fused_) return;
  json.refuse(ErrorCode::kUnsupported, "decoder type \"", shown(json.at("type").as_string()),
              "\" after the tokens were fused is not supported");
}

void Decoder::add(const JsonView& json) {
  const std::string type = json.at("type").as_string();
  if (type == "Sequence") {
    for (const JsonView& element : steps_of(json.at("decoders"))) add(element);
  } else if (type == "ByteLevel") {
    expect_tokens(json);
    makers_.push_back([] { return std::make_unique<ByteLevelStage>(); });
    fused_ = true;
  } else if (type == "ByteFallback") {
    expect_tokens(json);
    makers_.push_back([] { return std::make_unique<ByteFallbackStage>(); });
  } else if (type == "Fuse") {
    makers_.push_back([] { return std::make_unique<FuseStage>(); });
    fused_ = true;
  } else if (type == "Replace") {
    add_replace(json);
  } else if (type == "Strip") {
    add_strip(json);
  } else if (type == "Metaspace") {
    add_metaspace(json);
  } else {
    json.refuse(ErrorCode::kUnsupported, "decoder type \"", shown(type), "\" is not supported");
  }
}

void Decoder::add_replace(const JsonView& json) {
  auto pattern = std::make_shared<const Pattern>(Pattern::from_json(json.at("pattern")));
  const std::string content = json.at("content").as_string();
  // Fragments of fused text end between characters, so only a pattern of one character sees all of its matches.
  const std::optional<std::string>& literal = pattern->literal();
  const bool one = literal && literal->size() == utf8_length(static_cast<unsigned char>(literal->front()));
  if (!one) expect_tokens(json);
  makers_.push_back([=] { return std::make_unique<ReplaceStage>(pattern, content); });
}

void Decoder::add_strip(const JsonView& json) {
  const std::string content = one_character(json.at("content"));
  const std::int64_t largest = std::numeric_limits<std::int32_t>::max();
  const std::int64_t start = json.at("start").as_integer(0, largest);
  const std::int64_t stop = json.at("stop").as_integer(0, largest);
  makers_.push_back([=, fused = fused_] { return std::make_unique<StripStage>(content, start, stop, fused); });
}

void Decoder::add_metaspace(const JsonView& json) {
  expect_tokens(json);
  const std::string mark = one_character(json.at("replacement"));
  const std::string scheme =
      json.string_or("prepend_scheme", json.bool_or("add_prefix_space", true) ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    json.at("prepend_scheme").refuse(ErrorCode::kUnsupported, "\"", shown(scheme), "\" is not supported");
  }
  makers_.push_back([=] { return std::make_unique<MetaspaceStage>(mark, scheme != "never"); });
}

}  // namespace fastspec::text
