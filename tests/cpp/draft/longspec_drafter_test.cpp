// LongSpec's drafter against one that starts anew: whatever was drafted, accepted, cut or failed before, the tree is
// that of the tokens alone. What the block computes is judged by tests/reference.
#include "draft/longspec/longspec_drafter.h"

#include <gtest/gtest.h>

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
constexpr int kWindow = 12;
constexpr std::uint64_t kTargetSeed = 11;

/// What a drafter asks of its backend.
struct Use {
  std::int64_t embedded_rows = 0;
  std::set<Slot> slots;  // of the drafter's pool: written or moved to
};

class WatchedOps final : public InterceptedOps {
 public:
  WatchedOps(std::unique_ptr<Ops> inner, Use& use) : InterceptedOps(std::move(inner)), use_(use) {}
  void embed(const EmbeddingParams& params) override {
    use_.embedded_rows += params.output.rows;
    InterceptedOps::embed(params);
  }
  void rope_store(const RopeStoreParams& params) override {
    if (params.slots != nullptr) use_.slots.insert(params.slots, params.slots + params.qkv.rows);
    InterceptedOps::rope_store(params);
  }
  void copy_slots(const CopySlotsParams& params) override {
    for (int i = 0; i < params.num_moves; ++i) use_.slots.insert(params.moves[i].destination);
    InterceptedOps::copy_slots(params);
  }

 private:
  void before() override {}
  void after() override {}
  Use& use_;
};

class LongSpecDrafterTest : public ::testing::Test {
 protected:
  explicit LongSpecDrafterTest(int max_tokens = 400)
      : pages_(static_cast<std::size_t>(max_tokens / kPageSize + 1)),
        weights_(testing::tiny_weights(config_, kTargetSeed, DType::kFloat32, *backend_.device)),
        target_kv_(*backend_.device, {config_.num_layers, config_.num_kv_heads, config_.head_dim, DType::kFloat32},
                   static_cast<int>(pages_.size()), kPageSize) {
    std::iota(pages_.begin(), pages_.end(), 0);
    std::reverse(pages_.begin(), pages_.end());
    const KvView& view = target_kv_.layers().back();
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < view.page_stride * static_cast<std::int64_t>(pages_.size()); ++i) {
      static_cast<float*>(view.base)[i] = normal(random_);
    }
  }

  std::unique_ptr<LongSpecDrafter> make_drafter(Backend& backend) {
    return std::make_unique<LongSpecDrafter>(
        testing::tiny_longspec(config_, kTargetSeed, window_, DType::kFloat32, *backend.device, vocabulary_), config_,
        weights_, target_kv_.layers().back(), backend, DType::kFloat32, limits());
  }
  LongSpecDrafter::Limits limits() const {
    return {.tree_widths = widths_,
            .coupled = coupled_,
            .max_drafted = 255,
            .pass = {.max_rows = max_rows_,
                     .max_sequences = 3,
                     .max_list_entries = 3 * static_cast<std::int64_t>(pages_.size())},
            .page_size = kPageSize};
  }

  DraftRequest request(SeqId seq, const Tokens& tokens) {
    return {.seq = seq,
            .tokens = tokens,
            .pages = pages_,
            .slots = slots_,
            .max_drafted = max_drafted_,
            .max_depth = max_depth_,
            .rule = {.temperature = temperature_, .seed = 5}};
  }

  TokenTree draft(LongSpecDrafter& drafter, SeqId seq, const Tokens& tokens) {
    TokenTree tree(tokens.back());
    const DraftRequest asked = request(seq, tokens);
    drafter.draft({&asked, 1}, {&tree, 1});
    EXPECT_NO_THROW(tree.check(max_drafted_, max_depth_, kVocabSize));
    return tree;
  }
  TokenTree draft_anew(const Tokens& tokens) { return draft(*make_drafter(backend_), 1, tokens); }

  static void expect_equal(const TokenTree& seen, const TokenTree& expected) {
    EXPECT_EQ(seen.tokens, expected.tokens);
    EXPECT_EQ(seen.parents, expected.parents);
    EXPECT_EQ(seen.confidence, expected.confidence);
  }

  Tokens random_tokens(int count) {
    Tokens tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(random_() % kVocabSize));
    return tokens;
  }

  /// Accepts the path to a random node and a random bonus token. @returns the node's depth.
  int accept(const TokenTree& tree, Tokens& tokens) {
    Tokens path;
    for (int node = static_cast<int>(random_() % static_cast<unsigned>(tree.num_nodes())); node > 0;
         node = tree.parents[static_cast<std::size_t>(node)]) {
      path.push_back(tree.tokens[static_cast<std::size_t>(node)]);
    }
    tokens.insert(tokens.end(), path.rbegin(), path.rend());
    tokens.push_back(static_cast<TokenId>(random_() % kVocabSize));
    return static_cast<int>(path.size());
  }

  std::mt19937 random_{1};
  ModelConfig config_ = testing::tiny_config(kVocabSize);
  std::vector<PageId> pages_;
  Backend backend_ = make_backend("cpu:reference", DType::kFloat32, 1);
  Weights weights_;
  KvPool target_kv_;
  std::vector<int> widths_{3, 5, 4, 4};
  int window_ = kWindow;
  int max_rows_ = 64;
  int max_drafted_ = 255;
  int max_depth_ = 255;
  float temperature_ = 0;
  bool coupled_ = true;
  std::vector<TokenId> vocabulary_;
  std::vector<Slot> slots_;
};

