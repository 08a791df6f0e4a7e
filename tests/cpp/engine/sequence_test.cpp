// One sample: where its output ends, what is committed, reported and taken back.
#include "engine/sequence.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "support/expect_error.h"
#include "support/table_tokenizer.h"

namespace fastspec::test {
namespace {

constexpr TokenId kStopId = 20;
constexpr TokenId kEos = 25;

/// Token i is letter i of the alphabet.
std::shared_ptr<const Tokenizer> alphabet() {
  std::vector<std::string> table;
  for (char letter = 'a'; letter <= 'z'; ++letter) table.emplace_back(1, letter);
  return std::make_shared<TableTokenizer>(table);
}

RequestState base_request(int max_tokens = 100) {
  RequestState request;
  request.id = 7;
  request.prompt = {1, 2, 3};
  request.sampling.max_tokens = max_tokens;
  request.max_tokens = max_tokens;
  request.seed = 99;
  request.end_tokens = {kStopId, kEos};
  return request;
}

Sequence make_sequence(RequestState request, int sample = 0) {
  return {5, std::make_shared<const RequestState>(std::move(request)), sample, alphabet()};
}

/// A run of drafted tokens and the bonus, as TreeWalks::read() gives it for a chain.
Acceptance run_of(const std::vector<TokenId>& tokens) {
  Acceptance acceptance;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i + 1 < tokens.size()) acceptance.path.push_back(static_cast<int>(i) + 1);
    acceptance.tokens.push_back(
        {tokens[i], -0.25f * static_cast<float>(i + 1), 2.0f - 0.1f * static_cast<float>(i), {}});
  }
  return acceptance;
}

void commit(Sequence& sequence, const std::vector<TokenId>& tokens) {
  Acceptance acceptance = run_of(tokens);
  sequence.find_end(acceptance);
  sequence.commit(acceptance);
}

/// Expects the run to end with its `kept`-th token.
void expect_end(const Acceptance& acceptance, FinishReason finish, std::size_t kept, std::size_t whole) {
  EXPECT_EQ(acceptance.finish, finish);
  ASSERT_EQ(acceptance.tokens.size(), kept);
  EXPECT_EQ(acceptance.num_drafts_accepted, static_cast<int>(std::min(kept, whole - 1)));
  ASSERT_EQ(acceptance.path.size(), kept - 1) << "the last token's K/V is not kept";
  for (std::size_t i = 0; i < acceptance.path.size(); ++i) EXPECT_EQ(acceptance.path[i], static_cast<int>(i) + 1);
}

TEST(FindEndTest, RunThatGoesOnIsLeftAsItIs) {
  Sequence sequence = make_sequence(base_request());
  for (const std::size_t length : {1u, 2u, 5u}) {
    Acceptance acceptance = run_of(std::vector<TokenId>(length, 4));
    sequence.find_end(acceptance);
    expect_end(acceptance, FinishReason::kNone, length, length);
  }
}

TEST(FindEndTest, EndTokensAtEveryPlaceOfARun) {
  for (const TokenId end : {kStopId, kEos}) {
    for (std::size_t length = 1; length <= 5; ++length) {
      for (std::size_t place = 0; place < length; ++place) {
        Sequence sequence = make_sequence(base_request());
        std::vector<TokenId> tokens(length, 4);
        tokens[place] = end;
        Acceptance acceptance = run_of(tokens);
        sequence.find_end(acceptance);
        expect_end(acceptance, FinishReason::kStop, place + 1, length);
        EXPECT_EQ(acceptance.tokens.back().token, end);
      }
    }
  }
}

TEST(FindEndTest, LimitAtEveryPlaceOfARun) {
  for (std::size_t length = 1; length <= 5; ++length) {
    for (std::size_t place = 0; place < length; ++place) {
      Sequence sequence = make_sequence(base_request(2 + static_cast<int>(place) + 1));
      commit(sequence, {4, 4});
      EXPECT_EQ(sequence.num_remaining(), static_cast<int>(place) + 1);
      Acceptance acceptance = run_of(std::vector<TokenId>(length, 4));
      sequence.find_end(acceptance);
      expect_end(acceptance, FinishReason::kLength, place + 1, length);
    }
  }
}

