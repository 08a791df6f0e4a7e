// Detokenization and stop strings.
#include "engine/output_text.h"

#include <algorithm>

#include "base/check.h"

namespace fastspec {

OutputText::OutputText(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::string> stop, int min_tokens,
                       bool skip_special_tokens)
    : tokenizer_(std::move(tokenizer)),
      stop_(std::move(stop)),
      min_tokens_(min_tokens),
      skip_special_tokens_(skip_special_tokens) {
  if (tokenizer_) stream_ = tokenizer_->stream(skip_special_tokens_);
}

bool OutputText::push(int index, TokenId token) {
  FS_CHECK(index >= 0 && index <= static_cast<int>(pieces_.size()), "token ", index, " after ", pieces_.size());
  if (index < static_cast<int>(pieces_.size())) {
    if (pieces_[index].token == token) return pieces_[index].stops;
    // Another token than before: a near-tie in a step that ran again after a failure.
    cut(index);
  }
  append(token);
  return pieces_.back().stops;
}

void OutputText::cut(int num_tokens) {
  const std::vector<Piece> kept(pieces_.begin(), pieces_.begin() + num_tokens);
  pieces_.clear();
  text_.clear();
  stop_begin_ = std::string::npos;
  if (tokenizer_) stream_ = tokenizer_->stream(skip_special_tokens_);
  for (const Piece& piece : kept) append(piece.token);
}

void OutputText::append(TokenId token) {
  Piece piece{.token = token};
  if (stream_) {
    const std::size_t old_size = text_.size();
    text_ += stream_->push(token);
    if (static_cast<int>(pieces_.size()) >= min_tokens_) {
      const std::size_t begin = find_stop(old_size);
      piece.stops = begin != std::string::npos;
      stop_begin_ = std::min(stop_begin_, begin);
    }
  }
  piece.text_end = text_.size();
  pieces_.push_back(piece);
}

std::size_t OutputText::find_stop(std::size_t old_size) const {
  std::size_t begin = std::string::npos;
  for (const std::string& stop : stop_) {
    const std::size_t from = old_size >= stop.size() ? old_size - stop.size() + 1 : 0;
    begin = std::min(begin, text_.find(stop, from));
  }
  return begin;
}

std::size_t OutputText::held_back(std::size_t end) const {
  std::size_t longest = 0;
  for (const std::string& stop : stop_) {
    for (std::size_t length = std::min(stop.size() - 1, end); length > longest; --length) {
      if (text_.compare(end - length, length, stop, 0, length) == 0) longest = length;
    }
  }
  return longest;
}

std::string OutputText::take(int num_tokens, bool finished) {
  FS_CHECK(num_tokens <= static_cast<int>(pieces_.size()), "text of ", num_tokens, " tokens, ", pieces_.size(),
           " were pushed");
  if (!stream_ || num_tokens == 0) return {};
  if (finished && num_tokens < static_cast<int>(pieces_.size())) cut(num_tokens);
  std::size_t end = pieces_[num_tokens - 1].text_end;
  const bool stopped = pieces_[num_tokens - 1].stops;
  if (stopped) {
    end = std::min(end, stop_begin_);
  } else if (finished) {
    text_ += stream_->finish();
    end = text_.size();
  } else {
    end -= held_back(end);
  }
  if (end <= taken_) return {};
  std::string fresh = text_.substr(taken_, end - taken_);
  taken_ = end;
  return fresh;
}

}  // namespace fastspec
