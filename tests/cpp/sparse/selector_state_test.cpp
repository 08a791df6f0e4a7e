// What selectors keep of sequences between passes: the queries of their last tokens, bounds of their pages, and whose
// drafted rows ask for whom.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "backend/intercepted_ops.h"
#include "memory/kv_pool.h"
#include "sparse/history_selector.h"
#include "sparse/page_bounds.h"
#include "sparse/query_store.h"

namespace fastspec::test {
namespace {

constexpr int kCols = 16;
constexpr int kPassRows = 24;

class QueryStoreTest : public ::testing::Test {
 protected:
  /// The next pass: other queries in every row.
  void next_pass() {
    for (float& value : pass_) value = std::normal_distribution<float>()(random_);
  }
  std::vector<float> pass_row(int row) const {
    return {pass_.begin() + row * kCols, pass_.begin() + (row + 1) * kCols};
  }

  std::mt19937 random_{3};
  Backend backend_ = make_backend("cpu:reference", DType::kFloat32, 1);
  std::vector<float> pass_ = std::vector<float>(std::size_t{kPassRows} * kCols);
  Matrix pass_queries_{pass_.data(), DType::kFloat32, kPassRows, kCols, kCols};
};

TEST_F(QueryStoreTest, HoldsWhatTheLastPassOfEachSequenceGave) {
  constexpr int kSequences = 5;
  QueryStore store(backend_, pass_queries_, kSequences);
  struct Expected {
    std::vector<float> query;
    int length = 0;
  };
  std::map<SeqId, Expected> expected;
  SeqId next_seq = 0;
  for (int round = 0; round < 400; ++round) {
    if (expected.size() < kSequences && random_() % 3 == 0) expected[next_seq++];
    next_pass();
    std::vector<SelectorObservation> observations;
    for (auto& [seq, own] : expected) {
      if (random_() % 3 == 0) continue;  // not in this pass
      const int row = static_cast<int>(random_() % kPassRows),
                kv_len = own.length + 1 + static_cast<int>(random_() % 4);
      observations.push_back({.seq = seq, .first_position = own.length, .kv_len = kv_len, .last_row = row});
      own = {pass_row(row), kv_len};
    }
    store.observe(observations);
    if (!expected.empty() && random_() % 4 == 0) {
      auto& [seq, own] = *std::next(expected.begin(), static_cast<int>(random_() % expected.size()));
      const int length = own.length - static_cast<int>(random_() % 2);
      store.truncate(seq, length);
      if (length < own.length) own = {{}, 0};
    }
    if (!expected.empty() && random_() % 8 == 0) {
      store.forget(expected.begin()->first);
      expected.erase(expected.begin());
    }
    store.forget(next_seq + 7);  // never seen
    for (const auto& [seq, own] : expected) {
      ASSERT_EQ(store.holds(seq), own.length > 0) << "round " << round;
      if (own.length == 0) continue;
      const float* seen = store.queries().row<const float>(store.row(seq));
      ASSERT_EQ(std::vector<float>(seen, seen + kCols), own.query) << "round " << round;
    }
    ASSERT_FALSE(store.holds(next_seq + 7));
  }
}

class PageBoundsTest : public ::testing::Test {
 protected:
  static constexpr int kPageSize = 4;
  static constexpr int kNumPages = 64;

  float& key(int layer, PageId page, int slot, int head, int d) {
    const KvView& kv = pool_.layer(layer);
    return static_cast<float*>(kv.base)[page * kv.page_stride + head * kv.head_stride + slot * kv.slot_stride + d];
  }
  void write(const std::vector<PageId>& pages, int begin, int end) {
    for (int position = begin; position < end; ++position) {
      for (int at = 0; at < 2 * 2 * 8; ++at) {
        key(at / 16, pages[static_cast<std::size_t>(position / kPageSize)], position % kPageSize, at / 8 % 2, at % 8) =
            std::normal_distribution<float>()(random_);
      }
    }
  }
  void expect_right(const PageBounds& bounds, const std::vector<PageId>& pages, int length) {
    for (int layer = 0; layer < 2; ++layer) {
      const auto* seen = static_cast<const float*>(bounds.layer(static_cast<std::size_t>(layer)));
      for (int begin = 0; begin < length; begin += kPageSize) {
        const PageId page = pages[static_cast<std::size_t>(begin / kPageSize)];
        for (int at = 0; at < 16; ++at) {
          const int head = at / 8, d = at % 8;
          float low = key(layer, page, 0, head, d), high = low;
          for (int slot = 1; slot < std::min(kPageSize, length - begin); ++slot) {
            low = std::min(low, key(layer, page, slot, head, d));
            high = std::max(high, key(layer, page, slot, head, d));
          }
          const float* own = seen + (page * 2 + head) * 16;
          ASSERT_EQ(own[d], low) << "page " << begin / kPageSize << " of " << length << " tokens";
          ASSERT_EQ(own[8 + d], high);
        }
      }
    }
  }

