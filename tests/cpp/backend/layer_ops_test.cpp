// Embedding, norm, linear, RoPE and SiLU of every implementation against the double-precision oracles.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/check.h"
#include "cpp/backend/ops_under_test.h"
#include "support/oracle.h"

namespace fastspec::test {
namespace {

/// A random matrix that owns its memory; the gaps between rows are NaN.
struct OwnedMatrix {
  OwnedMatrix(int rows, int cols, std::mt19937_64& random, int gap = 7)
      : data(static_cast<std::size_t>(rows) * (cols + gap), kNan) {
    matrix = {data.data(), DType::kFloat32, rows, cols, cols + gap};
    std::normal_distribution<float> normal;
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < cols; ++i) matrix.row<float>(row)[i] = normal(random);
    }
  }
  static OwnedMatrix poisoned(int rows, int cols) {
    std::mt19937_64 random(0);
    OwnedMatrix result(rows, cols, random);
    std::fill(result.data.begin(), result.data.end(), kNan);
    return result;
  }
  std::vector<float> data;
  Matrix matrix;
};

void round_to_bfloat16(OwnedMatrix& matrix) {
  for (float& value : matrix.data) {
    std::uint16_t bits;
    if (std::isnan(value)) continue;
    oracle::write_element(&bits, DType::kBFloat16, 0, value);
    value = static_cast<float>(oracle::read_element(&bits, DType::kBFloat16, 0));
  }
}

struct OwnedWeight {
  OwnedWeight(int out_features, int in_features, DType dtype, std::mt19937_64& random)
      : data(static_cast<std::size_t>(out_features) * in_features * size_of(dtype)) {
    std::normal_distribution<double> normal(0, 1.0 / std::sqrt(in_features));
    for (std::int64_t i = 0; i < std::int64_t{out_features} * in_features; ++i) {
      oracle::write_element(data.data(), dtype, i, normal(random));
    }
    weight = {data.data(), dtype, out_features, in_features};
  }
  std::vector<std::uint8_t> data;
  Weight weight;
};

std::vector<float> random_vector(int size, std::mt19937_64& random) {
  std::normal_distribution<float> normal(1.0f, 0.3f);
  std::vector<float> values(static_cast<std::size_t>(size));
  for (float& value : values) value = normal(random);
  return values;
}

constexpr DType kAllTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

class LayerOpsTest : public OpsTest {};

TEST_P(LayerOpsTest, Embed) {
  std::mt19937_64 random(1);
  for (const DType dtype : kAllTypes) {
    OwnedWeight table(50, 40, dtype, random);
    OwnedMatrix output = OwnedMatrix::poisoned(4, 40);
    const TokenId tokens[] = {49, 0, 7, 7};
    const EmbeddingParams params{tokens, table.weight, output.matrix};
    ops()->embed(params);
    EXPECT_EQ(worst_error(output.matrix, oracle::embed(params)), 0);
  }
}

TEST_P(LayerOpsTest, EmbedRefusesTokensOutsideTheTable) {
  std::mt19937_64 random(1);
  OwnedWeight table(50, 40, DType::kFloat32, random);
  OwnedMatrix output = OwnedMatrix::poisoned(1, 40);
  for (const TokenId token : {-1, 50}) {
    EXPECT_THROW(ops()->embed({&token, table.weight, output.matrix}), Error);
  }
}

