// The "pre_tokenizer" of tokenizer.json: cuts text into the pieces that BPE works on. Assigns no ids.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace fastspec::text {

/// A text and the pieces of it that remain, in order and without overlap. No piece is empty.
struct PieceList {
  struct Piece {
    std::size_t begin;
    std::size_t end;
  };
  std::string text;
  std::vector<Piece> pieces;
  /// True when the piece that begins at 0 begins the whole input (no added token stands before it).
  bool at_input_start = false;

  std::string_view view(const Piece& piece) const {
    return std::string_view(text).substr(piece.begin, piece.end - piece.begin);
  }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Cuts (and for some types rewrites) every piece of the list.
  virtual void apply(PieceList& list) const = 0;

  /// Builds Sequence, Split, ByteLevel, Digits, Metaspace, Whitespace or WhitespaceSplit.
  /// @throws Error(kUnsupported) naming any other type.
  static std::unique_ptr<const PreTokenizer> from_json(const JsonView& json);
};

}  // namespace fastspec::text