TEST_F(LongSpecDrafterTest, EveryAcceptedPathLeavesWhatAFreshStartHas) {
  for (const float temperature : {0.0f, 0.9f}) {
    temperature_ = temperature;
    const auto drafter = make_drafter(backend_);
    Tokens tokens = random_tokens(3);
    std::set<int> depths;
    while (tokens.size() < 150) {
      const TokenTree tree = draft(*drafter, 7, tokens);
      EXPECT_EQ(tree.num_nodes(), 17);
      expect_equal(tree, draft_anew(tokens));
      depths.insert(accept(tree, tokens));
    }
    EXPECT_EQ(depths.size(), 5u);
  }
}

TEST_F(LongSpecDrafterTest, TheTreeFollowsTokensKeysAndNoise) {
  Tokens tokens = random_tokens(40);
  const TokenTree tree = draft_anew(tokens);
  tokens[39 - kWindow] ^= 1;  // the oldest key that the root sees
  const TokenTree other = draft_anew(tokens);
  EXPECT_NE(other.confidence, tree.confidence);
  tokens[39 - kWindow - 1] ^= 1;
  expect_equal(draft_anew(tokens), other);
  const KvView& view = target_kv_.layers().back();
  const PageId page = pages_[38 / kPageSize];
  static_cast<float*>(view.base)[page * view.page_stride + 38 % kPageSize * view.slot_stride] += 1;
  const TokenTree greedy = draft_anew(tokens);
  EXPECT_NE(greedy.confidence, other.confidence);
  temperature_ = 1;
  EXPECT_NE(draft_anew(tokens).tokens, greedy.tokens);
  coupled_ = false;
  expect_equal(draft_anew(tokens), greedy);
}

TEST_F(LongSpecDrafterTest, CutAndRedrawnSequencesDraftFromWhatTheyAre) {
  const auto drafter = make_drafter(backend_);
  Tokens tokens = random_tokens(50);
  for (int round = 0; round < 40; ++round) {
    expect_equal(draft(*drafter, 1, tokens), draft_anew(tokens));
    const int kept = static_cast<int>(tokens.size()) - static_cast<int>(random_() % 20);
    tokens.resize(static_cast<std::size_t>(std::max(kept, 1)));
    drafter->truncate(1, static_cast<int>(tokens.size()) - 1);
    for (const TokenId token : random_tokens(static_cast<int>(random_() % 20))) tokens.push_back(token);
  }
}

/// After a failure the next draft may be for the same tokens, or for others where the sequence was cut: those that the
/// last tree proposed, or fewer.
TEST_F(LongSpecDrafterTest, AFailureAtEveryOperationLeavesNothingBehind) {
  const auto countdown = std::make_shared<int>(0);
  Backend failing = make_backend("cpu:reference", DType::kFloat32, 1);
  failing.ops = std::make_unique<testing::FailingOps>(std::move(failing.ops), countdown);
  int failures = 0;
  for (int n = 1; n < 90; ++n) {
    for (int round = 0; round < 6; ++round) {
      const auto drafter = make_drafter(failing);
      Tokens tokens = random_tokens(30);
      Tokens proposed = tokens;
      const TokenTree first = draft(*drafter, 1, tokens);
      accept(first, proposed);
      if (round % 2 == 0) {
        accept(first, tokens);
      } else {
        const Tokens more = random_tokens(1 + round);
        tokens.insert(tokens.end(), more.begin(), more.end());
      }
      *countdown = n;
      try {
        draft(*drafter, 1, tokens);
      } catch (const Error&) {
        ++failures;
      }
      *countdown = 0;
      if (round % 3 == 1) tokens = proposed;
      if (round % 3 == 2) tokens.resize(tokens.size() - 1 - random_() % kWindow);
      expect_equal(draft(*drafter, 1, tokens), draft_anew(tokens));
    }
  }
  EXPECT_GT(failures, 400);
}

