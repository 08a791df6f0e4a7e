// The draft model's chains against the same model run token by token from nothing: whatever happened before, its K/V
// must be that of the committed tokens.
#include "draft/standalone_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <unordered_map>

#include "memory/paged_kv_cache.h"
#include "support/tiny_model.h"

namespace fastspec::test {
namespace {

using Tokens = std::vector<TokenId>;

constexpr int kVocabSize = 61;
constexpr int kNumPages = 40;
constexpr int kPageSize = 4;
constexpr int kMaxDrafted = 5;
constexpr std::uint64_t kSeed = 3;

class StandaloneDrafterTest : public ::testing::Test {
 protected:
  StandaloneDrafterTest() { make_drafter(8, 2, kVocabSize); }

  void make_drafter(int max_rows, int max_sequences, int draft_vocab_size) {
    const ModelConfig config = testing::tiny_config(draft_vocab_size);
    drafter_ = std::make_unique<StandaloneDrafter>(
        config, testing::tiny_weights(config, kSeed, DType::kFloat32, *backend_.device), backend_, DType::kFloat32,
        StandaloneDrafter::Limits{.max_drafted = kMaxDrafted,
                                  .pass = {.max_rows = max_rows,
                                           .max_sequences = max_sequences,
                                           .max_list_entries = max_sequences * kNumPages},
                                  .vocab_size = kVocabSize,
                                  .num_pages = kNumPages,
                                  .page_size = kPageSize});
  }

  /// The chain that the model gives for `tokens` when every token is computed anew: one pass a drafted token.
  Tokens oracle(Tokens tokens, int num_drafted, const SamplingRule& rule) {
    const ModelConfig config = testing::tiny_config(kVocabSize);
    Transformer model(config, testing::tiny_weights(config, kSeed, DType::kFloat32, *backend_.device), backend_, 128,
                      1);
    const KvPool kv(*backend_.device, model.kv_shape(DType::kFloat32), 128 / kPageSize, kPageSize);
    PassBuffers buffers(*backend_.device, {.max_rows = 128, .max_sequences = 1, .max_list_entries = kNumPages});
    Tokens chain;
    for (int k = 0; k < num_drafted; ++k) {
      RowBatch batch;
      for (int position = 0; position < static_cast<int>(tokens.size()); ++position) {
        batch.tokens.push_back(tokens[position]);
        batch.positions.push_back(position);
        batch.slots.push_back(position);
      }
      batch.kv.lists.push_back({});
      batch.logit_rows.push_back(batch.num_rows() - 1);
      batch.end_sequence(NewMask::kCausal);
      const auto position = static_cast<std::int32_t>(tokens.size()) - 1;
      TokenId token = kNoToken;
      float confidence = 0;
      const Matrix logits = model.forward(buffers.upload(batch), kv);
      backend_.ops->set_rules({&rule, 1, logits.cols});
      backend_.ops->propose({.logits = logits,
                             .positions = &position,
                             .paths = chain.data(),
                             .path_length = k,
                             .top_k = 1,
                             .tokens = &token,
                             .confidences = &confidence});
      chain.push_back(token);
      tokens.push_back(token);
    }
    return chain;
  }

  void add(SeqId seq, Tokens tokens) {
    kv_.add(seq);
    tokens_[seq] = std::move(tokens);
  }

  /// Computes committed tokens up to `length` and shows them to the drafter, as a prompt chunk does.
  void prefill(SeqId seq, int length, bool will_draft = true) {
    const int first = kv_.kv_len(seq);
    StepPlan plan;
    plan.sequences.push_back({.seq = seq, .first_position = first, .num_known_rows = length - first});
    KvReservation reservation = kv_.reserve(plan);
    const int kv_lens[] = {length};
    kv_.commit(reservation, kv_lens);
    observe(seq, first, length - first, 0, will_draft);
  }

  void observe(SeqId seq, int first, int num_known, int num_accepted, bool will_draft = true) {
    const Observation seen{.seq = seq,
                           .tokens = tokens_[seq],
                           .pages = kv_.pages(seq),
                           .first_position = first,
                           .num_known_rows = num_known,
                           .num_accepted = num_accepted,
                           .kv_len = kv_.kv_len(seq),
                           .will_draft = will_draft};
    drafter_->observe({&seen, 1});
  }

  SamplingRule rule() const {
    SamplingRule rule;
    rule.temperature = temperature_;
    rule.seed = 5;
    return rule;
  }