  std::mt19937 random_{5};
  Backend backend_ = make_backend("cpu:reference", DType::kFloat32, 1);
  KvPool pool_{*backend_.device, {2, 2, 8, DType::kFloat32}, kNumPages, kPageSize};
};

TEST_F(PageBoundsTest, AreThoseOfTheKeysAfterAnyCommitsAndCuts) {
  PageBounds bounds(backend_, pool_.layers(), kNumPages);
  struct Sequence {
    std::vector<PageId> pages;
    int length = 0;
    int whole = 0;  // leading tokens in pages of another, which are not written
    bool right = false;
  };
  std::map<SeqId, Sequence> sequences;
  SeqId next_seq = 0;
  PageId next_page = 0;
  const auto add = [&](int num_pages) {
    Sequence sequence;
    for (int i = 0; i < num_pages; ++i) sequence.pages.push_back((next_page++ * 37) % kNumPages);
    sequences[next_seq] = sequence;
    return next_seq++;
  };
  add(12);
  add(12);
  for (int round = 0; round < 300; ++round) {
    std::vector<SelectorObservation> observations;
    for (auto& [seq, own] : sequences) {
      if (random_() % 4 == 0) continue;
      const int first = std::max(own.whole, own.length - static_cast<int>(random_() % 3));  // some are computed anew
      const int end = std::min(own.length + static_cast<int>(random_() % 6), 12 * kPageSize);
      if (end <= first) continue;
      write(own.pages, first, end);
      own.length = end;
      own.right = true;
      observations.push_back({.seq = seq, .pages = own.pages, .first_position = first, .kv_len = end});
    }
    bounds.observe(observations);
    for (const auto& [seq, own] : sequences) {
      if (!own.right) continue;
      ASSERT_NO_FATAL_FAILURE(expect_right(bounds, own.pages, own.length)) << "round " << round;
    }
    auto& [seq, cut] = *sequences.begin();
    if (random_() % 5 == 0) {
      cut.length = std::max(cut.whole, cut.length - static_cast<int>(random_() % 9));
      bounds.truncate(seq, cut.length);
      cut.right = false;  // until a pass writes again
    }
    if (round == 150) {  // a sample of the second's prompt
      const SeqId from = std::prev(sequences.end())->first;
      const int shared = sequences[from].length / 2 / kPageSize;
      const SeqId to = add(12);
      std::copy_n(sequences[from].pages.begin(), shared, sequences[to].pages.begin());
      sequences[to].length = sequences[to].whole = shared * kPageSize;
      bounds.share(from, to, shared * kPageSize);
      sequences[from].whole = shared * kPageSize;
    }
  }
}

/// A failure left nothing behind: all pages of a sequence are looked at again.
TEST_F(PageBoundsTest, AreMadeAnewForASequenceThatWasForgotten) {
  PageBounds bounds(backend_, pool_.layers(), kNumPages);
  const std::vector<PageId> pages{3, 1, 4, 15, 9};
  write(pages, 0, 17);  // nobody was told
  const SelectorObservation seen{.seq = 1, .pages = pages, .first_position = 17, .kv_len = 18};
  write(pages, 17, 18);
  bounds.observe({&seen, 1});
  expect_right(bounds, pages, 18);
}

/// Keeps what score_keys was asked.
class RowWatch final : public InterceptedOps {
 public:
  using InterceptedOps::InterceptedOps;
  struct Asked {
    std::vector<std::vector<std::int32_t>> rows;
    std::vector<std::vector<float>> weights;
  };
  void score_keys(const ScoreKeysParams& params) override {
    Asked& call = calls.emplace_back();
    for (int s = 0; s < params.num_sequences; ++s) {
      const int begin = params.row_offsets[s], end = params.row_offsets[s + 1];
      call.rows.emplace_back(params.rows + begin, params.rows + end);
      call.weights.emplace_back(params.row_weights + begin, params.row_weights + end);
    }
    InterceptedOps::score_keys(params);
  }
  std::vector<Asked> calls;

