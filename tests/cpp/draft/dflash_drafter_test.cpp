// DFlash's drafter against one that was told everything at once: however the context came, was cut, shared or lost
// before, the block is that of the tokens and their features alone. What a block computes is judged by tests/reference.
#include "draft/dflash/dflash_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>

#include "support/expect_error.h"
#include "support/failing_ops.h"
#include "support/replaying_device.h"
#include "support/tiny_model.h"

namespace fastspec::test {
namespace {

using Tokens = std::vector<TokenId>;

constexpr int kVocabSize = 61;
constexpr int kPageSize = 4;
constexpr int kMaxRows = 24;  // of a pass of the target
constexpr int kMaxSequences = 3;
constexpr int kMaxTokens = 200;

struct Setting {
  ContextShape context;
  bool rebases = false;
};
const std::vector<Setting> kSettings = {{{}}, {{12, 0}}, {{9, 3}}, {{9, 3}, true}};

/// Counts operations and notes the slots that are written.
class WatchedOps final : public InterceptedOps {
 public:
  WatchedOps(std::unique_ptr<Ops> inner, int& count, std::set<Slot>& slots)
      : InterceptedOps(std::move(inner)), count_(count), slots_(slots) {}
  void rope_store(const RopeStoreParams& params) override {
    slots_.insert(params.slots, params.slots + params.qkv.rows);
    InterceptedOps::rope_store(params);
  }

 private:
  void before() override { ++count_; }
  void after() override {}
  int& count_;
  std::set<Slot>& slots_;
};

class DFlashDrafterTest : public ::testing::Test {
 protected:
  DFlashDrafterTest()
      : target_(testing::tiny_weights(config_, 11, DType::kFloat32, *backend_.device)),
        hidden_(static_cast<std::size_t>(kMaxRows * 2 * config_.hidden_size)) {
    config_.window = {0, 20};
  }

  Matrix hidden() {
    const int cols = 2 * config_.hidden_size;
    return {hidden_.data(), DType::kFloat32, kMaxRows, cols, cols};
  }
  std::unique_ptr<DFlashDrafter> make_drafter(Backend& backend) {
    DFlashModel model = testing::tiny_dflash(config_, target_, 17, DType::kFloat32, *backend.device);
    if (setting_.context.is_ring()) model.config.decoder.window = {0, 0};
    return std::make_unique<DFlashDrafter>(
        std::move(model), hidden(), backend, DType::kFloat32,
        DFlashDrafter::Limits{.max_drafted = testing::kTinyBlock - 1,
                              .context = setting_.context,
                              .rebases_positions = setting_.rebases,
                              .pass = {.max_rows = max_rows_,
                                       .max_sequences = kMaxSequences,
                                       .max_list_entries = kMaxSequences * (kMaxTokens / kPageSize + 1)},
                              .num_pages = kMaxSequences * (kMaxTokens / kPageSize + 1),
                              .page_size = kPageSize});
  }

  /// Of a sequence: each has its own, in no order.
  const std::vector<PageId>& pages_of(SeqId seq) {
    std::vector<PageId>& pages = pages_[seq];
    if (pages.empty()) {
      pages.resize(kMaxTokens / kPageSize + 1);
      const int place = static_cast<int>(pages_.size() - 1) % kMaxSequences;
      std::iota(pages.begin(), pages.end(), place * static_cast<int>(pages.size()));
      std::shuffle(pages.begin(), pages.end(), random_);
    }
    return pages;
  }

  /// What the target computes for a position behind these tokens: a function of the tokens up to it.
  void write_features(const Tokens& tokens, int position, float* row) const {
    std::uint64_t key = 7;
    for (int i = 0; i <= position; ++i) key = key * 1000003 + static_cast<std::uint64_t>(tokens[i]) + 1;
    std::mt19937_64 random(key);
    std::normal_distribution<float> normal;
    for (int i = 0; i < 2 * config_.hidden_size; ++i) row[i] = normal(random);
  }

