// Incremental decoding: equal to decode(), never half a character, nothing held longer than needed.
#include <fastspec/tokenizer.h>
#include <gtest/gtest.h>

#include <random>

#include "support/tokenizer_json.h"
#include "text/unicode.h"

namespace fastspec {
namespace {

using Ids = std::vector<TokenId>;
using test::byte_fallback_json;
using test::byte_level_json;
using test::load_tokenizer;

std::vector<std::string> pushes(const Tokenizer& tokenizer, const Ids& ids, bool skip = true) {
  const auto stream = tokenizer.stream(skip);
  std::vector<std::string> parts;
  for (TokenId id : ids) parts.push_back(stream->push(id));
  parts.push_back(stream->finish());
  return parts;
}

TEST(StreamDecoder, ByteLevelWaitsForWholeCharacters) {
  const auto tokenizer = load_tokenizer(byte_level_json());
  using Parts = std::vector<std::string>;
  EXPECT_EQ(pushes(*tokenizer, {'x', 0xF0, 0x9F, 0x98, 0x80, 'y'}), (Parts{"x", "", "", "", "😀", "y", ""}));
  EXPECT_EQ(pushes(*tokenizer, {0xE2, 0x82}), (Parts{"", "", "\uFFFD"}));
  EXPECT_EQ(pushes(*tokenizer, {0xE2, 'a', 0x80}), (Parts{"", "\uFFFDa", "\uFFFD", ""}));
  EXPECT_EQ(pushes(*tokenizer, {258, 259, 257}), (Parts{" ab", "", "ab", ""}));
}

TEST(StreamDecoder, ByteFallbackStripsTheLeadingSpaceOnce) {
  const auto tokenizer = load_tokenizer(byte_fallback_json());
  using Parts = std::vector<std::string>;
  EXPECT_EQ(pushes(*tokenizer, {1, 259, 264, 264}), (Parts{"", "", " ab", " ab", ""}));
  EXPECT_EQ(pushes(*tokenizer, {262, 3 + 0xE2, 3 + 0x82, 3 + 0xAC, 260}), (Parts{"a", "", "", "", "€a", ""}));
  EXPECT_EQ(pushes(*tokenizer, {262, 3 + 0xC3, 3 + 0xA9}), (Parts{"a", "", "", "é"}));
}

TEST(StreamDecoder, EqualsDecodeOnRandomIds) {
  for (const auto& file : {byte_level_json(), byte_fallback_json()}) {
    const auto tokenizer = load_tokenizer(file);
    std::mt19937 random(5);
    for (int round = 0; round < 2000; ++round) {
      Ids ids(random() % 12);
      for (TokenId& id : ids) id = static_cast<TokenId>(random() % static_cast<unsigned>(tokenizer->vocab_size()));
      const bool skip = round % 2 == 0;
      std::string whole;
      for (const std::string& part : pushes(*tokenizer, ids, skip)) {
        EXPECT_EQ(text::valid_utf8_prefix(part), part.size());
        whole += part;
      }
      EXPECT_EQ(whole, tokenizer->decode(ids, skip));
    }
  }
}

TEST(StreamDecoder, HoldsTrailingCharactersThatMayBeStripped) {
  auto file = byte_fallback_json();
  file["decoder"]["decoders"][3]["stop"] = 2;
  const auto tokenizer = load_tokenizer(file);
  using Parts = std::vector<std::string>;
  EXPECT_EQ(pushes(*tokenizer, {260, 259, 259, 259, 260, 259}), (Parts{"a", "", "", " ", "  a", "", ""}));
}

TEST(StreamDecoder, OutlivesTheTokenizerHandle) {
  auto tokenizer = load_tokenizer(byte_level_json());
  const auto stream = tokenizer->stream();
  tokenizer.reset();
  EXPECT_EQ(stream->push(258), " ab");
}

TEST(StreamDecoder, WithoutADecoderTokensAreJoinedBySpaces) {
  auto file = byte_level_json();
  file["decoder"] = nullptr;
  EXPECT_EQ(load_tokenizer(file)->decode(Ids{258, 'a', 257}), "Ġab a ab");
}

}  // namespace
}  // namespace fastspec
