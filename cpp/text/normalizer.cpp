// One small class per normalizer type; from_json() at the end is the only place that knows their names.
#include "text/normalizer.h"

#include <vector>

#include "text/limits.h"
#include "text/nfc.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace fastspec::text {

namespace {

class SequenceNormalizer : public Normalizer {
 public:
  explicit SequenceNormalizer(const JsonView& json) {
    for (const JsonView& element : steps_of(json.at("normalizers"))) parts_.push_back(from_json(element));
  }
  std::string apply(std::string text) const override {
    for (const auto& part : parts_) text = part->apply(std::move(text));
    return text;
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> parts_;
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(const JsonView& json) : prefix_(json.at("prepend").as_string()) {}
  std::string apply(std::string text) const override { return text.empty() ? text : prefix_ + text; }

 private:
  std::string prefix_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  explicit ReplaceNormalizer(const JsonView& json)
      : pattern_(Pattern::from_json(json.at("pattern"))), content_(json.at("content").as_string()) {}
  std::string apply(std::string text) const override {
    Finder finder(pattern_);
    finder.reset(text);
    std::string result;
    std::size_t copied = 0;
    while (auto match = finder.next()) {
      result.append(text, copied, match->first - copied);
      append_limited(result, content_, kMaxTextBytes, pattern_.where());
      copied = match->second;
    }
    if (copied == 0) return text;
    return result.append(text, copied);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class NfcNormalizer : public Normalizer {
 public:
  std::string apply(std::string text) const override { return to_nfc(text); }
};

class StripNormalizer : public Normalizer {
 public:
  explicit StripNormalizer(const JsonView& json)
      : left_(json.at("strip_left").as_bool()), right_(json.at("strip_right").as_bool()) {}
  std::string apply(std::string text) const override {
    std::size_t begin = 0;
    std::size_t end = text.size();
    for (std::size_t next = 0; left_ && begin < end; begin = next) {
      if (!is_white_space(next_code_point(text, next))) break;
    }
    while (right_ && end > begin) {
      const std::size_t last = previous_boundary(text, end);
      std::size_t position = last;
      if (!is_white_space(next_code_point(text, position))) break;
      end = last;
    }
    return text.substr(begin, end - begin);
  }

 private:
  bool left_;
  bool right_;
};

}  // namespace

std::unique_ptr<const Normalizer> Normalizer::from_json(const JsonView& json) {
  const std::string type = json.at("type").as_string();
  if (type == "Sequence") return std::make_unique<SequenceNormalizer>(json);
  if (type == "Prepend") return std::make_unique<PrependNormalizer>(json);
  if (type == "Replace") return std::make_unique<ReplaceNormalizer>(json);
  if (type == "NFC") return std::make_unique<NfcNormalizer>();
  if (type == "Strip") return std::make_unique<StripNormalizer>(json);
  json.refuse(ErrorCode::kUnsupported, "normalizer type \"", shown(type), "\" is not supported");
}

}  // namespace fastspec::text