TEST_P(LayerOpsTest, CopyRowsBetweenColumnsOfWiderMatrices) {
  std::mt19937_64 random(2);
  OwnedMatrix input(6, 100, random);
  OwnedMatrix output = OwnedMatrix::poisoned(3, 50);
  Matrix from = input.matrix, to = output.matrix;
  from.data = input.matrix.row<float>(0) + 30;
  to.data = output.matrix.row<float>(0) + 7;
  from.cols = to.cols = 33;
  const std::int32_t rows[] = {5, 0, 5};
  ops()->copy_rows({from, rows, to});
  for (int row = 0; row < 3; ++row) {
    for (int col = 0; col < 50; ++col) {
      const float seen = output.matrix.row<float>(row)[col];
      if (col < 7 || col >= 40) {
        EXPECT_TRUE(std::isnan(seen)) << row << " " << col;
      } else {
        EXPECT_EQ(seen, input.matrix.row<float>(rows[row])[30 + col - 7]);
      }
    }
  }
  const std::int32_t one_left_out[] = {1, -1, 2};
  ops()->copy_rows({from, one_left_out, to});
  EXPECT_EQ(to.row<float>(0)[3], from.row<float>(1)[3]);
  EXPECT_EQ(to.row<float>(1)[3], from.row<float>(0)[3]);  // as it was
  EXPECT_EQ(to.row<float>(2)[3], from.row<float>(2)[3]);
  from.rows = 3;
  ops()->copy_rows({from, nullptr, to});
  for (int row = 0; row < 3; ++row) EXPECT_EQ(to.row<float>(row)[32], from.row<float>(row)[32]);
  EXPECT_THROW(ops()->copy_rows({from, rows, to}), Error);  // row 5 of 3
  const std::int32_t before[] = {0, -2, 0};
  EXPECT_THROW(ops()->copy_rows({from, before, to}), Error);
  from.cols = 32;
  EXPECT_THROW(ops()->copy_rows({from, nullptr, to}), Error);
}

TEST_P(LayerOpsTest, RmsNorm) {
  std::mt19937_64 random(2);
  for (const int size : {8, 33, 576, 1000}) {
    for (const int rows : {1, 5, 40}) {
      OwnedMatrix input(rows, size, random);
      OwnedMatrix output = OwnedMatrix::poisoned(rows, size);
      const std::vector<float> weight = random_vector(size, random);
      RmsNormParams params{input.matrix, {weight.data(), size}, 1e-5f, nullptr, output.matrix};
      ops()->rms_norm(params);
      EXPECT_LT(worst_error(output.matrix, oracle::rms_norm(params)), 3e-6) << size << " x " << rows;
    }
  }
}

TEST_P(LayerOpsTest, RmsNormOfChosenRows) {
  std::mt19937_64 random(3);
  OwnedMatrix input(6, 100, random);
  OwnedMatrix output = OwnedMatrix::poisoned(3, 100);
  const std::vector<float> weight = random_vector(100, random);
  const std::int32_t rows[] = {5, 0, 5};
  RmsNormParams params{input.matrix, {weight.data(), 100}, 1e-5f, rows, output.matrix};
  ops()->rms_norm(params);
  EXPECT_LT(worst_error(output.matrix, oracle::rms_norm(params)), 3e-6);
}

TEST_P(LayerOpsTest, RmsNormInPlace) {
  std::mt19937_64 random(4);
  OwnedMatrix input(6, 100, random);
  const std::vector<float> weight = random_vector(100, random);
  RmsNormParams params{input.matrix, {weight.data(), 100}, 1e-5f, nullptr, input.matrix};
  const std::vector<double> expected = oracle::rms_norm(params);
  ops()->rms_norm(params);
  EXPECT_LT(worst_error(input.matrix, expected), 3e-6);
}

TEST_P(LayerOpsTest, Linear) {
  std::mt19937_64 random(5);
  const auto implementation = ops();
  for (const DType dtype : kAllTypes) {
    for (const auto& [out, in] : {std::pair{1, 8}, {7, 24}, {33, 100}, {96, 576}, {130, 321}, {50, 1536}}) {
      OwnedWeight weight(out, in, dtype, random);
      const std::vector<float> bias = random_vector(out, random);
      for (const int rows : {1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 33, 70, 130}) {
        OwnedMatrix input(rows, in, random);
        // Prompt chunks may round activations to the weights' bfloat16: then give them such activations.
        if (dtype == DType::kBFloat16 && rows > 16) round_to_bfloat16(input);
        OwnedMatrix output(rows, out, random);
        LinearParams params{input.matrix, weight.weight, {}, rows % 2 == 0, output.matrix};
        if (rows % 3 != 0) params.bias = {bias.data(), out};
        const std::vector<double> expected = oracle::linear(params);
        if (!params.accumulate) std::fill(output.data.begin(), output.data.end(), kNan);
        implementation->linear(params);
        ASSERT_LT(worst_error(output.matrix, expected), 2e-5)
            << to_string(dtype) << " " << out << " x " << in << ", rows " << rows;
      }
    }
  }
}

