// Tokens that sparse passes accepted: shown to nobody, confirmed or replaced by a dense pass, never an end.
#include <gtest/gtest.h>

#include <map>

#include "engine/sequence.h"
#include "support/table_tokenizer.h"

namespace fastspec::test {
namespace {

constexpr TokenId kEos = 25;

/// Token i is letter i of the alphabet.
Sequence make_sequence(RequestState request) {
  std::vector<std::string> table;
  for (char letter = 'a'; letter <= 'z'; ++letter) table.emplace_back(1, letter);
  return {5, std::make_shared<const RequestState>(std::move(request)), 0, std::make_shared<TableTokenizer>(table)};
}

/// A run of drafted tokens and the bonus, as TreeWalks::read() gives it for a chain.
Acceptance run_of(const std::vector<TokenId>& tokens) {
  Acceptance acceptance;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i + 1 < tokens.size()) acceptance.path.push_back(static_cast<int>(i) + 1);
    acceptance.tokens.push_back({tokens[i], 0, 0, {}});
  }
  return acceptance;
}

void commit(Sequence& sequence, const std::vector<TokenId>& tokens) {
  Acceptance acceptance = run_of(tokens);
  sequence.find_end(acceptance);
  sequence.commit(acceptance);
}

RequestState sparse_request(Guarantee guarantee, int max_tokens = 100) {
  RequestState request;
  request.id = 7;
  request.prompt = {1, 2, 3};
  request.max_tokens = request.sampling.max_tokens = max_tokens;
  request.end_tokens = {kEos};
  request.wants_sparse = true;
  request.guarantee = guarantee;
  request.sampling.presence_penalty = 0.5f;
  return request;
}

Acceptance sparse_run(Sequence& sequence, const std::vector<TokenId>& tokens) {
  Acceptance acceptance = run_of(tokens);
  sequence.find_end(acceptance, KvMode::kSparse);
  sequence.commit(acceptance, KvMode::kSparse);
  return acceptance;
}

TEST(ProvisionalTest, SparsePassesRaiseNothingAndShowNothing) {
  Sequence sequence = make_sequence(sparse_request(Guarantee::kExact));
  commit(sequence, {4, 5});
  sparse_run(sequence, {6, 7});
  EXPECT_EQ(sequence.len(), 7);
  EXPECT_EQ(sequence.exact_len(), 5);
  EXPECT_EQ(sequence.num_provisional(), 2);
  const Output output = sequence.take_output(FinishReason::kNone);
  EXPECT_EQ(output.token_ids, (std::vector<TokenId>{4, 5}));
  EXPECT_EQ(output.text, "ef");
  EXPECT_EQ(output.guarantee, Guarantee::kExact);
}

TEST(ProvisionalTest, ATokenThatJustWinsIsLeftToADensePass) {
  const auto run_with = [](const std::vector<TokenId>& tokens, const std::vector<float>& margins) {
    Acceptance acceptance = run_of(tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) acceptance.tokens[i].margin = margins[i];
    return acceptance;
  };
  for (const Guarantee guarantee : {Guarantee::kExact, Guarantee::kSparse}) {
    Sequence sequence = make_sequence(sparse_request(guarantee));
    commit(sequence, {4, 5});
    Acceptance second = run_with({6, 7, 8}, {2, 0.5f, 3});
    sequence.find_end(second, KvMode::kSparse, 1);
    EXPECT_EQ(second.tokens.size(), 1u);
    EXPECT_TRUE(second.path.empty());
    EXPECT_EQ(second.num_drafts_accepted, 1);
    EXPECT_TRUE(second.needs_dense);
    EXPECT_EQ(second.finish, FinishReason::kNone);

    Acceptance first = run_with({6, 7, 8}, {0.5f, 2, 3});
    sequence.find_end(first, KvMode::kSparse, 1);
    EXPECT_TRUE(first.tokens.empty());
    EXPECT_TRUE(first.path.empty());
    EXPECT_EQ(first.num_drafts_accepted, 0);
    EXPECT_TRUE(first.needs_dense);

    Acceptance ended = run_with({6, kEos, 8}, {2, 1, 0.5f});
    sequence.find_end(ended, KvMode::kSparse, 1);
    EXPECT_EQ(ended.tokens.size(), 2u);
    EXPECT_EQ(ended.finish, guarantee == Guarantee::kExact ? FinishReason::kNone : FinishReason::kStop);
    EXPECT_EQ(ended.needs_dense, guarantee == Guarantee::kExact);

    Acceptance dense = run_with({6, 7, 8}, {0.5f, 0.5f, 0.5f});
    sequence.find_end(dense, KvMode::kDense, 1);
    EXPECT_EQ(dense.tokens.size(), 3u);
    EXPECT_FALSE(dense.needs_dense);
  }
}