TEST(FindEndTest, StopStringAtEveryPlaceOfARun) {
  for (std::size_t length = 1; length <= 5; ++length) {
    for (std::size_t place = 0; place < length; ++place) {
      RequestState request = base_request();
      request.sampling.stop = {"cd"};
      Sequence sequence = make_sequence(std::move(request));
      std::vector<TokenId> before{4, 4};
      std::vector<TokenId> tokens(length, 4);
      (place == 0 ? before.back() : tokens[place - 1]) = 2;  // "c", perhaps in the run before
      tokens[place] = 3;                                     // "d"
      commit(sequence, before);
      Acceptance acceptance = run_of(tokens);
      sequence.find_end(acceptance);
      expect_end(acceptance, FinishReason::kStop, place + 1, length);
      sequence.commit(acceptance);
      const Output output = sequence.take_output(acceptance.finish);
      EXPECT_EQ(output.text, std::string(place + 1, 'e')) << "cut before the stop string";
      EXPECT_EQ(output.token_ids.size(), 2 + place + 1) << "the tokens are whole";
    }
  }
}

TEST(FindEndTest, StopOnTheLastAllowedTokenIsAStop) {
  Sequence sequence = make_sequence(base_request(2));
  Acceptance acceptance = run_of({4, kEos, 4});
  sequence.find_end(acceptance);
  expect_end(acceptance, FinishReason::kStop, 2, 3);
}

TEST(FindEndTest, StopStringsWithinMinTokensDoNotEnd) {
  RequestState request = base_request(4);
  request.sampling.stop = {"d"};
  request.sampling.min_tokens = 2;
  Sequence sequence = make_sequence(request);
  Acceptance acceptance = run_of({3, 3, 3, 3});
  sequence.find_end(acceptance);
  expect_end(acceptance, FinishReason::kStop, 3, 4);
  sequence.commit(acceptance);
  EXPECT_EQ(sequence.take_output(acceptance.finish).text, "dd");

  request.sampling.min_tokens = 4;
  Sequence longer = make_sequence(request);
  Acceptance limited = run_of({3, 3, 3, 3, 3});
  longer.find_end(limited);
  expect_end(limited, FinishReason::kLength, 4, 5);
  longer.commit(limited);
  EXPECT_EQ(longer.take_output(limited.finish).text, "dddd");
}

TEST(FindEndTest, FailedDrawIsPassedOn) {
  Sequence sequence = make_sequence(base_request());
  Acceptance acceptance;
  acceptance.finish = FinishReason::kError;
  acceptance.error = "NaN";
  sequence.find_end(acceptance);
  EXPECT_EQ(acceptance.finish, FinishReason::kError);
  EXPECT_TRUE(acceptance.tokens.empty());
}

TEST(FindEndTest, ChangesNothingThatAFailedStepWouldHaveToUndo) {
  Sequence sequence = make_sequence(base_request());
  commit(sequence, {4, 5});
  Acceptance lost = run_of({6, 7, kEos});
  sequence.find_end(lost);
  EXPECT_EQ(sequence.len(), 5);
  EXPECT_EQ(sequence.take_output(FinishReason::kNone).text, "ef");
  Acceptance again = run_of({8, 9});  // a near-tie went the other way
  sequence.find_end(again);
  expect_end(again, FinishReason::kNone, 2, 2);
  sequence.commit(again);
  EXPECT_EQ(sequence.take_output(FinishReason::kNone).text, "ij");
}