TEST_P(LayerOpsTest, LinearOfPromptChunksStaysWithinTheWeightsPrecision) {
  std::mt19937_64 random(15);
  OwnedWeight weight(64, 576, DType::kBFloat16, random);
  for (const int rows : {17, 100}) {
    OwnedMatrix input(rows, 576, random), output(rows, 64, random);
    const LinearParams params{input.matrix, weight.weight, {}, false, output.matrix};
    ops()->linear(params);
    // Rounding 576 activations of unit size to 8 bits: standard deviation 576^0.5 / 576^0.5 * 2^-9 / 3^0.5, times six.
    EXPECT_LT(worst_error(output.matrix, oracle::linear(params)), 7e-3);
  }
}

TEST_P(LayerOpsTest, LinearOfManyRows) {
  std::mt19937_64 random(16);
  OwnedWeight weight(30, 64, DType::kFloat32, random);
  const std::vector<float> bias = random_vector(30, random);
  for (const bool accumulate : {false, true}) {
    OwnedMatrix input(300, 64, random), output(300, 30, random);
    const LinearParams params{input.matrix, weight.weight, {bias.data(), 30}, accumulate, output.matrix};
    const std::vector<double> expected = oracle::linear(params);
    ops()->linear(params);
    EXPECT_LT(worst_error(output.matrix, expected), 2e-5);
  }
}

TEST_P(LayerOpsTest, LinearWritesNothingBetweenRows) {
  std::mt19937_64 random(6);
  OwnedWeight weight(37, 64, DType::kFloat32, random);
  for (const int rows : {3, 40}) {
    OwnedMatrix input(rows, 64, random);
    OwnedMatrix output(rows, 37, random);
    ops()->linear({input.matrix, weight.weight, {}, false, output.matrix});
    for (int row = 0; row < rows; ++row) {
      for (int i = 37; i < output.matrix.stride; ++i) EXPECT_TRUE(std::isnan(output.matrix.row<float>(row)[i]));
    }
  }
}

TEST_P(LayerOpsTest, LinearRefusesContradictions) {
  std::mt19937_64 random(7);
  OwnedWeight weight(8, 16, DType::kFloat32, random);
  OwnedMatrix input(2, 24, random);
  OwnedMatrix output(2, 8, random);
  EXPECT_THROW(ops()->linear({input.matrix, weight.weight, {}, false, output.matrix}), Error);
}

TEST_P(LayerOpsTest, SiluMul) {
  std::mt19937_64 random(8);
  for (const int size : {1, 8, 37, 1536}) {
    OwnedMatrix input(5, 2 * size, random);
    for (float& value : input.data) value *= 20;  // far into both tails
    OwnedMatrix output = OwnedMatrix::poisoned(5, size);
    const SiluMulParams params{input.matrix, output.matrix};
    ops()->silu_mul(params);
    EXPECT_LT(worst_error(output.matrix, oracle::silu_mul(params)), 2e-6);
  }
}

constexpr int kRopePages = 8;

struct RopeCase {
  bool norms = false;
  DType dtype = DType::kFloat32;
  int head_dim = 64;
  float attention_factor = 1;
  int rows = 5;
};

Matrix columns(Matrix matrix, int first, int count) {
  matrix.data = matrix.row<float>(0) + first;
  matrix.cols = count;
  return matrix;
}