  /// One decoding step of the given sequences: their chains, checked; then `accepted` of them are committed and a bonus
  /// token follows. A negative number: the step fails after drafting.
  void step(const std::vector<SeqId>& seqs, int accepted, int max_drafted = kMaxDrafted) {
    StepPlan plan;
    for (const SeqId seq : seqs) {
      plan.sequences.push_back({.seq = seq,
                                .first_position = kv_.kv_len(seq),
                                .num_known_rows = 1,
                                .samples = true,
                                .is_decoding = true,
                                .max_drafted = max_drafted,
                                .max_depth = max_drafted});
    }
    KvReservation reservation = kv_.reserve(plan);
    std::vector<DraftRequest> requests;
    std::vector<TokenTree> trees;
    for (std::size_t i = 0; i < seqs.size(); ++i) {
      requests.push_back({.seq = seqs[i],
                          .tokens = tokens_[seqs[i]],
                          .pages = reservation.pages(static_cast<int>(i)),
                          .max_drafted = max_drafted,
                          .max_depth = max_drafted,
                          .rule = rule()});
      trees.emplace_back(tokens_[seqs[i]].back());
    }
    drafter_->draft(requests, trees);
    for (std::size_t i = 0; i < seqs.size(); ++i) {
      EXPECT_TRUE(trees[i].is_chain());
      EXPECT_NO_THROW(trees[i].check(max_drafted, max_drafted, kVocabSize));
      const Tokens chain(trees[i].tokens.begin() + 1, trees[i].tokens.end());
      EXPECT_EQ(chain, oracle(tokens_[seqs[i]], max_drafted, rule())) << "sequence " << seqs[i];
    }
    if (accepted < 0) return;
    std::vector<int> kv_lens;
    for (std::size_t i = 0; i < seqs.size(); ++i) {
      const int kept = std::min(accepted, trees[i].num_drafted());
      kv_lens.push_back(plan.sequences[i].first_position + 1 + kept);
      Tokens& tokens = tokens_[seqs[i]];
      tokens.insert(tokens.end(), trees[i].tokens.begin() + 1, trees[i].tokens.begin() + 1 + kept);
      tokens.push_back(static_cast<TokenId>(random_() % kVocabSize));  // the bonus
    }
    kv_.commit(reservation, kv_lens);
    for (std::size_t i = 0; i < seqs.size(); ++i) {
      observe(seqs[i], plan.sequences[i].first_position, 1, kv_lens[i] - plan.sequences[i].first_position - 1);
    }
  }

  Tokens random_tokens(int count) {
    Tokens tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(random_() % kVocabSize));
    return tokens;
  }

