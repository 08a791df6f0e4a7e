// The parts of the tokenizer one by one: UTF-8, NFC, regular expressions, splitting, the byte alphabet.
#include <gtest/gtest.h>

#include "text/byte_alphabet.h"
#include "text/nfc.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/regex.h"
#include "text/regex_syntax.h"
#include "text/unicode.h"

namespace fastspec::text {
namespace {

using Strings = std::vector<std::string>;

TEST(Utf8, RepairsIllFormedPartsAsTheStandardRecommends) {
  EXPECT_EQ(repair_utf8("plain é 日 😀"), "plain é 日 😀");
  EXPECT_EQ(repair_utf8("\x80"), "\uFFFD");
  EXPECT_EQ(repair_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate
  EXPECT_EQ(repair_utf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(repair_utf8("\xE2\x82"), "\uFFFD");
  EXPECT_EQ(repair_utf8("\xF0\x9F\x98x"), "\uFFFDx");
  EXPECT_EQ(repair_utf8("\xE0\x9F\x41"), "\uFFFD\uFFFD\x41");
}

TEST(Utf8, ValidPrefixAgreesWithRepair) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string text = {'x', static_cast<char>(first), static_cast<char>(second), '\x80', '\xBF'};
      const bool valid = valid_utf8_prefix(text) == text.size();
      EXPECT_EQ(valid, repair_utf8(text) == text) << first << " " << second;
    }
  }
}

TEST(Nfc, ComposesDecomposesAndOrders) {
  EXPECT_EQ(to_nfc("plain"), "plain");
  EXPECT_EQ(to_nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(to_nfc("\u00e9\u0323"), "\u1eb9\u0301");    // decomposed, ordered, composed again
  EXPECT_EQ(to_nfc("q\u0307\u0323"), "q\u0323\u0307");  // ordered, nothing to compose
  EXPECT_EQ(to_nfc("\u212b"), "\u00c5");                // a singleton
  EXPECT_EQ(to_nfc("\u0958"), "\u0915\u093c");          // excluded from composition
  EXPECT_EQ(to_nfc("\u1100\u1161\u11a8x"), "\uac01x");
  EXPECT_EQ(to_nfc("\uac00\u11a8"), "\uac01");
  EXPECT_EQ(to_nfc("a\u0334\u0301"), "\u00e1\u0334");   // a mark of another class does not block
  EXPECT_EQ(to_nfc("a\u030d\u0301"), "a\u030d\u0301");  // one of the same class does
  EXPECT_EQ(to_nfc("\u0301a"), "\u0301a");
  EXPECT_EQ(to_nfc("1\u0338\u1dfa"), "1\u0338\u1dfa");  // a mark later than the tables stays where it is
}

Strings matches(const std::string& regex, const std::string& text) {
  const Pattern pattern = Pattern::from_regex(regex, "test");
  Finder finder(pattern);
  finder.reset(text);
  Strings found;
  while (auto match = finder.next()) found.push_back(text.substr(match->first, match->second - match->first));
  return found;
}

TEST(Regex, MeansWhatItMeansInTheFile) {
  EXPECT_EQ(matches("\\s+", "a \u3000\u180e\u00a0b"), (Strings{" \u3000", "\u00a0"}));  // U+180E is no space
  EXPECT_EQ(matches("[^\\S\\n]", " \n\t"), (Strings{" ", "\t"}));
  EXPECT_EQ(matches("\\w+", "e\u0301_² +"), (Strings{"e\u0301_²"}));
  EXPECT_EQ(matches("(?i:'s|'ll)", "'S 'ſ 'Ll"), (Strings{"'S", "'ſ", "'Ll"}));
  EXPECT_EQ(matches("\\s+(?!\\S)|\\s+", "a   b  "), (Strings{"  ", " ", "  "}));
  EXPECT_EQ(matches("^a", "a\na"), (Strings{"a", "a"}));
  EXPECT_EQ(matches("(?m:a.)", "a\n"), (Strings{"a\n"}));
  EXPECT_EQ(matches("a.", "a\nab"), (Strings{"ab"}));
  EXPECT_EQ(matches("a{,2}b", "aaab"), (Strings{"aab"}));
  EXPECT_EQ(matches("[\\s-]+", "a - b"), (Strings{" - "}));
  EXPECT_EQ(matches("[\\s-a]+", "x- ab"), (Strings{"- a"}));  // a dash behind a set is no range
  EXPECT_EQ(matches("\\p{Han}+", "漢字。かな"), (Strings{"漢字"}));
  EXPECT_EQ(matches("x*", "axb"), (Strings{"", "x", ""}));
}

TEST(Regex, DeepRepetitionOfGroupsFallsBackToTheInterpreter) {
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += "ab";
  EXPECT_EQ(matches("(?:(a)|(b))+", text), Strings{text});
}

PieceList cut(const char* pre_tokenizer, const std::string& text) {
  const Json json = parse_json(pre_tokenizer, "test");
  PieceList list{text, {{0, text.size()}}, true};
  PreTokenizer::from_json(JsonView(json, "test"))->apply(list);
  return list;
}

Strings pieces(const char* pre_tokenizer, const std::string& text) {
  const PieceList list = cut(pre_tokenizer, text);
  Strings result;
  for (const auto& piece : list.pieces) result.emplace_back(list.view(piece));
  return result;
}

TEST(PreTokenizer, SplitBehaviors) {
  const auto split = [](const std::string& behavior, const std::string& text, bool invert = false) {
    const std::string json = R"({"type":"Split","pattern":{"String":"-"},"behavior":")" + behavior + R"(","invert":)" +
                             (invert ? "true" : "false") + "}";
    return pieces(json.c_str(), text);
  };
  EXPECT_EQ(split("Isolated", "a--b-"), (Strings{"a", "-", "-", "b", "-"}));
  EXPECT_EQ(split("Removed", "-a--b-"), (Strings{"a", "b"}));
  EXPECT_EQ(split("MergedWithPrevious", "a--b-c"), (Strings{"a-", "-", "b-", "c"}));
  EXPECT_EQ(split("MergedWithNext", "a--b-c-"), (Strings{"a", "-", "-b", "-c", "-"}));
  EXPECT_EQ(split("Contiguous", "a--b-c"), (Strings{"a", "--", "b", "-", "c"}));
  EXPECT_EQ(split("Removed", "a--b-", true), (Strings{"-", "-", "-"}));
}

TEST(PreTokenizer, Digits) {
  EXPECT_EQ(pieces(R"({"type":"Digits","individual_digits":true})", "a12²"), (Strings{"a", "1", "2", "²"}));
  EXPECT_EQ(pieces(R"({"type":"Digits","individual_digits":false})", "a12b"), (Strings{"a", "12", "b"}));
}

TEST(PreTokenizer, ByteLevel) {
  EXPECT_EQ(pieces(R"({"type":"ByteLevel","add_prefix_space":true})", "it's\u00e9  x"),
            (Strings{"Ġit", "'s", "Ã©", "Ġ", "Ġx"}));
  EXPECT_EQ(pieces(R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})", "a b"), (Strings{"aĠb"}));
}

TEST(PreTokenizer, MetaspaceFirstLooksAtTheInputNotAtThePiece) {
  const char* json = R"({"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},
      {"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":true}]})";
  EXPECT_EQ(pieces(json, "ab cd"), (Strings{"_ab", "cd"}));
  EXPECT_EQ(pieces(json, " ab cd"), (Strings{"ab", "cd"}));
}