  /// A pass computed tokens first .. end - 1 of a sequence, among other rows; the tokens of the last `accepted` rows
  /// were drafted.
  void observe(DFlashDrafter& drafter, SeqId seq, const Tokens& tokens, int first, int end, int accepted = 0,
               bool will_draft = true) {
    for (int begin = first; begin < end; begin += kMaxRows) {
      const int count = std::min(kMaxRows, end - begin);
      std::vector<std::int32_t> rows(kMaxRows);
      std::iota(rows.begin(), rows.end(), 0);
      std::shuffle(rows.begin(), rows.end(), random_);
      rows.resize(static_cast<std::size_t>(count));
      std::fill(hidden_.begin(), hidden_.end(), std::numeric_limits<float>::quiet_NaN());
      for (int i = 0; i < count; ++i) {
        write_features(tokens, begin + i, hidden().row<float>(rows[static_cast<std::size_t>(i)]));
      }
      const int drafted = begin + count == end ? std::min(accepted, count - 1) : 0;
      const Observation seen{.seq = seq,
                             .tokens = tokens,
                             .pages = pages_of(seq),
                             .version = static_cast<std::uint64_t>(seq) + 1,
                             .first_position = begin,
                             .num_known_rows = count - drafted,
                             .num_accepted = drafted,
                             .rows = rows,
                             .kv_len = begin + count,
                             .will_draft = will_draft};
      drafter.observe({&seen, 1});
    }
    std::fill(hidden_.begin(), hidden_.end(), std::numeric_limits<float>::quiet_NaN());  // the next pass has begun
  }

  DraftRequest request(SeqId seq, const Tokens& tokens) {
    return {.seq = seq,
            .tokens = tokens,
            .pages = pages_of(seq),
            .version = static_cast<std::uint64_t>(seq) + 1,
            .max_drafted = max_drafted_,
            .max_depth = max_depth_,
            .rule = {.temperature = temperature_, .seed = 5}};
  }
  TokenTree draft(DFlashDrafter& drafter, SeqId seq, const Tokens& tokens) {
    TokenTree tree(tokens.back());
    const DraftRequest asked = request(seq, tokens);
    drafter.draft({&asked, 1}, {&tree, 1});
    EXPECT_NO_THROW(tree.check(max_drafted_, max_depth_, kVocabSize));
    EXPECT_TRUE(tree.is_chain());
    return tree;
  }
  TokenTree draft_anew(const Tokens& tokens) {
    const auto drafter = make_drafter(backend_);
    observe(*drafter, 900, tokens, 0, static_cast<int>(tokens.size()) - 1);
    return draft(*drafter, 900, tokens);
  }
  static void expect_equal(const TokenTree& seen, const TokenTree& expected) {
    EXPECT_GT(expected.num_drafted(), 0);
    EXPECT_EQ(seen.tokens, expected.tokens);
    EXPECT_EQ(seen.confidence, expected.confidence);
  }
  Tokens random_tokens(int count) {
    Tokens tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(random_() % kVocabSize));
    return tokens;
  }
  /// Appends 1 to 6 tokens, as a pass that accepts up to 5 drafts does. @returns how many.
  int grow(Tokens& tokens) {
    const Tokens more = random_tokens(1 + static_cast<int>(random_() % 6));
    tokens.insert(tokens.end(), more.begin(), more.end());
    return static_cast<int>(more.size());
  }
  static int root(const Tokens& tokens) { return static_cast<int>(tokens.size()) - 1; }