TEST(SequenceTest, LengthsGrowWithCommits) {
  Sequence sequence = make_sequence(base_request(10));
  EXPECT_EQ(sequence.len(), 3);
  EXPECT_EQ(sequence.prompt_len(), 3);
  EXPECT_EQ(sequence.num_remaining(), 10);
  commit(sequence, {4, 5, 6});
  EXPECT_EQ(sequence.tokens(), (std::vector<TokenId>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(sequence.num_generated(), 3);
  EXPECT_EQ(sequence.num_remaining(), 7);
  EXPECT_EQ(sequence.exact_len(), 6);
  EXPECT_EQ(sequence.visible_len(), 3);
  sequence.take_output(FinishReason::kNone);
  EXPECT_EQ(sequence.visible_len(), 6);
}

TEST(SequenceTest, OutputsAreDeltas) {
  RequestState request = base_request();
  request.sampling.logprobs = 1;
  Sequence sequence = make_sequence(std::move(request), 3);
  Acceptance acceptance = run_of({4, 5});
  acceptance.tokens[1].top = {{5, -0.5f}};
  sequence.find_end(acceptance);
  sequence.commit(acceptance);
  const Output first = sequence.take_output(FinishReason::kNone);
  EXPECT_EQ(first.request, 7);
  EXPECT_EQ(first.sample, 3);
  EXPECT_EQ(first.seed, 99u);
  EXPECT_EQ(first.token_ids, (std::vector<TokenId>{4, 5}));
  ASSERT_EQ(first.logprobs.size(), 2u);
  EXPECT_EQ(first.logprobs[1].logprob, -0.5f);
  ASSERT_EQ(first.logprobs[1].top.size(), 1u);
  EXPECT_EQ(first.logprobs[1].top[0].token, 5);
  EXPECT_FLOAT_EQ(first.min_margin, 1.9f);
  EXPECT_FALSE(first.finished());

  const Output nothing = sequence.take_output(FinishReason::kNone);
  EXPECT_TRUE(nothing.token_ids.empty());
  EXPECT_TRUE(nothing.logprobs.empty());
  EXPECT_EQ(nothing.min_margin, std::numeric_limits<float>::infinity());

  commit(sequence, {6});
  const Output last = sequence.take_output(FinishReason::kLength);
  EXPECT_EQ(last.token_ids, std::vector<TokenId>{6});
  EXPECT_TRUE(last.finished());
  EXPECT_EQ(last.stats.prompt_tokens, 3);
  EXPECT_EQ(last.stats.completion_tokens, 3);
  EXPECT_GE(last.stats.seconds, last.stats.seconds_to_first_token);
}

TEST(SequenceTest, LogprobsOnlyWhereAsked) {
  Sequence sequence = make_sequence(base_request());
  commit(sequence, {4});
  EXPECT_TRUE(sequence.take_output(FinishReason::kNone).logprobs.empty());
}

TEST(SequenceTest, RuleSaysWhatTheRequestSays) {
  RequestState request = base_request();
  request.sampling.temperature = 0.5f;
  request.sampling.top_k = 9;
  request.sampling.top_p = 0.7f;
  request.sampling.min_p = 0.1f;
  request.sampling.repetition_penalty = 1.2f;
  request.sampling.presence_penalty = 0.3f;
  request.sampling.frequency_penalty = 0.4f;
  request.sampling.min_tokens = 6;
  request.logit_bias = {{3, 1.5f}};
  Sequence sequence = make_sequence(std::move(request), 2);
  commit(sequence, {4, 4});
  const SamplingRule rule = sequence.rule();
  EXPECT_EQ(rule.temperature, 0.5f);
  EXPECT_EQ(rule.top_k, 9);
  EXPECT_EQ(rule.top_p, 0.7f);
  EXPECT_EQ(rule.min_p, 0.1f);
  EXPECT_EQ(rule.repetition_penalty, 1.2f);
  EXPECT_EQ(rule.presence_penalty, 0.3f);
  EXPECT_EQ(rule.frequency_penalty, 0.4f);
  EXPECT_EQ(rule.seed, 99u);
  EXPECT_EQ(rule.sample_index, 2u);
  EXPECT_EQ(rule.num_generated, 2);
  EXPECT_EQ(rule.min_tokens, 6);
  ASSERT_EQ(rule.num_bias, 1);
  EXPECT_EQ(rule.bias[0].token, 3);
  ASSERT_EQ(rule.num_forbidden, 2);
  EXPECT_EQ(rule.forbidden[0], kStopId);
}

std::map<TokenId, std::pair<int, bool>> counts_of(const Sequence& sequence) {
  const SamplingRule rule = sequence.rule();
  std::map<TokenId, std::pair<int, bool>> counts;
  for (int i = 0; i < rule.num_counts; ++i) {
    const TokenCount& count = rule.counts[i];
    if (count.in_output == 0 && !count.in_prompt) continue;  // taken back
    EXPECT_TRUE(counts.emplace(count.token, std::pair(count.in_output, count.in_prompt)).second);
  }
  return counts;
}

TEST(SequenceTest, PenaltiesCountCommittedTokensOnly) {
  RequestState request = base_request();
  request.prompt = {1, 2, 1};
  request.sampling.frequency_penalty = 0.5f;
  Sequence sequence = make_sequence(request);
  using Counts = std::map<TokenId, std::pair<int, bool>>;
  EXPECT_EQ(counts_of(sequence), (Counts{{1, {0, true}}, {2, {0, true}}}));
  Acceptance lost = run_of({1, 9});
  sequence.find_end(lost);
  EXPECT_EQ(counts_of(sequence), (Counts{{1, {0, true}}, {2, {0, true}}}));
  commit(sequence, {1, 9, 9});
  EXPECT_EQ(counts_of(sequence), (Counts{{1, {1, true}}, {2, {0, true}}, {9, {2, false}}}));
  sequence.truncate(5);
  EXPECT_EQ(counts_of(sequence), (Counts{{1, {1, true}}, {2, {0, true}}, {9, {1, false}}}));

  request.sampling.frequency_penalty = 0;
  const Sequence plain = make_sequence(request);
  EXPECT_EQ(plain.rule().num_counts, 0);
}

TEST(SequenceTest, TruncateTakesTokensBackAndTheyCanBeDrawnAgain) {
  Sequence sequence = make_sequence(base_request());
  commit(sequence, {4, 5, 6});
  sequence.truncate(4);
  EXPECT_EQ(sequence.tokens(), (std::vector<TokenId>{1, 2, 3, 4}));
  EXPECT_EQ(sequence.exact_len(), 4);
  commit(sequence, {8});
  EXPECT_EQ(sequence.take_output(FinishReason::kNone).text, "ei");
  sequence.truncate(10);
  EXPECT_EQ(sequence.len(), 5) << "nothing to take back";
  expect_error(ErrorCode::kInternal, {"truncate to 2", "prompt of 3"}, [&] { sequence.truncate(2); });
}

TEST(SequenceTest, TokensTakenBackAfterTheyWereVisibleAreNotReportedTwice) {
  Sequence sequence = make_sequence(base_request());
  commit(sequence, {4, 5, 6});
  EXPECT_EQ(sequence.take_output(FinishReason::kNone).text, "efg");
  sequence.truncate(4);
  commit(sequence, {5});
  EXPECT_TRUE(sequence.take_output(FinishReason::kNone).token_ids.empty());
  commit(sequence, {6, 7});
  const Output output = sequence.take_output(FinishReason::kLength);
  EXPECT_EQ(output.token_ids, std::vector<TokenId>{7});
  EXPECT_EQ(output.text, "h");
}

TEST(TokenHistoryTest, AgreesWithPlainCounting) {
  std::mt19937 random(2);
  TokenHistory history;
  std::map<TokenId, std::pair<int, bool>> expected;
  std::vector<TokenId> output;
  for (int i = 0; i < 2000; ++i) {
    const auto token = static_cast<TokenId>(random() % 40);
    const unsigned action = random() % 4;
    if (action == 0) {
      history.add_prompt(token);
      expected[token].second = true;
    } else if (action == 1 && !output.empty()) {
      history.remove_output(output.back());
      --expected[output.back()].first;
      output.pop_back();
    } else {
      history.add_output(token);
      ++expected[token].first;
      output.push_back(token);
    }
  }
  ASSERT_EQ(history.counts().size(), expected.size());
  for (const TokenCount& count : history.counts()) {
    EXPECT_EQ(std::pair(count.in_output, count.in_prompt), expected.at(count.token));
  }
}

}  // namespace
}  // namespace fastspec::test
