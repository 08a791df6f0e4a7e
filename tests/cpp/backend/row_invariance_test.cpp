// The promise of the reference backend: a row's result is bitwise independent of the other rows, of chunking, and of
// where the cached prefix ends and the new rows begin; a tree's row equals the same path as a chain.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

#include "backend/cpu/reference_ops.h"
#include "support/oracle.h"

namespace fastspec::test {
namespace {

constexpr int kHeads = 6, kKvHeads = 2, kDim = 40, kPageShift = 2, kPageSize = 1 << kPageShift, kPages = 400;

/// q, k and v of one sequence by position.
struct Sequence {
  Sequence(int length, std::mt19937_64& random) : size(length) {
    std::normal_distribution<float> normal;
    for (int i = 0; i < length * kHeads * kDim; ++i) query.push_back(normal(random));
    for (int i = 0; i < 2 * length * kKvHeads * kDim; ++i) kv.push_back(normal(random));
  }
  int size;
  std::vector<float> query;  // [length, kHeads * kDim]
  std::vector<float> kv;     // [length, kKvHeads, 2, kDim]
};

/// A pass under construction: rows of several sequences and a pool with their keys in random places.
class Pass {
 public:
  Pass(DType dtype, std::mt19937_64& random) : dtype_(dtype), random_(random), pages_(kPages) {
    std::iota(pages_.begin(), pages_.end(), Slot{0});
    std::shuffle(pages_.begin(), pages_.end(), random_);
    kv_ = {nullptr,          dtype, kPageShift, kKvHeads, kDim, kKvHeads * 2 * kPageSize * kDim, 2 * kPageSize * kDim,
           kPageSize * kDim, kDim};
    pool_.assign(static_cast<std::size_t>(kPages * kv_.page_stride) * size_of(dtype), 0xff);
    kv_.base = pool_.data();
    offsets_.push_back(0);
  }

  /// Positions [0, cached) of `sequence` are cached; `rows` follow as new rows under `mask`.
  void add(const Sequence& sequence, int cached, const std::vector<int>& rows, NewMask mask,
           const std::vector<std::uint64_t>& bits) {
    lists_.push_back({static_cast<std::int64_t>(entries_.size()), cached, true});
    for (int position = 0; position < cached; ++position) {
      if (position % kPageSize == 0) entries_.push_back(take_page());
      store(sequence, position, entries_.back() * kPageSize + position % kPageSize);
    }
    for (const int position : rows) {
      slots_.push_back(take_page() * kPageSize);
      store(sequence, position, slots_.back());
      positions_.push_back(position);
      const float* source = sequence.query.data() + position * kHeads * kDim;
      query_.insert(query_.end(), source, source + kHeads * kDim);
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::uint64_t words[kMaskWords] = {bits.empty() ? 0 : bits[i], 0, 0, 0};
      bits_.insert(bits_.end(), words, words + kMaskWords);
    }
    masks_.push_back(mask);
    offsets_.push_back(static_cast<std::int32_t>(slots_.size()));
  }

  /// Outputs of all rows, [rows, kHeads * kDim].
  std::vector<float> run(int window, int sinks, int num_threads) {
    const int rows = static_cast<int>(slots_.size());
    std::vector<float> output(query_.size());
    AttentionParams params;
    params.query = {query_.data(), DType::kFloat32, rows, kHeads * kDim, kHeads * kDim};
    params.output = {output.data(), DType::kFloat32, rows, kHeads * kDim, kHeads * kDim};
    params.num_heads = kHeads;
    params.scale = 0.2f;
    params.num_sequences = static_cast<int>(lists_.size());
    params.row_offsets = offsets_.data();
    params.lists = lists_.data();
    params.entries = entries_.data();
    params.masks = masks_.data();
    params.mask_bits = bits_.data();
    params.positions = positions_.data();
    params.slots = slots_.data();
    params.window = window;
    params.sinks = sinks;
    params.kv = kv_;
    cpu::ReferenceOps(num_threads).attention(params);
    return output;
  }

 private:
  Slot take_page() {
    const Slot page = pages_.back();
    pages_.pop_back();
    return page;
  }
  void store(const Sequence& sequence, int position, Slot slot) {
    const float* source = sequence.kv.data() + position * kKvHeads * 2 * kDim;
    for (int head = 0; head < kKvHeads; ++head) {
      for (int which = 0; which < 2; ++which) {
        for (int d = 0; d < kDim; ++d) {
          oracle::write_element(kv_.base, dtype_, oracle::kv_index(kv_, slot, head, which, d),
                                source[(head * 2 + which) * kDim + d]);
        }
      }
    }
  }