TEST(PreTokenizer, Whitespace) {
  EXPECT_EQ(pieces(R"({"type":"Whitespace"})", "a_b, c!?\td"), (Strings{"a_b", ",", "c", "!?", "d"}));
  EXPECT_EQ(pieces(R"({"type":"WhitespaceSplit"})", " a,b\u2003c "), (Strings{"a,b", "c"}));
}

TEST(Normalizer, RewritesText) {
  const auto apply = [](const char* text, const std::string& input) {
    const Json json = parse_json(text, "test");
    return Normalizer::from_json(JsonView(json, "test"))->apply(input);
  };
  EXPECT_EQ(apply(R"({"type":"Strip","strip_left":true,"strip_right":true})", "\u3000 a b\n "), "a b");
  EXPECT_EQ(apply(R"({"type":"Strip","strip_left":true,"strip_right":true})", " \n "), "");
  EXPECT_EQ(apply(R"({"type":"Strip","strip_left":false,"strip_right":true})", " a "), " a");
  EXPECT_EQ(apply(R"({"type":"Replace","pattern":{"Regex":" {2,}"},"content":"_"})", "a  b c   "), "a_b c_");
  EXPECT_EQ(apply(R"({"type":"Prepend","prepend":"_"})", ""), "");
}

TEST(ByteAlphabet, RoundTripsEveryByte) {
  std::string bytes, characters, back;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  append_byte_characters(bytes, characters);
  append_token_bytes(characters, back);
  EXPECT_EQ(back, bytes);
  back.clear();
  append_token_bytes("Ġ日", back);  // not of the alphabet: taken as it is
  EXPECT_EQ(back, "Ġ日");
}

}  // namespace
}  // namespace fastspec::text