 private:
  void before() override {}
  void after() override {}
};

TEST(HistorySelector, DraftedRowsAskForTheirOwnSequenceAlone) {
  constexpr int kQSize = 16, kSequences = 6, kLength = 20, kPageSize = 4;
  Backend backend = make_backend("cpu:reference", DType::kFloat32, 1);
  auto own_watch = std::make_unique<RowWatch>(std::move(backend.ops));
  RowWatch& watch = *own_watch;
  backend.ops = std::move(own_watch);
  KvPool pool(*backend.device, {1, 2, 8, DType::kFloat32}, 32, kPageSize);
  std::mt19937 random(9);
  const KvView& kv = pool.layer(0);
  for (std::int64_t i = 0; i < 32 * kv.page_stride; ++i) {
    static_cast<float*>(kv.base)[i] = std::normal_distribution<float>()(random);
  }
  std::vector<float> queries(std::size_t{kPassRows} * kQSize);
  for (float& value : queries) value = std::normal_distribution<float>()(random);
  const Matrix kept{queries.data(), DType::kFloat32, kPassRows, kQSize, kQSize};
  Lookahead lookahead{.layers = {{kept, kv}}, .num_heads = 2};
  lookahead.row_offsets = {0, 2, 2, 5};
  lookahead.rows = {7, 8, 20, 21, 22};
  lookahead.weights = {1.0f, 0.5f, 1.0f, 0.25f, 0.125f};
  const SelectionShape shape{.budget = 10, .sinks = 2, .recent = 2, .lookahead_slots = 3};
  const std::vector<ScoredLayer> layers{{kept, kv, 2, {0, 1}}};
  HistorySelector selector("dustin", backend, shape,
                           {.max_sequences = kSequences, .max_keys = 32, .page_size = kPageSize, .lookahead_rows = 3},
                           kept, layers, layers, RowPooling::kMean, &lookahead);
  std::vector<SelectorObservation> observations;
  for (const int seq : {1, 3, 4, 5}) observations.push_back({.seq = seq, .kv_len = kLength, .last_row = 2 * seq});
  selector.observe(observations);

  std::vector<KvList> contexts(kSequences);  // 0 and 2 choose nothing
  std::vector<Slot> entries, slots(40, -1);
  std::vector<SelectRequest> requests;
  const int drafts[] = {-1, 2, -1, -1, 0, 1};
  for (const int i : {1, 3, 4, 5}) {
    contexts[static_cast<std::size_t>(i)] = {.offset = std::ssize(entries), .length = kLength};
    for (int page = 0; page < 5; ++page) entries.push_back(5 * i + page);
    requests.push_back({.seq = i, .index = i, .num_cached = kLength, .num_slots = 10, .draft = drafts[i]});
  }
  Pass pass{.num_sequences = kSequences};
  pass.contexts = contexts.data();
  pass.entries = entries.data();
  selector.select(requests);
  selector.issue(pass, slots.data());

  ASSERT_EQ(watch.calls.size(), 2u);
  using Rows = std::vector<std::vector<std::int32_t>>;
  EXPECT_EQ(watch.calls[1].rows, (Rows{{}, {20, 21, 22}, {}, {}, {7, 8}, {}}));
  EXPECT_EQ(watch.calls[1].weights, (std::vector<std::vector<float>>{{}, {1, 0.25f, 0.125f}, {}, {}, {1, 0.5f}, {}}));
  EXPECT_EQ(watch.calls[0].rows.size(), 6u);
  for (const int s : {0, 2}) EXPECT_TRUE(watch.calls[0].rows[static_cast<std::size_t>(s)].empty());
  for (std::size_t k = 0; k < requests.size(); ++k) {  // each has its ten slots, behind those of the ones before
    EXPECT_EQ(slots[10 * k], Slot{5} * requests[k].index * kPageSize) << k;
    EXPECT_EQ(slots[10 * k + 9], Slot{5} * requests[k].index * kPageSize + kLength - 1) << k;
    const float mass = selector.recovered_mass(static_cast<int>(k));
    EXPECT_GT(mass, 0);
    EXPECT_LE(mass, 1);
  }
  EXPECT_FALSE(selector.is_ready(2));
  EXPECT_TRUE(selector.is_ready(3));
  selector.truncate(3, kLength - 1);
  EXPECT_FALSE(selector.is_ready(3));
}

}  // namespace
}  // namespace fastspec::test
