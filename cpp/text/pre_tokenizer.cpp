// One small class per pre-tokenizer type; from_json() at the end is the only place that knows their names.
#include "text/pre_tokenizer.h"

#include <algorithm>
#include <optional>

#include "text/byte_alphabet.h"
#include "text/limits.h"
#include "text/regex.h"
#include "text/regex_syntax.h"
#include "text/unicode.h"

namespace fastspec::text {

namespace {

using Piece = PieceList::Piece;

/// What becomes of the matches of a splitting pattern.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

SplitBehavior behavior_from_json(const JsonView& json) {
  const std::string& name = json.as_string();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  json.refuse(ErrorCode::kUnsupported, "split behavior \"", shown(name), "\" is not supported");
}

/// Matches and the gaps between them, covering one piece.
struct Section {
  Piece piece;
  bool is_match;
};

void find_sections(const PieceList& list, const Piece& piece, Finder& finder, bool invert, std::vector<Section>& out) {
  out.clear();
  finder.reset(list.view(piece));
  std::size_t covered = piece.begin;
  while (auto match = finder.next()) {
    const std::size_t begin = piece.begin + match->first;
    const std::size_t end = piece.begin + match->second;
    if (covered != begin) out.push_back({{covered, begin}, invert});
    out.push_back({{begin, end}, !invert});
    covered = end;
  }
  if (covered != piece.end) out.push_back({{covered, piece.end}, invert});
}

/// Appends the pieces that a behavior makes of the sections. Two matches in a row merge only once with a neighbour.
/// Empty sections (matches of no length) take part in merging like the others and are dropped afterwards.
void append_pieces(const std::vector<Section>& sections, SplitBehavior behavior, std::vector<Piece>& out) {
  const std::size_t first = out.size();
  bool previous_match = false;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    const auto& [piece, is_match] = sections[i];
    const bool merges_back = (behavior == SplitBehavior::kMergedWithPrevious && is_match && !previous_match) ||
                             (behavior == SplitBehavior::kContiguous && is_match == previous_match);
    const bool merges_on =
        behavior == SplitBehavior::kMergedWithNext && is_match && i + 1 < sections.size() && !sections[i + 1].is_match;
    if (merges_back && out.size() > first) {
      out.back().end = piece.end;
    } else if (merges_on) {
      out.push_back({piece.begin, sections[++i].piece.end});
    } else if (behavior != SplitBehavior::kRemoved || !is_match) {
      out.push_back(piece);
    }
    previous_match = is_match;
  }
  const auto empty = [](const Piece& piece) { return piece.begin == piece.end; };
  out.erase(std::remove_if(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(), empty), out.end());
}

void split(PieceList& list, const Pattern& pattern, SplitBehavior behavior, bool invert) {
  Finder finder(pattern);
  std::vector<Section> sections;
  std::vector<Piece> pieces;
  pieces.reserve(list.pieces.size());
  for (const Piece& piece : list.pieces) {
    find_sections(list, piece, finder, invert, sections);
    append_pieces(sections, behavior, pieces);
  }
  list.pieces = std::move(pieces);
}

/// Replaces the text by what `rewrite(piece view, is at input start, out)` appends for every piece.
template <typename Rewrite>
void rewrite_pieces(PieceList& list, const Rewrite& rewrite) {
  const bool first_begins_input = list.at_input_start && !list.pieces.empty() && list.pieces.front().begin == 0;
  std::string text;
  text.reserve(list.text.size() + list.text.size() / 4);
  for (Piece& piece : list.pieces) {
    const std::size_t begin = text.size();
    rewrite(list.view(piece), list.at_input_start && piece.begin == 0, text);
    piece = {begin, text.size()};
  }
  list.at_input_start = first_begins_input;
  list.text = std::move(text);
}

class SequencePreTokenizer : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(const JsonView& json) {
    for (const JsonView& element : steps_of(json.at("pretokenizers"))) parts_.push_back(from_json(element));
  }
  void apply(PieceList& list) const override {
    for (const auto& part : parts_) part->apply(list);
  }

 private:
  std::vector<std::unique_ptr<const PreTokenizer>> parts_;
};