TEST_F(LongSpecDrafterTest, SequencesOfABatchDraftWhatTheyDraftAlone) {
  for (const int max_rows : {5, 10, 64}) {  // one tree at a time, two, all
    max_rows_ = max_rows;
    const auto drafter = make_drafter(backend_);
    std::vector<Tokens> tokens = {random_tokens(2), random_tokens(11), random_tokens(60)};
    for (int round = 0; round < 8; ++round) {
      std::vector<DraftRequest> requests;
      std::vector<TokenTree> trees;
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        requests.push_back(request(static_cast<SeqId>(i), tokens[i]));
        requests.back().max_drafted = std::vector<int>{255, 4, 9}[(i + static_cast<std::size_t>(round)) % 3];
        requests.back().max_depth = std::vector<int>{2, 255, 3}[i];
        trees.emplace_back(tokens[i].back());
      }
      drafter->draft(requests, trees);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        max_drafted_ = requests[i].max_drafted;
        max_depth_ = requests[i].max_depth;
        expect_equal(trees[i], draft_anew(tokens[i]));
        accept(trees[i], tokens[i]);
      }
    }
  }
}

TEST_F(LongSpecDrafterTest, RecordedLevelsAreThoseOfAnyDevice) {
  Backend replaying = make_backend("cpu:reference", DType::kFloat32, 1);
  replaying.device = std::make_unique<testing::ReplayingDevice>(std::move(replaying.device));
  const auto drafter = make_drafter(replaying);
  drafter->record_graphs(1);
  EXPECT_GE(drafter->graphs().graphs, 3);  // the root, three nodes, four or five
  Tokens tokens = random_tokens(9);
  for (int round = 0; round < 12; ++round) {
    const TokenTree tree = draft(*drafter, 1, tokens);
    expect_equal(tree, draft_anew(tokens));
    accept(tree, tokens);
  }
  EXPECT_EQ(drafter->graphs().replays, 12 * 4);  // every level of every tree
}

TEST_F(LongSpecDrafterTest, ASmallerTreeKeepsTheBestOfWhatItsLevelsHold) {
  const Tokens tokens = random_tokens(25);
  const auto product = [](const TokenTree& tree, int node) {
    double survival = 1;
    for (; node > 0; node = tree.parents[static_cast<std::size_t>(node)]) {
      survival *= static_cast<double>(tree.confidence[static_cast<std::size_t>(node)]);
    }
    return survival;
  };
  const TokenTree whole = draft_anew(tokens);
  max_drafted_ = 6;
  const TokenTree cut = draft_anew(tokens);
  ASSERT_EQ(cut.num_drafted(), 6);
  std::vector<double> best;
  for (int node = 1; node < whole.num_nodes(); ++node) best.push_back(product(whole, node));
  std::sort(best.rbegin(), best.rend());
  for (int node = 1; node < cut.num_nodes(); ++node) EXPECT_GE(product(cut, node), best[5] * 0.999);
  max_drafted_ = 0;
  EXPECT_EQ(draft_anew(tokens).num_drafted(), 0);
  max_drafted_ = 255;
  max_depth_ = 0;
  EXPECT_EQ(draft_anew(tokens).num_drafted(), 0);
}

TEST_F(LongSpecDrafterTest, ChainsAndTheWidestTrees) {
  widths_ = {1, 1, 1, 1};
  EXPECT_TRUE(draft_anew(random_tokens(20)).is_chain());
  widths_ = {55, 100, 100};
  EXPECT_EQ(draft_anew(random_tokens(20)).num_drafted(), 255);
  widths_ = {255};  // more than there are tokens
  EXPECT_EQ(draft_anew(random_tokens(20)).num_drafted(), kVocabSize);
}