/// Queries alone, then keys and values alone, where all of them were just computed together.
void expect_parts_equal_the_whole(Ops& ops, const RopeStoreParams& whole) {
  const int query_size = whole.num_heads * whole.kv.head_dim;
  OwnedMatrix query = OwnedMatrix::poisoned(whole.qkv.rows, query_size);
  RopeStoreParams only_query = whole;
  only_query.qkv = columns(whole.qkv, 0, query_size);
  only_query.slots = nullptr;
  only_query.query = query.matrix;
  ops.rope_store(only_query);
  for (int row = 0; row < whole.qkv.rows; ++row) {
    for (int i = 0; i < query_size; ++i) ASSERT_EQ(query.matrix.row<float>(row)[i], whole.query.row<float>(row)[i]);
  }

  const std::size_t bytes = kRopePages * static_cast<std::size_t>(whole.kv.page_stride) * size_of(whole.kv.dtype);
  std::vector<std::uint8_t> pool(bytes, 0xff);
  RopeStoreParams only_key_value = whole;
  only_key_value.num_heads = 0;
  only_key_value.qkv = columns(whole.qkv, query_size, whole.qkv.cols - query_size);
  only_key_value.kv.base = pool.data();
  only_key_value.query = {};
  ops.rope_store(only_key_value);
  EXPECT_EQ(std::memcmp(pool.data(), whole.kv.base, bytes), 0);
}

void run_rope_case(Ops& ops, const RopeCase& shape, std::mt19937_64& random) {
  const int num_heads = 6, kv_heads = 2, head_dim = shape.head_dim, page_size = 16, num_pages = kRopePages;
  OwnedMatrix qkv(shape.rows, (num_heads + 2 * kv_heads) * head_dim, random);
  OwnedMatrix query = OwnedMatrix::poisoned(shape.rows, num_heads * head_dim);
  const std::vector<float> q_norm = random_vector(head_dim, random), k_norm = random_vector(head_dim, random);
  std::vector<float> frequencies;
  for (int i = 0; i < head_dim / 2; ++i) frequencies.push_back(std::pow(10000.0f, -2.0f * i / head_dim));
  std::vector<std::int32_t> positions;
  std::vector<Slot> slots;
  for (int row = 0; row < shape.rows; ++row) {
    positions.push_back(static_cast<std::int32_t>(random() % 5000));
    slots.push_back((row * 37 + 5) % (page_size * num_pages));
  }
  KvView kv{nullptr, shape.dtype, 4, kv_heads, head_dim, 0, 0, 0, head_dim};
  kv.value_offset = page_size * head_dim;
  kv.head_stride = 2 * kv.value_offset;
  kv.page_stride = kv_heads * kv.head_stride;
  std::vector<std::uint8_t> pool(static_cast<std::size_t>(num_pages * kv.page_stride) * size_of(shape.dtype), 0xff);
  kv.base = pool.data();

  RopeStoreParams params;
  params.qkv = qkv.matrix;
  params.num_heads = num_heads;
  if (shape.norms) {
    params.q_norm = {q_norm.data(), head_dim};
    params.k_norm = {k_norm.data(), head_dim};
  }
  params.norm_eps = 1e-6f;
  params.positions = positions.data();
  params.inverse_frequencies = frequencies.data();
  params.attention_factor = shape.attention_factor;
  params.slots = slots.data();
  params.kv = kv;
  params.query = query.matrix;
  const oracle::RopeResult expected = oracle::rope_store(params);
  ops.rope_store(params);
  EXPECT_LT(worst_error(query.matrix, expected.query), 3e-6);
  expect_parts_equal_the_whole(ops, params);
  // One unit in the last place of the stored type beyond the rounding itself: the value before it is a float32.
  const double tolerance = shape.dtype == DType::kFloat32 ? 3e-6 : shape.dtype == DType::kFloat16 ? 6e-4 : 5e-3;
  for (int row = 0; row < shape.rows; ++row) {
    for (int head = 0; head < kv_heads; ++head) {
      for (int d = 0; d < head_dim; ++d) {
        const auto at = static_cast<std::size_t>((row * kv_heads + head) * head_dim + d);
        const Slot slot = slots[static_cast<std::size_t>(row)];
        const double key = oracle::read_element(kv.base, kv.dtype, oracle::kv_index(kv, slot, head, 0, d));
        const double value = oracle::read_element(kv.base, kv.dtype, oracle::kv_index(kv, slot, head, 1, d));
        ASSERT_LT(relative_error(key, expected.key[at]), tolerance);
        std::uint8_t rounded[4];
        oracle::write_element(rounded, kv.dtype, 0, expected.value[at]);
        ASSERT_EQ(value, oracle::read_element(rounded, kv.dtype, 0));
      }
    }
  }
}