  Backend backend_ = make_backend("cpu:reference", DType::kFloat32, 1);
  PagedKvCache kv_{kNumPages - 4, 4, kPageSize};
  std::unique_ptr<StandaloneDrafter> drafter_;
  std::unordered_map<SeqId, Tokens> tokens_;
  std::mt19937 random_{1};
  float temperature_ = 0;
};

TEST_F(StandaloneDrafterTest, EveryNumberOfAcceptedTokens) {
  add(1, random_tokens(11));
  prefill(1, 6);
  prefill(1, 10);
  for (int accepted = 0; accepted <= kMaxDrafted; ++accepted) step({1}, accepted);
  step({1}, 0, 2);
}

TEST_F(StandaloneDrafterTest, SharedNoiseAtATemperature) {
  temperature_ = 0.9f;
  add(1, random_tokens(7));
  prefill(1, 6);
  for (const int accepted : {2, 0, kMaxDrafted}) step({1}, accepted);
}

TEST_F(StandaloneDrafterTest, PromptThatWasNotShownIsCaughtUp) {
  add(1, random_tokens(30));  // several passes of 8 rows
  prefill(1, 29, /*will_draft=*/false);
  step({1}, 1);
  step({1}, 0);
}

TEST_F(StandaloneDrafterTest, StepsWithoutDraftsAreCaughtUp) {
  add(1, random_tokens(6));
  prefill(1, 5);
  step({1}, 2);
  for (int i = 0; i < 6; ++i) {
    tokens_[1].push_back(static_cast<TokenId>(i));
    prefill(1, kv_.kv_len(1) + 1);
  }
  step({1}, kMaxDrafted);
  step({1}, 0);
}

TEST_F(StandaloneDrafterTest, SequencesOfOneBatchAndDifferentLengths) {
  add(1, random_tokens(5));
  add(2, random_tokens(14));
  prefill(1, 4);
  prefill(2, 13, /*will_draft=*/false);
  step({1, 2}, 2);
  step({2}, 1);
  step({2, 1}, kMaxDrafted);
  step({1, 2}, 0);
}

TEST_F(StandaloneDrafterTest, FailedStepIsDraftedAgain) {
  add(1, random_tokens(9));  // the root opens a page, which goes back
  add(2, random_tokens(9));
  prefill(1, 8);
  prefill(2, 8);
  step({1, 2}, -1);
  step({2, 1}, -1);  // in other pages
  step({1, 2}, 1);
  step({1}, -1);
  step({2}, 0);
  step({1}, 0);
}

TEST_F(StandaloneDrafterTest, TruncatedSequenceDraftsFromWhatIsLeft) {
  add(1, random_tokens(12));
  prefill(1, 11);
  step({1}, 3);
  tokens_[1].resize(7);
  kv_.truncate(1, 6);
  drafter_->truncate(1, 6);
  tokens_[1].back() = (tokens_[1].back() + 1) % kVocabSize;  // drawn anew
  tokens_[1].push_back(1);
  prefill(1, 7);  // in a step without drafts
  step({1}, 1);
  drafter_->truncate(1, 0);  // its state was lost
  drafter_->truncate(99, 3);
  step({1}, 0);
}

TEST_F(StandaloneDrafterTest, SharedPagesNeedNotBeComputedAgain) {
  add(1, random_tokens(10));
  prefill(1, 9);
  step({1}, 1);
  const int shared = kv_.add_shared(1, 2, 8);
  drafter_->share(1, 2, shared);
  tokens_[2] = Tokens(tokens_[1].begin(), tokens_[1].begin() + 10);
  prefill(2, 9);
  step({2, 1}, 2);
  kv_.forget(1);
  drafter_->forget(1);
  step({2}, 0);
}

TEST_F(StandaloneDrafterTest, SharedWithASourceThatIsBehind) {
  add(1, random_tokens(10));
  prefill(1, 9, /*will_draft=*/false);
  drafter_->share(1, 2, kv_.add_shared(1, 2, 8));  // the drafter has seen neither
  tokens_[2] = tokens_[1];
  prefill(2, 9);
  step({2}, 1);
  step({1}, 1);
}

TEST_F(StandaloneDrafterTest, NumbersAreFreeOnceForgotten) {
  add(1, random_tokens(10));
  prefill(1, 9);
  step({1}, 1);
  kv_.forget(1);
  drafter_->forget(1);
  drafter_->forget(99);
  add(1, random_tokens(12));
  prefill(1, 11);
  step({1}, 1);
}

TEST_F(StandaloneDrafterTest, TokensBeyondTheDraftsVocabularyMeanPlainDecoding) {
  make_drafter(8, 2, kVocabSize - 10);
  const auto drafted = [&](SeqId seq, const SamplingRule& rule) {
    StepPlan plan;
    plan.sequences.push_back(
        {.seq = seq, .first_position = kv_.kv_len(seq), .num_known_rows = 1, .max_drafted = 2, .max_depth = 2});
    const KvReservation reservation = kv_.reserve(plan);
    const DraftRequest request{.seq = seq,
                               .tokens = tokens_[seq],
                               .pages = reservation.pages(0),
                               .max_drafted = 2,
                               .max_depth = 2,
                               .rule = rule};
    TokenTree tree(tokens_[seq].back());
    drafter_->draft({&request, 1}, {&tree, 1});
    return tree.num_drafted();
  };
  add(1, {1, 2, kVocabSize - 1, 4, 5});
  EXPECT_NO_THROW(prefill(1, 4));
  EXPECT_EQ(drafted(1, rule()), 0);
  add(2, {1, 2, 3, 4, 5});
  prefill(2, 4);
  EXPECT_EQ(drafted(2, rule()), 2);

  const LogitBias bias{.token = kVocabSize - 1, .bias = 1};
  SamplingRule biased = rule();
  biased.bias = &bias;
  biased.num_bias = 1;
  EXPECT_EQ(drafted(2, biased), 0);
  const TokenId eos = kVocabSize - 1;
  SamplingRule forbidding = rule();
  forbidding.forbidden = &eos;
  forbidding.num_forbidden = 1;
  forbidding.min_tokens = 9;
  EXPECT_EQ(drafted(2, forbidding), 0);
  const TokenCount count{.token = kVocabSize - 1, .in_output = 1, .in_prompt = false};
  SamplingRule penalised = rule();
  penalised.presence_penalty = 1;
  penalised.counts = &count;
  penalised.num_counts = 1;
  EXPECT_EQ(drafted(2, penalised), 0);
}

TEST_F(StandaloneDrafterTest, LargerVocabularyThanTheTargetsProposesNoneOfTheRest) {
  make_drafter(8, 2, kVocabSize + 30);
  add(1, random_tokens(6));
  prefill(1, 5);
  StepPlan plan;
  plan.sequences.push_back({.seq = 1, .first_position = 5, .num_known_rows = 1, .max_drafted = 5, .max_depth = 5});
  const KvReservation reservation = kv_.reserve(plan);
  for (unsigned seed = 0; seed < 20; ++seed) {
    SamplingRule rule;
    rule.temperature = 100;
    rule.seed = seed;
    const DraftRequest request{
        .seq = 1, .tokens = tokens_[1], .pages = reservation.pages(0), .max_drafted = 5, .max_depth = 5, .rule = rule};
    TokenTree tree(tokens_[1].back());
    drafter_->draft({&request, 1}, {&tree, 1});
    EXPECT_NO_THROW(tree.check(5, 5, kVocabSize));
  }
}

}  // namespace
}  // namespace fastspec::test