  std::mt19937 random_{1};
  ModelConfig config_ = testing::tiny_config(kVocabSize);
  Backend backend_ = make_backend("cpu:reference", DType::kFloat32, 1);
  Weights target_;
  std::vector<float> hidden_;
  std::map<SeqId, std::vector<PageId>> pages_;
  Setting setting_;
  int max_rows_ = kMaxRows;
  int max_drafted_ = 255;
  int max_depth_ = 255;
  float temperature_ = 0;
};

TEST_F(DFlashDrafterTest, HoweverContextComesTheBlockIsThatOfAllAtOnce) {
  for (const Setting& setting : kSettings) {
    setting_ = setting;
    for (const float temperature : {0.0f, 0.9f}) {
      temperature_ = temperature;
      const auto drafter = make_drafter(backend_);
      Tokens tokens = random_tokens(2);
      observe(*drafter, 7, tokens, 0, 1);
      while (tokens.size() < 90) {
        expect_equal(draft(*drafter, 7, tokens), draft_anew(tokens));
        const int first = root(tokens);
        const int count = grow(tokens);
        observe(*drafter, 7, tokens, first, first + count, count - 1);
      }
    }
  }
}

TEST_F(DFlashDrafterTest, TheBlockFollowsTokensFeaturesAndNoise) {
  for (const Setting& setting : kSettings) {
    setting_ = setting;
    temperature_ = 0;
    Tokens tokens = random_tokens(40);
    const TokenTree tree = draft_anew(tokens);
    tokens[39] ^= 1;
    const TokenTree other = draft_anew(tokens);
    EXPECT_NE(other.confidence, tree.confidence);
    tokens[38] ^= 1;
    EXPECT_NE(draft_anew(tokens).confidence, other.confidence);
    temperature_ = 1;
    EXPECT_NE(draft_anew(tokens).tokens, other.tokens);
  }
}

TEST_F(DFlashDrafterTest, ACutSequenceDraftsFromWhatIsLeft) {
  for (const Setting& setting : kSettings) {
    setting_ = setting;
    const auto drafter = make_drafter(backend_);
    Tokens tokens = random_tokens(50);
    observe(*drafter, 1, tokens, 0, 49);
    for (int round = 0; round < 30; ++round) {
      const TokenTree tree = draft(*drafter, 1, tokens);
      EXPECT_GT(tree.num_drafted(), 0);
      if (!setting.context.is_ring()) expect_equal(tree, draft_anew(tokens));
      const int kept = std::max(2, root(tokens) + 1 - static_cast<int>(random_() % 20));
      tokens.resize(static_cast<std::size_t>(kept));
      drafter->truncate(1, kept - 1);
      const int first = root(tokens);
      const Tokens more = random_tokens(static_cast<int>(random_() % 20));
      tokens.insert(tokens.end(), more.begin(), more.end());
      observe(*drafter, 1, tokens, first, root(tokens));
    }
    // A ring is whole again once it went round.
    for (int i = 0; i < 12; ++i) {
      const int first = root(tokens);
      const int count = grow(tokens);
      observe(*drafter, 1, tokens, first, first + count, count - 1);
    }
    if (setting.context.sinks == 0) expect_equal(draft(*drafter, 1, tokens), draft_anew(tokens));
  }
}

TEST_F(DFlashDrafterTest, SequencesOfABatchDraftWhatTheyDraftAlone) {
  for (const Setting& setting : kSettings) {
    setting_ = setting;
    for (const int max_rows : {5, 12, 24}) {  // one block at a time, two, all
      max_rows_ = max_rows;
      const auto drafter = make_drafter(backend_);
      std::vector<Tokens> tokens = {random_tokens(1), random_tokens(11), random_tokens(60)};
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        observe(*drafter, static_cast<SeqId>(i), tokens[i], 0, root(tokens[i]));
      }
      for (int round = 0; round < 5; ++round) {
        std::vector<DraftRequest> requests;
        std::vector<TokenTree> trees;
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          requests.push_back(request(static_cast<SeqId>(i), tokens[i]));
          requests.back().max_drafted = std::vector<int>{255, 4, 2}[(i + static_cast<std::size_t>(round)) % 3];
          requests.back().max_depth = std::vector<int>{1, 255, 3}[i];
          trees.emplace_back(tokens[i].back());
        }
        drafter->draft(requests, trees);
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          max_drafted_ = requests[i].max_drafted;
          max_depth_ = requests[i].max_depth;
          expect_equal(trees[i], draft_anew(tokens[i]));
          EXPECT_EQ(trees[i].num_drafted(), std::min({max_drafted_, max_depth_, testing::kTinyBlock - 1}));
          const int first = root(tokens[i]);
          const int count = grow(tokens[i]);
          observe(*drafter, static_cast<SeqId>(i), tokens[i], first, first + count, count - 1);
        }
      }
      max_drafted_ = max_depth_ = 255;
    }
  }
}