TEST_P(LayerOpsTest, RopeStore) {
  std::mt19937_64 random(9);
  const auto implementation = ops();
  for (const DType dtype : kAllTypes) {
    for (const int head_dim : {8, 24, 64, 80, 128}) {
      for (const int rows : {1, 3, 40}) {
        SCOPED_TRACE(std::string(to_string(dtype)) + " head_dim " + std::to_string(head_dim));
        run_rope_case(*implementation, {false, dtype, head_dim, 1, rows}, random);
        run_rope_case(*implementation, {true, dtype, head_dim, 1.3f, rows}, random);
      }
    }
  }
}

TEST_P(LayerOpsTest, RopeStoreFollowsEveryArgumentFromCallToCall) {
  const auto implementation = ops();
  for (const RopeCase& shape :
       {RopeCase{}, RopeCase{false, DType::kFloat32, 64, 1.3f, 5}, RopeCase{},
        RopeCase{false, DType::kFloat32, 32, 1, 5}, RopeCase{false, DType::kFloat32, 32, 1, 3}}) {
    std::mt19937_64 random(17);  // equal positions in every call
    run_rope_case(*implementation, shape, random);
  }
}

TEST_P(LayerOpsTest, CopySlotsOfAllLayers) {
  constexpr int kLayers = 3, kPages = 4, kHeads = 2, kDim = 8, kPageSize = 4;
  for (const DType dtype : kAllTypes) {
    const std::int64_t page_stride = kHeads * 2 * kPageSize * kDim;
    std::vector<std::uint8_t> pool(static_cast<std::size_t>(kLayers * kPages * page_stride) * size_of(dtype));
    for (std::size_t i = 0; i < pool.size(); ++i) pool[i] = static_cast<std::uint8_t>(i * 31 + i / 251);
    std::vector<KvView> layers;
    for (int layer = 0; layer < kLayers; ++layer) {
      std::uint8_t* base = pool.data() + static_cast<std::size_t>(layer * kPages * page_stride) * size_of(dtype);
      layers.push_back({base, dtype, 2, kHeads, kDim, page_stride, 2 * kPageSize * kDim, kPageSize * kDim, kDim});
    }
    const std::vector<SlotMove> moves = {{0, 15}, {6, 1}, {6, 9}};
    std::vector<std::uint8_t> expected = pool;
    const std::size_t bytes = kDim * size_of(dtype);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const SlotMove& move : moves) {
        for (int part = 0; part < 2 * kHeads; ++part) {
          const auto address = [&](Slot slot) {
            return static_cast<std::size_t>(layer * kPages * page_stride + slot / kPageSize * page_stride +
                                            part * kPageSize * kDim + slot % kPageSize * kDim) *
                   size_of(dtype);
          };
          std::copy_n(pool.begin() + static_cast<std::ptrdiff_t>(address(move.source)), bytes,
                      expected.begin() + static_cast<std::ptrdiff_t>(address(move.destination)));
        }
      }
    }
    const CopySlotsParams params{layers.data(), kLayers, moves.data(), 3};
    ops()->copy_slots(params);
    EXPECT_EQ(pool, expected);
    ops()->copy_slots(params);  // idempotent
    EXPECT_EQ(pool, expected);
  }
}

FASTSPEC_FOR_ALL_OPS(LayerOpsTest);

}  // namespace
}  // namespace fastspec::test
