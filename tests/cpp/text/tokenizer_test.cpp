// Encoding and decoding with files small enough to work out the ids by hand. Equality with the reference implementation
// on long texts is tested from Python.
#include <fastspec/error.h>
#include <fastspec/tokenizer.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "support/expect_error.h"
#include "support/tokenizer_json.h"

namespace fastspec {
namespace {

using Ids = std::vector<TokenId>;
using nlohmann::json;
using test::byte_fallback_json;
using test::byte_level_json;
using test::load_tokenizer;

TEST(ByteLevelTokenizer, MergesAndRoundTrips) {
  const auto tokenizer = load_tokenizer(byte_level_json());
  EXPECT_EQ(tokenizer->vocab_size(), 260);
  EXPECT_EQ(tokenizer->encode("ab ab a"), (Ids{257, 258, 256}));
  EXPECT_EQ(tokenizer->encode("ab  ab"), (Ids{257, ' ', 258}));
  EXPECT_EQ(tokenizer->encode(""), Ids{});
  const std::string text = "naïve 日本\n\t😀 ab\x01";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

TEST(ByteLevelTokenizer, InvalidUtf8IsReadAsReplacementCharacters) {
  const auto tokenizer = load_tokenizer(byte_level_json());
  EXPECT_EQ(tokenizer->encode("a\xE2\x82z"), tokenizer->encode("a\xEF\xBF\xBDz"));
  EXPECT_EQ(tokenizer->encode("\xC0\x80\xF0\x9F\x98"), tokenizer->encode("\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"));
}

TEST(ByteLevelTokenizer, AddedTokensInsideText) {
  const auto tokenizer = load_tokenizer(byte_level_json());
  const Ids ids = tokenizer->encode("ab<|end|> ab<|end");
  EXPECT_EQ(Ids(ids.begin(), ids.begin() + 3), (Ids{257, 259, 258}));
  EXPECT_EQ(tokenizer->decode(Ids{257, 259, 258}), "ab ab");
  EXPECT_EQ(tokenizer->decode(Ids{257, 259, 258}, false), "ab<|end|> ab");
  EXPECT_TRUE(tokenizer->is_special(259));
  EXPECT_FALSE(tokenizer->is_special(258));
  EXPECT_FALSE(tokenizer->is_special(-5));
}

TEST(ByteLevelTokenizer, SpellingsAndIds) {
  const auto tokenizer = load_tokenizer(byte_level_json());
  EXPECT_EQ(tokenizer->token_to_id("Ġab"), 258);
  EXPECT_EQ(tokenizer->token_to_id("<|end|>"), 259);
  EXPECT_EQ(tokenizer->token_to_id(" ab"), std::nullopt);
  EXPECT_EQ(tokenizer->id_to_token(258), "Ġab");
  EXPECT_EQ(tokenizer->id_to_token(259), "<|end|>");
  for (TokenId id : {-1, 260, 1 << 30}) {
    EXPECT_THROW(tokenizer->id_to_token(id), Error);
    EXPECT_THROW(tokenizer->decode(Ids{id}), Error);
    EXPECT_THROW(tokenizer->stream()->push(id), Error);
  }
}

TEST(ByteLevelTokenizer, AddedTokenFlags) {
  json file = byte_level_json();
  const auto with = [&](const json& flags) {
    json token = {{"id", 259}, {"content", "<t>"}, {"special", false}, {"normalized", false}};
    token.update(flags);
    file["added_tokens"][0] = token;
    return load_tokenizer(file);
  };
  EXPECT_EQ(with(json::object())->encode("a <t> b"), (Ids{'a', ' ', 259, ' ', 'b'}));
  EXPECT_EQ(with({{"lstrip", true}})->encode("a \n<t> b"), (Ids{'a', 259, ' ', 'b'}));
  EXPECT_EQ(with({{"rstrip", true}})->encode("a <t> \u3000b"), (Ids{'a', ' ', 259, 'b'}));
  const auto single = with({{"single_word", true}});
  EXPECT_EQ(single->encode("a<t>").size(), 4u);
  EXPECT_EQ(single->encode("<t>ü").size(), 5u);
  EXPECT_EQ(single->encode("-<t>."), (Ids{'-', 259, '.'}));
}

TEST(ByteLevelTokenizer, LongestAddedTokenWins) {
  json file = byte_level_json();
  file["added_tokens"].push_back({{"id", 260}, {"content", "<|end"}, {"special", false}, {"normalized", false}});
  file["added_tokens"].push_back({{"id", 261}, {"content", "end|>x"}, {"special", false}, {"normalized", false}});
  const auto tokenizer = load_tokenizer(file);
  EXPECT_EQ(tokenizer->encode("<|end|>x"), (Ids{259, 'x'}));
  EXPECT_EQ(tokenizer->encode("<|end|"), (Ids{260, '|'}));
  EXPECT_EQ(tokenizer->encode("|end|>x"), (Ids{'|', 261}));
}

TEST(ByteLevelTokenizer, IgnoreMergesTakesWholeWords) {
  json file = byte_level_json();
  file["model"]["vocab"]["abba"] = 259;
  file["added_tokens"] = json::array();
  EXPECT_EQ(load_tokenizer(file)->encode("abba"), (Ids{257, 'b', 'a'}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(load_tokenizer(file)->encode("abba"), (Ids{259}));
}

TEST(ByteLevelTokenizer, NormalizedAddedTokensMatchNormalizedText) {
  json file = byte_level_json();
  file["normalizer"] = {{"type", "NFC"}};
  file["added_tokens"][0] = {{"id", 259}, {"content", "e\u0301"}, {"normalized", true}, {"special", false}};
  EXPECT_EQ(load_tokenizer(file)->encode("a\u00e9e\u0301"), (Ids{'a', 259, 259}));
  file["added_tokens"][0]["normalized"] = false;
  EXPECT_EQ(load_tokenizer(file)->encode("e\u0301a"), (Ids{259, 'a'}));
  EXPECT_EQ(load_tokenizer(file)->encode("\u00e9").size(), 2u);
}

TEST(ByteFallbackTokenizer, EncodesAsSentencePieceDoes) {
  const auto tokenizer = load_tokenizer(byte_fallback_json());
  EXPECT_EQ(tokenizer->encode("ab ab"), (Ids{1, 264, 264}));
  EXPECT_EQ(tokenizer->encode("ab ab", false), (Ids{264, 264}));
  EXPECT_EQ(tokenizer->encode("€", false), (Ids{259, 3 + 0xE2, 3 + 0x82, 3 + 0xAC}));
  EXPECT_EQ(tokenizer->encode("a</s>b", false), (Ids{262, 2, 259, 261}));
  EXPECT_EQ(tokenizer->encode(""), Ids{1});
}

TEST(ByteFallbackTokenizer, Decodes) {
  const auto tokenizer = load_tokenizer(byte_fallback_json());
  EXPECT_EQ(tokenizer->decode(Ids{1, 264, 264}), "ab ab");
  EXPECT_EQ(tokenizer->decode(Ids{1, 264, 2}, false), "<s> ab</s>");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("  €a 😀")), "  €a 😀");
  // As in the reference, one broken byte spoils its whole run.
  EXPECT_EQ(tokenizer->decode(Ids{260, 3 + 'x', 3 + 0xE2, 260}), "a\uFFFD\uFFFDa");
}

TEST(ByteFallbackTokenizer, UnknownTokens) {
  json file = byte_fallback_json();
  file["model"]["byte_fallback"] = false;
  EXPECT_EQ(load_tokenizer(file)->encode("a€€b", false), (Ids{262, 0, 261}));
  file["model"]["fuse_unk"] = false;
  EXPECT_EQ(load_tokenizer(file)->encode("a€€b", false), (Ids{262, 0, 0, 261}));
}

TEST(ByteFallbackTokenizer, Metaspace) {
  json file = byte_fallback_json();
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", false}};
  EXPECT_EQ(load_tokenizer(file)->encode("ab</s>ab", false), (Ids{264, 2, 263}));
  file["pre_tokenizer"]["prepend_scheme"] = "always";
  EXPECT_EQ(load_tokenizer(file)->encode("ab</s>ab", false), (Ids{264, 2, 264}));
  file["pre_tokenizer"]["prepend_scheme"] = "never";
  EXPECT_EQ(load_tokenizer(file)->encode("ab</s>ab", false), (Ids{263, 2, 263}));
}

/// BPE by its definition: again and again the leftmost of the pairs that rank first, until none is left.
std::vector<std::string> merge_by_definition(const std::string& word, const json& merges) {
  std::vector<std::string> parts;
  for (char c : word) parts.emplace_back(1, c);
  for (;;) {
    std::size_t best_rank = merges.size();
    std::size_t best = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const json pair = json::array({parts[i], parts[i + 1]});
      const auto rank = static_cast<std::size_t>(std::find(merges.begin(), merges.end(), pair) - merges.begin());
      if (rank < best_rank) {
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == merges.size()) return parts;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(Tokenizer, MergesByDefinitionOnRandomVocabularies) {
  std::mt19937 random(17);
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  for (int round = 0; round < 60; ++round) {
    json file = byte_level_json();
    json merges = json::array();
    std::vector<std::string> tokens = {"a", "b", "c"};
    for (int id = 300; id < 330; ++id) {
      const std::string left = tokens[below(tokens.size())], right = tokens[below(tokens.size())];
      const json pair = json::array({left, right});
      if (std::find(merges.begin(), merges.end(), pair) != merges.end()) continue;
      merges.insert(merges.begin() + static_cast<std::ptrdiff_t>(below(merges.size() + 1)), pair);
      if (!file["model"]["vocab"].contains(left + right)) {
        file["model"]["vocab"][left + right] = id;
        tokens.push_back(left + right);
      }
    }
    file["model"]["merges"] = merges;
    const auto tokenizer = load_tokenizer(file);
    for (int k = 0; k < 40; ++k) {
      std::string word;
      for (std::size_t length = below(24); word.size() < length;) word += "abc"[below(3)];
      std::vector<std::string> parts;
      for (TokenId id : tokenizer->encode(word)) parts.push_back(tokenizer->id_to_token(id));
      EXPECT_EQ(parts, merge_by_definition(word, merges)) << word << " " << merges;
    }
  }
}

TEST(Tokenizer, ALongWordIsNotQuadratic) {
  // "aaaa..." of one megabyte with merges that double: a quadratic merge would take hours.
  json file = byte_level_json();
  std::string token = "a";
  json merges = json::array();
  for (int id = 300; id < 310; ++id) {
    merges.push_back(json::array({token, token}));
    token += token;
    file["model"]["vocab"][token] = id;
  }
  file["model"]["merges"] = merges;
  const auto tokenizer = load_tokenizer(file);
  const std::string text(1 << 20, 'a');
  EXPECT_EQ(tokenizer->encode(text), Ids(1 << 10, 309));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_EQ(tokenizer->encode(std::string(1 << 20, ' ')).size(), std::size_t{1} << 20);
}

TEST(Tokenizer, OneInstanceServesManyThreads) {
  const auto tokenizer = load_tokenizer(byte_level_json());
  const Ids expected = tokenizer->encode("ab ab 日本 <|end|> 12");
  std::vector<std::thread> threads;
  std::vector<int> equal(4);
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < 200; ++k) equal[i] += tokenizer->encode("ab ab 日本 <|end|> 12") == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 200));
}

TEST(Tokenizer, LoadsDirectoryOrFile) {
  const test::TemporaryDirectory directory;
  const auto file = directory.write("tokenizer.json", byte_level_json().dump());
  EXPECT_EQ(Tokenizer::load(directory.path())->vocab_size(), 260);
  EXPECT_EQ(Tokenizer::load(file)->vocab_size(), 260);
  test::expect_error(ErrorCode::kNotFound, {"nothing: no such file"},
                     [&] { Tokenizer::load(directory.path() / "nothing"); });
}

TEST(Tokenizer, HoldsModelsOlderThanTheTypeField) {
  json file = byte_level_json();
  file["model"].erase("type");
  EXPECT_EQ(load_tokenizer(file)->encode("ab"), Ids{257});
}

}  // namespace
}  // namespace fastspec