TEST_F(DFlashDrafterTest, AFailureAtEveryOperationLeavesNothingBehind) {
  for (const Setting& setting : kSettings) {
    setting_ = setting;
    const auto countdown = std::make_shared<int>(0);
    Backend failing = make_backend("cpu:reference", DType::kFloat32, 1);
    failing.ops = std::make_unique<testing::FailingOps>(std::move(failing.ops), countdown);
    int failed_drafts = 0, failed_observations = 0;
    for (int n = 1; n < 60; ++n) {
      const auto drafter = make_drafter(failing);
      Tokens tokens = random_tokens(30);
      observe(*drafter, 1, tokens, 0, 29);
      draft(*drafter, 1, tokens);
      const int first = root(tokens);
      const int count = grow(tokens);
      *countdown = n;
      try {
        observe(*drafter, 1, tokens, first, first + count, count - 1);
      } catch (const Error&) {
        // The engine drops what the drafter knows; what it has not seen is a hole. Then it is computed anew.
        ++failed_observations;
        drafter->truncate(1, 0);
        EXPECT_EQ(draft(*drafter, 1, tokens).num_drafted(), 0);
        const Tokens more = random_tokens(2);
        tokens.insert(tokens.end(), more.begin(), more.end());
        observe(*drafter, 1, tokens, root(tokens) - 2, root(tokens));
        EXPECT_EQ(draft(*drafter, 1, tokens).num_drafted() > 0, setting.context.is_ring());
        drafter->forget(1);
        observe(*drafter, 1, tokens, 0, root(tokens));
      }
      try {
        draft(*drafter, 1, tokens);
      } catch (const Error&) {
        ++failed_drafts;
      }
      *countdown = 0;
      expect_equal(draft(*drafter, 1, tokens), draft_anew(tokens));
    }
    EXPECT_GT(failed_observations, 5);
    EXPECT_GT(failed_drafts, 15);
  }
}

TEST_F(DFlashDrafterTest, RecordedPassesAreThoseOfAnyDevice) {
  for (const Setting& setting : kSettings) {
    setting_ = setting;
    Backend replaying = make_backend("cpu:reference", DType::kFloat32, 1);
    replaying.device = std::make_unique<testing::ReplayingDevice>(std::move(replaying.device));
    const auto drafter = make_drafter(replaying);
    drafter->record_graphs(3);
    const std::int64_t recorded = drafter->graphs().graphs;
    EXPECT_GE(recorded, 5);  // of blocks: 8, 16 and 18 rows; of context: 1 to 18
    Tokens tokens = random_tokens(9);
    observe(*drafter, 1, tokens, 0, 8);
    for (int round = 0; round < 12; ++round) {
      expect_equal(draft(*drafter, 1, tokens), draft_anew(tokens));
      const int first = root(tokens);
      const int count = grow(tokens);
      observe(*drafter, 1, tokens, first, first + count, count - 1);
    }
    EXPECT_EQ(drafter->graphs().eager_passes, 0);
    EXPECT_EQ(drafter->graphs().graphs, recorded);
    const std::int64_t replays = drafter->graphs().replays;
    EXPECT_TRUE(setting.rebases ? replays > 1 + 2 * 12 : replays == 1 + 2 * 12) << replays;  // sinks are moved, too
  }
}