TEST(ProvisionalTest, ADensePassTakesTheirPlaceWithItsOwnDrawsAndHistory) {
  Sequence sequence = make_sequence(sparse_request(Guarantee::kExact));
  commit(sequence, {4, 5});
  sparse_run(sequence, {6, 6, 5});
  const SamplingRule rule = sequence.rule_before_provisional();
  EXPECT_EQ(rule.num_generated, 2);
  for (int i = 0; i < rule.num_counts; ++i) {
    const TokenId token = rule.counts[i].token;
    EXPECT_EQ(rule.counts[i].in_output, token == 4 || token == 5 ? 1 : 0) << token;
  }
  Acceptance acceptance = run_of({6, 9});  // the first is confirmed, then another is drawn
  acceptance.tokens[0].logprob = -7;
  sequence.find_end(acceptance, KvMode::kDense);
  sequence.commit(acceptance, KvMode::kDense);
  EXPECT_EQ(sequence.tokens(), (std::vector<TokenId>{1, 2, 3, 4, 5, 6, 9}));
  EXPECT_EQ(sequence.exact_len(), 7);
  EXPECT_EQ(sequence.take_output(FinishReason::kNone).text, "efgj");
  std::map<TokenId, int> counts;
  for (int i = 0; i < sequence.rule().num_counts; ++i) {
    counts[sequence.rule().counts[i].token] = sequence.rule().counts[i].in_output;
  }
  EXPECT_EQ(counts[5], 1);
  EXPECT_EQ(counts[6], 1);
  EXPECT_EQ(counts[9], 1);
}

TEST(ProvisionalTest, NothingEndsInASparsePass) {
  RequestState request = sparse_request(Guarantee::kExact, 6);
  request.sampling.stop = {"hi"};
  const std::vector<std::vector<TokenId>> runs = {{6, kEos, 9}, {7, 8, 9}, {6, 6, 6, 6, 6}};
  for (const std::vector<TokenId>& run : runs) {
    Sequence sequence = make_sequence(request);
    commit(sequence, {4, 5});
    const Acceptance seen = sparse_run(sequence, run);
    EXPECT_EQ(seen.finish, FinishReason::kNone);
    EXPECT_TRUE(seen.needs_dense);
    const int kept = sequence.num_provisional();
    EXPECT_EQ(kept, run.size() == 5 ? 4 : 2) << "cut where the output would end";
    // A dense pass that agrees ends there, one that does not goes on.
    Acceptance agrees = run_of({run.begin(), run.begin() + kept});
    agrees.tokens.push_back({9, 0, 0, {}});
    agrees.path.push_back(kept);
    sequence.find_end(agrees, KvMode::kDense);
    EXPECT_NE(agrees.finish, FinishReason::kNone);
    EXPECT_EQ(static_cast<int>(agrees.tokens.size()), kept);
    Acceptance differs = run_of({13});
    sequence.find_end(differs, KvMode::kDense);
    EXPECT_EQ(differs.finish, FinishReason::kNone);
    sequence.commit(differs, KvMode::kDense);
    EXPECT_EQ(sequence.take_output(FinishReason::kNone).text, "efn");
  }
}

TEST(ProvisionalTest, AFailedDrawInASparsePassAsksForADenseOne) {
  Sequence sequence = make_sequence(sparse_request(Guarantee::kExact));
  commit(sequence, {4});
  Acceptance failed;
  failed.finish = FinishReason::kError;
  sequence.find_end(failed, KvMode::kSparse);
  EXPECT_EQ(failed.finish, FinishReason::kNone);
  EXPECT_TRUE(failed.needs_dense);
}

TEST(ProvisionalTest, TruncationDropsThem) {
  Sequence sequence = make_sequence(sparse_request(Guarantee::kExact));
  commit(sequence, {4, 5});
  sparse_run(sequence, {6, 7});
  sequence.truncate(6);
  EXPECT_EQ(sequence.len(), 5);
  EXPECT_EQ(sequence.exact_len(), 5);
}

TEST(ProvisionalTest, UnderTheSparseGuaranteeAllIsShownAndSaysSo) {
  Sequence sequence = make_sequence(sparse_request(Guarantee::kSparse));
  commit(sequence, {4});
  EXPECT_EQ(sequence.take_output(FinishReason::kNone).guarantee, Guarantee::kExact);
  sparse_run(sequence, {6, 7});
  EXPECT_EQ(sequence.num_provisional(), 0);
  EXPECT_EQ(sequence.exact_len(), 4);
  const Output output = sequence.take_output(FinishReason::kNone);
  EXPECT_EQ(output.token_ids, (std::vector<TokenId>{6, 7}));
  EXPECT_EQ(output.guarantee, Guarantee::kSparse);
  commit(sequence, {8});  // dense, but behind tokens that are not exact
  EXPECT_EQ(sequence.exact_len(), 4);
  EXPECT_TRUE(sparse_run(sequence, {kEos}).finish == FinishReason::kStop);
}

}  // namespace
}  // namespace fastspec::test