class SplitPreTokenizer : public PreTokenizer {
 public:
  explicit SplitPreTokenizer(const JsonView& json)
      : SplitPreTokenizer(Pattern::from_json(json.at("pattern")), behavior_from_json(json.at("behavior")),
                          json.bool_or("invert", false)) {}
  SplitPreTokenizer(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void apply(PieceList& list) const override { split(list, pattern_, behavior_, invert_); }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

/// Maps bytes to the byte-level alphabet, after GPT-2's own split unless that is switched off.
class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  explicit ByteLevelPreTokenizer(const JsonView& json) : add_prefix_space_(json.bool_or("add_prefix_space", true)) {
    if (!json.bool_or("use_regex", true)) return;
    pattern_ = Pattern::from_regex(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
                                   json.file() + ": ByteLevel");
  }
  void apply(PieceList& list) const override {
    if (add_prefix_space_) {
      rewrite_pieces(list, [](std::string_view piece, bool, std::string& out) {
        if (!piece.starts_with(' ')) out += ' ';
        out += piece;
      });
    }
    if (pattern_) split(list, *pattern_, SplitBehavior::kIsolated, false);
    rewrite_pieces(list, [](std::string_view piece, bool, std::string& out) { append_byte_characters(piece, out); });
  }

 private:
  bool add_prefix_space_;
  std::optional<Pattern> pattern_;
};

/// SentencePiece's spaces: ' ' becomes a visible mark, one is put in front, and words begin at marks.
class MetaspacePreTokenizer : public PreTokenizer {
 public:
  explicit MetaspacePreTokenizer(const JsonView& json)
      : mark_(json.at("replacement").as_string()),
        prepend_scheme_(json.string_or("prepend_scheme", json.bool_or("add_prefix_space", true) ? "always" : "never")) {
    const bool one_character = !mark_.empty() && mark_.size() == utf8_length(static_cast<unsigned char>(mark_.front()));
    if (!one_character) json.at("replacement").refuse(ErrorCode::kInvalidFile, "expected one character");
    if (prepend_scheme_ != "always" && prepend_scheme_ != "first" && prepend_scheme_ != "never") {
      json.at("prepend_scheme").refuse(ErrorCode::kUnsupported, "\"", shown(prepend_scheme_), "\" is not supported");
    }
    if (json.bool_or("split", true)) {
      pattern_ = Pattern::from_literal(mark_);
    }
  }
  void apply(PieceList& list) const override {
    rewrite_pieces(list, [this](std::string_view piece, bool at_input_start, std::string& out) {
      const bool prepends = prepend_scheme_ == "always" || (prepend_scheme_ == "first" && at_input_start);
      if (prepends && !piece.starts_with(' ') && !piece.starts_with(mark_)) out += mark_;
      for (char c : piece) {
        if (c == ' ') {
          out += mark_;
        } else {
          out += c;
        }
      }
    });
    if (pattern_) split(list, *pattern_, SplitBehavior::kMergedWithNext, false);
  }

 private:
  std::string mark_;
  std::string prepend_scheme_;
  std::optional<Pattern> pattern_;
};

std::unique_ptr<const PreTokenizer> fixed_split(const JsonView& json, std::string_view regex, SplitBehavior behavior,
                                                bool invert) {
  const std::string type = json.at("type").as_string();
  return std::make_unique<SplitPreTokenizer>(Pattern::from_regex(regex, json.file() + ": " + type), behavior, invert);
}

}  // namespace

std::unique_ptr<const PreTokenizer> PreTokenizer::from_json(const JsonView& json) {
  const std::string type = json.at("type").as_string();
  if (type == "Sequence") return std::make_unique<SequencePreTokenizer>(json);
  if (type == "Split") return std::make_unique<SplitPreTokenizer>(json);
  if (type == "ByteLevel") return std::make_unique<ByteLevelPreTokenizer>(json);
  if (type == "Metaspace") return std::make_unique<MetaspacePreTokenizer>(json);
  if (type == "Digits") {
    const bool individual = json.bool_or("individual_digits", false);
    return fixed_split(json, R"(\p{N})", individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false);
  }
  if (type == "Whitespace") {
    const std::string word(kRustWordClass);
    return fixed_split(json, "[" + word + "]+|[^" + word + "\\s]+", SplitBehavior::kRemoved, true);
  }
  if (type == "WhitespaceSplit") return fixed_split(json, R"(\s)", SplitBehavior::kRemoved, false);
  json.refuse(ErrorCode::kUnsupported, "pre-tokenizer type \"", shown(type), "\" is not supported");
}

}  // namespace fastspec::text