TEST_F(DFlashDrafterTest, AnotherSampleStartsOnWhatItShares) {
  for (const Setting& setting : kSettings) {
    setting_ = setting;
    for (const int ahead : {0, 5}) {  // tokens that the holder has beyond what is shared
      const auto drafter = make_drafter(backend_);
      Tokens tokens = random_tokens(33);
      observe(*drafter, 1, tokens, 0, 28);
      const TokenTree expected = draft_anew(tokens);
      if (ahead > 0) observe(*drafter, 1, tokens, 28, 32);
      pages_[2] = pages_of(1);
      drafter->share(1, 2, 28);
      drafter->share(2, 3, 28);
      pages_[3] = pages_of(1);
      drafter->forget(1);
      observe(*drafter, 2, tokens, 28, 32);
      observe(*drafter, 3, tokens, 28, 32);
      for (const SeqId seq : {2, 3}) {
        const TokenTree tree = draft(*drafter, seq, tokens);
        // A ring that went on has lost some of what it is asked for.
        if (ahead == 0 || !setting.context.is_ring()) expect_equal(tree, expected);
        EXPECT_GT(tree.num_drafted(), 0);
      }
      drafter->share(77, 78, 4);  // of somebody who knows nothing
      pages_.clear();
    }
  }
}

TEST_F(DFlashDrafterTest, ASequenceThatNeverDraftsCostsNothing) {
  int count = 0;
  std::set<Slot> slots;
  Backend watched = make_backend("cpu:reference", DType::kFloat32, 1);
  watched.ops = std::make_unique<WatchedOps>(std::move(watched.ops), count, slots);
  const auto drafter = make_drafter(watched);
  const Tokens tokens = random_tokens(30);
  observe(*drafter, 1, tokens, 0, 29, 0, false);
  EXPECT_EQ(count, 0);
  observe(*drafter, 2, tokens, 0, 29);
  EXPECT_GT(count, 0);
}

TEST_F(DFlashDrafterTest, ARingTakesTheSameSlotsAtAnyLength) {
  setting_ = {{9, 3}, true};
  int count = 0;
  std::set<Slot> slots;
  Backend watched = make_backend("cpu:reference", DType::kFloat32, 1);
  watched.ops = std::make_unique<WatchedOps>(std::move(watched.ops), count, slots);
  const auto drafter = make_drafter(watched);
  Tokens tokens = random_tokens(20);
  observe(*drafter, 1, tokens, 0, 19);
  draft(*drafter, 1, tokens);
  const std::set<Slot> first = slots;
  EXPECT_EQ(first.size(), 12u + testing::kTinyBlock);
  while (tokens.size() < 180) {
    const int begin = root(tokens);
    const int grown = grow(tokens);
    observe(*drafter, 1, tokens, begin, begin + grown, grown - 1);
    draft(*drafter, 1, tokens);
  }
  EXPECT_EQ(slots, first);
}

TEST_F(DFlashDrafterTest, SeatsAreGivenBackAndCounted) {
  setting_ = {{9, 3}};
  const auto drafter = make_drafter(backend_);
  const Tokens tokens = random_tokens(30);
  const TokenTree expected = draft_anew(tokens);
  for (SeqId seq = 0; seq < 20; ++seq) {
    observe(*drafter, seq, tokens, 0, 29);
    expect_equal(draft(*drafter, seq, tokens), expected);
    drafter->forget(seq);
    drafter->forget(seq);
  }
  for (SeqId seq = 0; seq < 3; ++seq) observe(*drafter, seq, tokens, 0, 29);
  expect_error(ErrorCode::kInternal, {"more than 3 sequences"}, [&] { observe(*drafter, 3, tokens, 0, 29); });
}

TEST_F(DFlashDrafterTest, AWindowBeyondTheModelsOwnIsRefused) {
  DFlashModel model = testing::tiny_dflash(config_, target_, 17, DType::kFloat32, *backend_.device);
  const auto make = [&](int window) {
    DFlashDrafter::Limits limits{.max_drafted = 3, .context = {.window = window}, .pass = {64, 2, 100}, .page_size = 4};
    const DFlashDrafter drafter(testing::tiny_dflash(config_, target_, 17, DType::kFloat32, *backend_.device), hidden(),
                                backend_, DType::kFloat32, limits);
  };
  EXPECT_NO_THROW(make(20 - testing::kTinyBlock));
  expect_error(ErrorCode::kInvalidArgument, {"window of 15", "block of 6", "sliding window of 20", "at most 14"},
               [&] { make(15); });
}

}  // namespace
}  // namespace fastspec::test