TEST_F(LongSpecDrafterTest, ASlotListTakesThePlaceOfPages) {
  const Tokens tokens = random_tokens(21);
  const TokenTree by_pages = draft_anew(tokens);
  for (int position = 0; position < 20; ++position) {
    slots_.push_back(Slot{pages_[static_cast<std::size_t>(position / kPageSize)]} * kPageSize + position % kPageSize);
  }
  expect_equal(draft_anew(tokens), by_pages);
  slots_.erase(slots_.begin() + 3);
  EXPECT_NE(draft_anew(tokens).confidence, by_pages.confidence);
}

TEST_F(LongSpecDrafterTest, APrunedVocabularyProposesNothingElse) {
  vocabulary_ = {2, 3, 11, 17, 40, 59};
  for (const float temperature : {0.0f, 1.0f}) {
    temperature_ = temperature;
    const TokenTree tree = draft_anew(random_tokens(21));
    EXPECT_EQ(tree.num_drafted(), 16);
    for (std::size_t node = 1; node < tree.tokens.size(); ++node) {
      EXPECT_TRUE(std::binary_search(vocabulary_.begin(), vocabulary_.end(), tree.tokens[node]));
    }
  }
}

TEST_F(LongSpecDrafterTest, OnlyTheRootIsComputedAgain) {
  Use use;
  Backend watched = make_backend("cpu:reference", DType::kFloat32, 1);
  watched.ops = std::make_unique<WatchedOps>(std::move(watched.ops), use);
  const auto drafter = make_drafter(watched);
  Tokens tokens = random_tokens(100);
  TokenTree tree = draft(*drafter, 1, tokens);
  constexpr int kTreeRows = 1 + 3 + 5 + 4;  // the last level's nodes have no children
  EXPECT_EQ(use.embedded_rows, kWindow + kTreeRows);
  for (int round = 0; round < 20; ++round) {
    use.embedded_rows = 0;
    // A node of the last level was never computed: its K/V is projected when it is accepted.
    const int uncomputed = accept(tree, tokens) == 4 ? 1 : 0;
    tree = draft(*drafter, 1, tokens);
    EXPECT_EQ(use.embedded_rows, kTreeRows + uncomputed);
  }
}

TEST_F(LongSpecDrafterTest, SeatsAreGivenBackAndCounted) {
  const auto drafter = make_drafter(backend_);
  const Tokens tokens = random_tokens(30);
  const TokenTree expected = draft_anew(tokens);
  for (SeqId seq = 0; seq < 20; ++seq) {
    expect_equal(draft(*drafter, seq, tokens), expected);
    const Tokens others = random_tokens(30);
    expect_equal(draft(*drafter, seq + 100, others), draft_anew(others));
    drafter->forget(seq);
    drafter->forget(seq + 100);
    drafter->forget(seq);
  }
  for (SeqId seq = 0; seq < 3; ++seq) draft(*drafter, seq, tokens);
  expect_error(ErrorCode::kInternal, {"more than 3 sequences"}, [&] { draft(*drafter, 3, tokens); });
}

class LongSpecContextTest : public LongSpecDrafterTest {
 protected:
  LongSpecContextTest() : LongSpecDrafterTest(131072) {}
};

/// The paper's claim: memory does not depend on the context.
TEST_F(LongSpecContextTest, MemoryIsTheSameAt1KAnd128K) {
  window_ = 512;
  widths_ = {4, 16, 16, 16, 16};
  std::size_t slots[2];
  for (const bool is_long : {false, true}) {
    Use use;
    Backend watched = make_backend("cpu", DType::kFloat32, 2);
    watched.ops = std::make_unique<WatchedOps>(std::move(watched.ops), use);
    const auto drafter = make_drafter(watched);
    Tokens tokens = random_tokens(is_long ? 131072 - 40 : 1024 - 40);
    for (int round = 0; round < 4; ++round) {
      accept(draft(*drafter, 1, tokens), tokens);
      EXPECT_LE(use.embedded_rows, (round == 0 ? 512 : 1) + 1 + 4 + 3 * 16);
      use.embedded_rows = 0;
    }
    slots[is_long] = use.slots.size();
    EXPECT_LE(*use.slots.rbegin(), 513 + 52);
  }
  LongSpecConfig sizes;
  sizes.window = window_;
  EXPECT_EQ(LongSpecDrafter::kv_bytes(sizes, config_, DType::kFloat32, limits()),
            (3 * (513 + 52) + 1) * std::size_t{2} * 2 * 8 * sizeof(float));
  EXPECT_LE(slots[1], 513u + 52u);
  EXPECT_LE(slots[0], slots[1] + 8);
}

}  // namespace
}  // namespace fastspec::test
