// Templates are flattened when they are loaded; only the form for a single text is used.
#include "text/post_processor.h"

#include <algorithm>

#include "text/limits.h"

namespace fastspec::text {

namespace {

class TemplateProcessor : public PostProcessor {
 public:
  TemplateProcessor(const JsonView& json, int id_space) {
    for (const JsonView& piece : steps_of(json.at("single"))) add_piece(json, piece, id_space);
  }
  std::vector<TokenId> apply(std::vector<TokenId> ids) const override {
    std::vector<TokenId> result;
    result.reserve(ids.size() + pieces_.size());
    for (TokenId piece : pieces_) {
      if (piece == kText) {
        result.insert(result.end(), ids.begin(), ids.end());
      } else {
        result.push_back(piece);
      }
    }
    return result;
  }

 private:
  static constexpr TokenId kText = -1;

  void add_piece(const JsonView& json, const JsonView& piece, int id_space) {
    if (auto sequence = piece.find("Sequence")) {
      const JsonView name = sequence->at("id");
      if (name.as_string() != "A") name.refuse(ErrorCode::kUnsupported, "a single text has sequence \"A\" only");
      if (std::find(pieces_.begin(), pieces_.end(), kText) != pieces_.end()) {
        name.refuse(ErrorCode::kUnsupported, "the text occurs twice in the template");
      }
      pieces_.push_back(kText);
      return;
    }
    const std::string name = piece.at("SpecialToken").at("id").as_string();
    for (const JsonView& id : json.at("special_tokens").at(name).at("ids").elements()) {
      if (pieces_.size() >= kMaxSteps)
        json.refuse(ErrorCode::kInvalidFile, "a template of more than ", kMaxSteps, " ids");
      pieces_.push_back(static_cast<TokenId>(id.as_integer(0, id_space - 1)));
    }
  }

  std::vector<TokenId> pieces_;
};

class SequenceProcessor : public PostProcessor {
 public:
  SequenceProcessor() = default;  // leaves ids as they are
  SequenceProcessor(const JsonView& json, int id_space) {
    for (const JsonView& element : steps_of(json.at("processors"))) parts_.push_back(from_json(element, id_space));
  }
  std::vector<TokenId> apply(std::vector<TokenId> ids) const override {
    for (const auto& part : parts_) ids = part->apply(std::move(ids));
    return ids;
  }

 private:
  std::vector<std::unique_ptr<const PostProcessor>> parts_;
};

}  // namespace

std::unique_ptr<const PostProcessor> PostProcessor::from_json(const JsonView& json, int id_space) {
  const std::string type = json.at("type").as_string();
  if (type == "TemplateProcessing") return std::make_unique<TemplateProcessor>(json, id_space);
  if (type == "Sequence") return std::make_unique<SequenceProcessor>(json, id_space);
  if (type == "ByteLevel") return std::make_unique<SequenceProcessor>();
  json.refuse(ErrorCode::kUnsupported, "post-processor type \"", shown(type), "\" is not supported");
}

}  // namespace fastspec::text
