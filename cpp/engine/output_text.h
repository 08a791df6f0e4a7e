// The text of one sample's generated tokens: streaming detokenization and the search for stop strings. Knows no engine.
#pragma once

#include <fastspec/tokenizer.h>

#include <memory>
#include <string>
#include <vector>

namespace fastspec {

class OutputText {
 public:
  /// @param tokenizer may be null: then there is no text and no stop string is ever found.
  /// @param min_tokens stop strings that end in the text of the first min_tokens tokens are ordinary text.
  OutputText(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::string> stop, int min_tokens,
             bool skip_special_tokens);

  /// Sets generated token `index`, 0 being the first. Setting an index again with the same token is free, so a step
  /// that is run again may push what the failed one pushed. @returns true when a stop string ends inside this token's
  /// text.
  bool push(int index, TokenId token);

  /// Text that became certain with the tokens up to `num_tokens` and was not taken yet. Text that may turn out to be
  /// the beginning of a stop string is held back until `finished`.
  std::string take(int num_tokens, bool finished);

 private:
  struct Piece {
    TokenId token = 0;
    std::size_t text_end = 0;  // length of the text after this token
    bool stops = false;
  };
  void append(TokenId token);
  /// Drops all but the first tokens; the stream starts anew.
  void cut(int num_tokens);
  /// Where the first stop string begins that ends beyond `old_size`; npos when there is none.
  std::size_t find_stop(std::size_t old_size) const;
  std::size_t held_back(std::size_t end) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<std::string> stop_;
  int min_tokens_;
  bool skip_special_tokens_;
  std::unique_ptr<Tokenizer::Stream> stream_;
  std::string text_;
  std::vector<Piece> pieces_;
  std::size_t taken_ = 0;
  std::size_t stop_begin_ = std::string::npos;  // where the text ends because of a stop string
};

}  // namespace fastspec
