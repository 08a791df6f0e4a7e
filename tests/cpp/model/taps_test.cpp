// What a transformer keeps of a pass: for every row the output and the queries of each layer that was named, by what
// its operations were given.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "backend/intercepted_ops.h"
#include "model/transformer.h"
#include "support/tiny_model.h"

namespace fastspec::test {
namespace {

constexpr int kRows = 7;
constexpr int kMaxRows = 12;

/// Keeps the query that each call of attention was given.
class QueryWatch final : public InterceptedOps {
 public:
  QueryWatch(std::unique_ptr<Ops> inner, std::vector<std::vector<float>>& seen)
      : InterceptedOps(std::move(inner)), seen_(seen) {}
  void attention(const AttentionParams& params) override {
    std::vector<float>& query = seen_.emplace_back();
    for (int row = 0; row < params.query.rows; ++row) {
      const float* begin = params.query.row<const float>(row);
      query.insert(query.end(), begin, begin + params.query.cols);
    }
    InterceptedOps::attention(params);
  }

 private:
  void before() override {}
  void after() override {}
  std::vector<std::vector<float>>& seen_;
};

RowBatch batch_of(int num_rows) {
  RowBatch batch;
  for (int row = 0; row < num_rows; ++row) {
    batch.tokens.push_back(3 * row + 1);
    batch.positions.push_back(row);
    batch.slots.push_back(row);
  }
  batch.kv.lists.push_back({});
  batch.logit_rows.push_back(num_rows - 1);
  batch.end_sequence(NewMask::kCausal);
  return batch;
}

TEST(Taps, QueriesOfNamedLayersAreKeptForEveryRow) {
  std::vector<std::vector<float>> seen;
  Backend backend = make_backend("cpu:reference", DType::kFloat32, 1);
  backend.ops = std::make_unique<QueryWatch>(std::move(backend.ops), seen);
  ModelConfig config = testing::tiny_config();
  Transformer model(config, testing::tiny_weights(config, 3, DType::kFloat32, *backend.device), backend, kMaxRows, 1,
                    {.hidden_layers = {1}, .query_layers = {0, 1}});
  const KvPool kv(*backend.device, model.kv_shape(DType::kFloat32), 4, 4);
  PassBuffers buffers(*backend.device, {.max_rows = kMaxRows, .max_sequences = 1, .max_list_entries = 4});
  for (const int num_rows : {kRows, kRows - 2}) {
    seen.clear();
    model.forward(buffers.upload(batch_of(num_rows)), kv);
    const Matrix kept = model.kept_queries();
    ASSERT_EQ(kept.rows, kMaxRows);
    ASSERT_EQ(kept.cols, 2 * config.q_size());
    ASSERT_EQ(seen.size(), 2u);
    EXPECT_NE(seen[0], seen[1]);
    for (int layer = 0; layer < 2; ++layer) {
      for (int row = 0; row < num_rows; ++row) {
        const float* own = kept.row<const float>(row) + layer * config.q_size();
        EXPECT_TRUE(std::equal(own, own + config.q_size(), seen[layer].data() + row * config.q_size()))
            << "layer " << layer << ", row " << row;
      }
    }
  }
}

TEST(Taps, TheirMemoryIsCounted) {
  const ModelConfig config = testing::tiny_config();
  const std::size_t plain = Transformer::activation_bytes(config, 4, kMaxRows, 1);
  const std::size_t tapped = Transformer::activation_bytes(config, 4, kMaxRows, 1, {.query_layers = {0, 1}});
  EXPECT_EQ(tapped - plain, std::size_t{4} * kMaxRows * 2 * config.q_size());
}

}  // namespace
}  // namespace fastspec::test