  DType dtype_;
  std::mt19937_64& random_;
  std::vector<Slot> pages_, entries_, slots_;
  KvView kv_;
  std::vector<std::uint8_t> pool_;
  std::vector<float> query_;
  std::vector<std::int32_t> offsets_, positions_;
  std::vector<KvList> lists_;
  std::vector<NewMask> masks_;
  std::vector<std::uint64_t> bits_;
};

std::vector<int> range(int begin, int end) {
  std::vector<int> values(static_cast<std::size_t>(end - begin));
  std::iota(values.begin(), values.end(), begin);
  return values;
}

::testing::AssertionResult same_bits(const float* a, const float* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (std::memcmp(a + i, b + i, sizeof(float)) != 0) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

constexpr std::size_t kRow = kHeads * kDim;

TEST(RowInvarianceTest, AttentionIgnoresChunkingAndBatch) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 24; ++round) {
    const DType dtype = round % 3 == 0 ? DType::kBFloat16 : round % 3 == 1 ? DType::kFloat32 : DType::kFloat16;
    const int window = round % 2 == 0 ? 0 : 5 + round;
    const int sinks = round % 4 == 1 ? 3 : 0;
    const Sequence sequence(90, random), other(30, random);
    Pass whole(dtype, random);
    whole.add(sequence, 0, range(0, sequence.size), NewMask::kCausal, {});
    const std::vector<float> expected = whole.run(window, sinks, 1);

    for (int begin = 0; begin < sequence.size;) {
      const int end = std::min(sequence.size, begin + 1 + static_cast<int>(random() % 20));
      Pass chunk(dtype, random);
      const bool company = random() % 2 == 0;
      if (company) chunk.add(other, 7, range(7, 18), NewMask::kCausal, {});
      chunk.add(sequence, begin, range(begin, end), NewMask::kCausal, {});
      if (company) chunk.add(other, 20, range(20, 21), NewMask::kNone, {});
      const std::vector<float> output = chunk.run(window, sinks, 2);
      const std::size_t first = company ? 11 * kRow : 0;
      ASSERT_TRUE(same_bits(output.data() + first, expected.data() + static_cast<std::size_t>(begin) * kRow,
                            static_cast<std::size_t>(end - begin) * kRow))
          << "round " << round << ", rows " << begin << " to " << end;
      begin = end;
    }
  }
}

TEST(RowInvarianceTest, AttentionOfATreeRowEqualsItsPathAsAChain) {
  std::mt19937_64 random(12);
  for (int round = 0; round < 40; ++round) {
    const DType dtype = round % 2 == 0 ? DType::kBFloat16 : DType::kFloat32;
    const int cached = static_cast<int>(random() % 60);
    const int window = round % 4 == 3 ? 10 : 0;
    const Sequence sequence(cached + 8, random);
    Pass chain(dtype, random);
    chain.add(sequence, cached, range(cached, cached + 8), NewMask::kCausal, {});
    const std::vector<float> expected = chain.run(window, 0, 1);

    // The true path lies among decoys: rows at random positions that only their own masks see.
    std::vector<int> rows;
    std::vector<std::uint64_t> bits;
    std::vector<std::size_t> true_rows;
    std::uint64_t path = 0;
    for (int next = 0; next < 8;) {
      const std::uint64_t self = std::uint64_t{1} << rows.size();
      if (random() % 2 == 0 && rows.size() < 50) {
        rows.push_back(cached + static_cast<int>(random() % 8));
        bits.push_back(path | self);
      } else {
        path |= self;
        true_rows.push_back(rows.size());
        rows.push_back(cached + next++);
        bits.push_back(path);
      }
    }
    Pass tree(dtype, random);
    tree.add(sequence, cached, rows, NewMask::kAncestor, bits);
    const std::vector<float> output = tree.run(window, 0, 2);
    for (std::size_t i = 0; i < true_rows.size(); ++i) {
      ASSERT_TRUE(same_bits(output.data() + true_rows[i] * kRow, expected.data() + i * kRow, kRow)) << round;
    }
  }
}

TEST(RowInvarianceTest, LayersIgnoreOtherRows) {
  std::mt19937_64 random(13);
  std::normal_distribution<float> normal;
  constexpr int kRows = 37, kIn = 100, kOut = 46;
  std::vector<float> input(kRows * kIn), weight(kOut * kIn), norm(kIn);
  for (std::vector<float>* values : {&input, &weight, &norm}) {
    for (float& value : *values) value = normal(random);
  }
  for (const int threads : {1, 2, 3}) {
    cpu::ReferenceOps ops(threads);
    std::vector<float> linear(kRows * kOut), normed(kRows * kIn), gated(kRows * kIn / 2);
    const auto run = [&](int first, int rows) {
      const Matrix in{input.data() + first * kIn, DType::kFloat32, rows, kIn, kIn};
      ops.linear({in,
                  {weight.data(), DType::kFloat32, kOut, kIn},
                  {},
                  false,
                  {linear.data() + first * kOut, DType::kFloat32, rows, kOut, kOut}});
      ops.rms_norm(
          {in, {norm.data(), kIn}, 1e-5f, nullptr, {normed.data() + first * kIn, DType::kFloat32, rows, kIn, kIn}});
      ops.silu_mul({in, {gated.data() + first * kIn / 2, DType::kFloat32, rows, kIn / 2, kIn / 2}});
    };
    run(0, kRows);
    const std::vector<float> linear_all = linear, normed_all = normed, gated_all = gated;
    for (int row = 0; row < kRows; ++row) run(row, 1);
    EXPECT_TRUE(same_bits(linear.data(), linear_all.data(), linear.size()));
    EXPECT_TRUE(same_bits(normed.data(), normed_all.data(), normed.size()));
    EXPECT_TRUE(same_bits(gated.data(), gated_all.data(), gated.size()));
  }
}

}  // namespace
}  // namespace fastspec::test
