// A tokenizer given as a table of byte strings, for tests of what is built on the public interface. Only decodes.
#pragma once

#include <fastspec/error.h>
#include <fastspec/tokenizer.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fastspec::test {

/// Token i is table[i]; the last token is special. Bytes of incomplete UTF-8 characters wait in the stream.
class TableTokenizer final : public Tokenizer {
 public:
  explicit TableTokenizer(std::vector<std::string> table) : table_(std::move(table)) {}

  std::vector<TokenId> encode(std::string_view, bool) const override {
    throw Error(ErrorCode::kUnsupported, "a table only decodes");
  }
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override {
    const std::unique_ptr<Stream> decoder = stream(skip_special_tokens);
    std::string text;
    for (const TokenId id : ids) text += decoder->push(id);
    return text + decoder->finish();
  }
  int vocab_size() const noexcept override { return static_cast<int>(table_.size()); }
  std::optional<TokenId> token_to_id(std::string_view) const override { return std::nullopt; }
  std::string id_to_token(TokenId id) const override { return table_.at(id); }
  bool is_special(TokenId id) const noexcept override { return id + 1 == vocab_size(); }
  std::unique_ptr<Stream> stream(bool skip_special_tokens) const override {
    return std::make_unique<TableStream>(*this, skip_special_tokens);
  }

 private:
  class TableStream final : public Stream {
   public:
    TableStream(const TableTokenizer& tokenizer, bool skip_special_tokens)
        : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}
    std::string push(TokenId id) override {
      if (!(skip_special_tokens_ && tokenizer_.is_special(id))) waiting_ += tokenizer_.table_.at(id);
      const std::size_t length = complete();
      std::string text = waiting_.substr(0, length);
      waiting_.erase(0, length);
      return text;
    }
    std::string finish() override { return std::exchange(waiting_, {}).empty() ? "" : "\xEF\xBF\xBD"; }

   private:
    /// Bytes of whole characters at the front of what waits; the table holds valid text cut anywhere.
    std::size_t complete() const {
      std::size_t end = 0;
      while (end < waiting_.size()) {
        const auto lead = static_cast<unsigned char>(waiting_[end]);
        const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
        if (end + length > waiting_.size()) break;
        end += length;
      }
      return end;
    }

    const TableTokenizer& tokenizer_;
    bool skip_special_tokens_;
    std::string waiting_;
  };

  std::vector<std::string> table_;
};

}  // namespace fastspec::test
