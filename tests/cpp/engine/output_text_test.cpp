// Streaming text and stop strings of one sample.
#include "engine/output_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "support/expect_error.h"
#include "support/table_tokenizer.h"

namespace fastspec::test {
namespace {

constexpr std::size_t kNone = std::string::npos;

enum : TokenId { kA, kB, kC, kAb, kAba, kAcute1, kAcute2, kEuro12, kEuro3, kEmpty, kSpecial };
const std::vector<std::string> kTable = {"a", "b", "c", "ab", "aba", "\xC3", "\xA9", "\xE2\x82", "\xAC", "", "<s>"};

std::shared_ptr<const Tokenizer> table() {
  return std::make_shared<TableTokenizer>(kTable);
}

/// Pushes all, taking after every token; the pieces, the last taken with `finished`.
std::vector<std::string> stream_all(OutputText& text, const std::vector<TokenId>& tokens) {
  std::vector<std::string> pieces;
  for (int i = 0; i < static_cast<int>(tokens.size()); ++i) {
    const bool stops = text.push(i, tokens[i]);
    const bool last = stops || i + 1 == static_cast<int>(tokens.size());
    pieces.push_back(text.take(i + 1, last));
    if (last) break;
  }
  return pieces;
}

using Pieces = std::vector<std::string>;

TEST(OutputTextTest, TextComesTokenByTokenWithoutStops) {
  OutputText text(table(), {}, 0, true);
  EXPECT_EQ(stream_all(text, {kA, kAb, kSpecial, kC}), (Pieces{"a", "ab", "", "c"}));
  OutputText loud(table(), {}, 0, false);
  EXPECT_EQ(stream_all(loud, {kA, kSpecial}), (Pieces{"a", "<s>"}));
}

TEST(OutputTextTest, NothingIsTakenTwice) {
  OutputText text(table(), {}, 0, true);
  text.push(0, kA);
  text.push(1, kB);
  EXPECT_EQ(text.take(1, false), "a");
  EXPECT_EQ(text.take(1, false), "");
  EXPECT_EQ(text.take(2, false), "b");
  EXPECT_EQ(text.take(2, true), "");
}

TEST(OutputTextTest, NoTokenizerNoText) {
  OutputText text(nullptr, {"a"}, 0, true);
  EXPECT_FALSE(text.push(0, kA));
  EXPECT_FALSE(text.push(1, 123456));
  EXPECT_EQ(text.take(2, true), "");
}

TEST(OutputTextTest, NoTokenNoText) {
  OutputText text(table(), {}, 0, true);
  EXPECT_EQ(text.take(0, false), "");
  EXPECT_EQ(text.take(0, true), "");
  OutputText pushed(table(), {}, 0, true);  // by a step that failed; then the request is cancelled
  pushed.push(0, kA);
  EXPECT_EQ(pushed.take(0, true), "");
}

TEST(OutputTextTest, CharactersAcrossTokensComeWhole) {
  OutputText text(table(), {}, 0, true);
  EXPECT_EQ(stream_all(text, {kAcute1, kAcute2, kEuro12, kEuro3}), (Pieces{"", "\xC3\xA9", "", "\xE2\x82\xAC"}));
}

TEST(OutputTextTest, IncompleteBytesAtTheEndBecomeAReplacementCharacter) {
  OutputText text(table(), {}, 0, true);
  EXPECT_EQ(stream_all(text, {kA, kEuro12}), (Pieces{"a", "\xEF\xBF\xBD"}));
  OutputText stopped(table(), {"b"}, 0, true);
  EXPECT_EQ(stream_all(stopped, {kAb, kEuro12}), Pieces{"a"});
}

TEST(OutputTextTest, StopStringSplitAcrossTokens) {
  OutputText text(table(), {"abcab"}, 0, true);
  EXPECT_EQ(stream_all(text, {kC, kA, kB, kC, kAb, kC}), (Pieces{"c", "", "", "", ""}));
}

TEST(OutputTextTest, HeldTextComesWhenItIsNoStopAfterAll) {
  OutputText text(table(), {"aabc"}, 0, true);
  //                    a  a   a    b   b
  EXPECT_EQ(stream_all(text, {kA, kA, kA, kB, kB}), (Pieces{"", "", "a", "", "aabb"}));
}

TEST(OutputTextTest, HeldTextComesAtTheEnd) {
  OutputText text(table(), {"abc"}, 0, true);
  EXPECT_EQ(stream_all(text, {kC, kA, kB}), (Pieces{"c", "", "ab"}));
}

TEST(OutputTextTest, StopInsideATokenCutsTheToken) {
  OutputText text(table(), {"b"}, 0, true);
  EXPECT_EQ(stream_all(text, {kC, kAba, kC}), (Pieces{"c", "a"}));
}

TEST(OutputTextTest, FirstOfSeveralStopsWins) {
  OutputText overlapping(table(), {"ba", "ab"}, 0, true);
  EXPECT_EQ(stream_all(overlapping, {kC, kAba}), (Pieces{"c", ""})) << "both end in one token; \"ab\" begins first";
  OutputText nested(table(), {"b", "cab"}, 0, true);
  EXPECT_EQ(stream_all(nested, {kC, kA, kB}), (Pieces{"", "", ""})) << "both end with \"b\", \"cab\" begins first";
  OutputText early(table(), {"cabc", "a"}, 0, true);
  EXPECT_EQ(stream_all(early, {kC, kA, kB, kC}), (Pieces{"", "c"})) << "\"a\" ends first";
}

TEST(OutputTextTest, StopOfAMultibyteCharacter) {
  OutputText text(table(), {"\xC3\xA9"}, 0, true);
  EXPECT_EQ(stream_all(text, {kA, kAcute1, kAcute2, kB}), (Pieces{"a", "", ""}));
}

TEST(OutputTextTest, PushingTheSameTokensAgainIsFree) {
  OutputText text(table(), {"bc"}, 0, true);
  const auto run = [&] {
    EXPECT_FALSE(text.push(0, kA));
    EXPECT_FALSE(text.push(1, kB));
    EXPECT_TRUE(text.push(2, kC));
  };
  run();
  run();  // the step failed and runs again
  EXPECT_EQ(text.take(3, true), "a");
}

TEST(OutputTextTest, AnotherTokenReplacesWhatFollowed) {
  OutputText text(table(), {"bc"}, 0, true);
  text.push(0, kA);
  EXPECT_EQ(text.take(1, false), "a");
  text.push(1, kB);
  EXPECT_TRUE(text.push(2, kC));  // never committed
  EXPECT_FALSE(text.push(1, kA));
  EXPECT_FALSE(text.push(2, kC));
  EXPECT_EQ(text.take(3, false), "ac");
  EXPECT_FALSE(text.push(3, kB));
  EXPECT_TRUE(text.push(4, kC));
  EXPECT_EQ(text.take(5, true), "");
}

TEST(OutputTextTest, TokensBeyondTheCommittedOnesAreNoText) {
  OutputText text(table(), {"c"}, 0, true);
  for (int i = 0; i < 3; ++i) text.push(i, kA);
  EXPECT_TRUE(text.push(3, kC));
  EXPECT_EQ(text.take(1, false), "a") << "the step that ran again committed less";
  EXPECT_EQ(text.take(2, true), "a") << "and then the request was cancelled";
}

TEST(OutputTextTest, IndicesWithoutGaps) {
  OutputText text(table(), {}, 0, true);
  expect_error(ErrorCode::kInternal, {"token 1"}, [&] { text.push(1, kA); });
  expect_error(ErrorCode::kInternal, {"token -1"}, [&] { text.push(-1, kA); });
}

TEST(OutputTextTest, StopsInsideTheFirstMinTokensAreText) {
  OutputText text(table(), {"b"}, 3, true);
  EXPECT_EQ(stream_all(text, {kB, kA, kAba, kC, kB, kC}), (Pieces{"b", "a", "aba", "c", ""}));
}

TEST(OutputTextTest, TextAfterAnIgnoredStopIsNotLost) {
  OutputText text(table(), {"b"}, 2, true);
  EXPECT_FALSE(text.push(0, kB));
  EXPECT_FALSE(text.push(1, kA));
  EXPECT_FALSE(text.push(2, kC));
  EXPECT_TRUE(text.push(3, kAb));
  EXPECT_EQ(text.take(4, true), "baca");
}

TEST(OutputTextTest, OutputThatEndsWithAnIgnoredStopIsWhole) {
  OutputText text(table(), {"b"}, 2, true);
  text.push(0, kA);
  text.push(1, kB);
  EXPECT_EQ(text.take(2, true), "ab");
}

/// What a run of tokens must give: how many are pushed until a stop string ends, and the text.
struct Expected {
  int num_tokens = 0;
  bool stops = false;
  std::string text;
};

Expected expect_run(const std::vector<TokenId>& tokens, const std::vector<std::string>& stops, int min_tokens) {
  const TableTokenizer tokenizer(kTable);
  const std::unique_ptr<Tokenizer::Stream> stream = tokenizer.stream(true);
  std::string text;
  for (int i = 0; i < static_cast<int>(tokens.size()); ++i) {
    const std::size_t old_size = text.size();
    text += stream->push(tokens[i]);
    std::size_t begin = kNone;
    for (const std::string& stop : stops) {
      for (std::size_t at = 0; i >= min_tokens && at + stop.size() <= text.size(); ++at) {
        if (at + stop.size() > old_size && text.compare(at, stop.size(), stop) == 0) begin = std::min(begin, at);
      }
    }
    if (begin != kNone) return {i + 1, true, text.substr(0, begin)};
  }
  return {static_cast<int>(tokens.size()), false, text + stream->finish()};
}

TEST(OutputTextTest, RandomRunsGiveTheWholeText) {
  std::mt19937 random(11);
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  const std::vector<std::string> possible_stops = {"abab", "ba",        "bab",          "aac",
                                                   "cc",   "c\xC3\xA9", "\xE2\x82\xAC", "abcabc"};
  // No lone continuation bytes: what the table holds is valid text cut between any two bytes.
  const std::vector<std::vector<TokenId>> words = {
      {kA}, {kB}, {kC}, {kAb}, {kAba}, {kAcute1, kAcute2}, {kEuro12, kEuro3}, {kEmpty}, {kA}, {kB}};
  int num_stopped = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<TokenId> tokens;
    for (int i = 1 + below(14); i > 0; --i) {
      const std::vector<TokenId>& word = words[below(static_cast<int>(words.size()))];
      tokens.insert(tokens.end(), word.begin(), word.end());
    }
    if (below(4) == 0) tokens.push_back(kEuro12);
    std::vector<std::string> stops;
    for (int i = below(4); i > 0; --i) stops.push_back(possible_stops[below(static_cast<int>(possible_stops.size()))]);
    const int min_tokens = below(3) == 0 ? below(8) : 0;
    const Expected expected = expect_run(tokens, stops, min_tokens);

    OutputText text(table(), stops, min_tokens, true);
    std::string taken;
    for (int done = 0; done < expected.num_tokens;) {
      const int run = std::min(1 + below(4), expected.num_tokens - done);
      // A step that fails after it pushed: other tokens, or more than are committed in the end.
      for (int i = 0, failed = below(3); i < failed; ++i) {
        const int index = done + i;
        const bool same = below(2) == 0 && index < static_cast<int>(tokens.size());
        text.push(index, same ? tokens[index] : kC);
      }
      for (int i = 0; i < run; ++i, ++done) {
        ASSERT_EQ(text.push(done, tokens[done]), expected.stops && done + 1 == expected.num_tokens);
      }
      const bool finished = done == expected.num_tokens;
      if (!finished && below(3) == 0) continue;
      taken += text.take(done, finished);
      ASSERT_EQ(expected.text.substr(0, taken.size()), taken) << "text that was taken back";
    }
    ASSERT_EQ(taken, expected.text);
    num_stopped += expected.stops ? 1 : 0;
  }
  EXPECT_GT(num_stopped, 500);
}

TEST(OutputTextTest, NothingIsHeldBackWithoutNeed) {
  std::mt19937 random(12);
  const std::string stop = "abac";
  for (int round = 0; round < 300; ++round) {
    OutputText text(table(), {stop}, 0, true);
    std::string all;
    std::string taken;
    for (int i = 0; i < 20; ++i) {
      const auto token = static_cast<TokenId>(random() % 5);
      all += kTable[token];
      if (text.push(i, token)) break;
      taken += text.take(i + 1, false);
      std::size_t held = std::min(stop.size() - 1, all.size());
      while (held > 0 && all.compare(all.size() - held, held, stop, 0, held) != 0) --held;
      ASSERT_EQ(taken, all.substr(0, all.size() - held));
    }
  }
}

}  // namespace
}  // namespace fastspec::test
