// See attention_case.h.
#include "cpp/backend/attention_case.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/kv_layout.h"
#include "support/oracle.h"

namespace fastspec::test {
namespace {

int uniform(std::mt19937_64& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

}  // namespace

AttentionCase::AttentionCase(const AttentionShape& shape, std::uint64_t seed) : random_(seed) {
  const int page_size = 1 << shape.page_shift;
  int rows = 0;
  int num_pages = 0;
  for (const SequenceShape& sequence : shape.sequences) {
    rows += sequence.rows;
    num_pages += (sequence.cached + page_size - 1) / page_size + (sequence.rows + page_size - 1) / page_size;
    if (!sequence.pages) num_pages += 2;
  }
  num_pages += 2;

  params.kv = {.dtype = shape.kv_dtype,
               .page_shift = shape.page_shift,
               .num_kv_heads = shape.num_kv_heads,
               .head_dim = shape.head_dim};
  pool = testing::make_gapped_pool(params.kv, num_pages);

  std::vector<Slot> free_pages;
  for (int page = 0; page < num_pages; ++page) free_pages.push_back(page);
  std::shuffle(free_pages.begin(), free_pages.end(), random_);

  row_offsets.push_back(0);
  for (const SequenceShape& sequence : shape.sequences) add_sequence(sequence, shape.page_shift, free_pages);

  params.num_heads = shape.num_kv_heads * shape.group_size;
  const int width = params.num_heads * shape.head_dim;
  const int stride = width + 16;
  std::normal_distribution<float> normal;
  query.resize(static_cast<std::size_t>(rows * stride), std::numeric_limits<float>::quiet_NaN());
  for (int row = 0; row < rows; ++row) {
    for (int i = 0; i < width; ++i) query[static_cast<std::size_t>(row * stride + i)] = normal(random_);
  }
  output.resize(query.size());
  lse.resize(static_cast<std::size_t>(rows * params.num_heads));
  poison_outputs();
  params.query = {query.data(), DType::kFloat32, rows, width, stride};
  params.output = {output.data(), DType::kFloat32, rows, width, stride};
  params.lse = lse.data();
  params.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)) * 1.5f;
  params.num_sequences = static_cast<int>(shape.sequences.size());
  params.row_offsets = row_offsets.data();
  params.lists = lists.data();
  params.entries = entries.data();
  params.masks = masks.data();
  params.mask_bits = mask_bits.data();
  params.positions = positions.data();
  params.slots = slots.data();
  params.window = shape.window;
  params.sinks = shape.sinks;
}

void AttentionCase::poison_outputs() {
  std::fill(output.begin(), output.end(), std::numeric_limits<float>::quiet_NaN());
  std::fill(lse.begin(), lse.end(), std::numeric_limits<float>::quiet_NaN());
}

void AttentionCase::fill_slot(Slot slot) {
  std::normal_distribution<double> normal;
  const KvView& kv = params.kv;
  for (int head = 0; head < kv.num_kv_heads; ++head) {
    for (int which = 0; which < 2; ++which) {
      for (int d = 0; d < kv.head_dim; ++d) {
        oracle::write_element(kv.base, kv.dtype, oracle::kv_index(kv, slot, head, which, d), normal(random_));
      }
    }
  }
}

void AttentionCase::add_sequence(const SequenceShape& sequence, int page_shift, std::vector<Slot>& free_pages) {
  const int page_size = 1 << page_shift;
  const auto take_page = [&] {
    const Slot page = free_pages.back();
    free_pages.pop_back();
    return page;
  };
  lists.push_back({static_cast<std::int64_t>(entries.size()), sequence.cached, sequence.pages});
  if (sequence.pages) {
    for (int first = 0; first < sequence.cached; first += page_size) {
      const Slot page = take_page();
      entries.push_back(page);
      for (int i = first; i < std::min(sequence.cached, first + page_size); ++i) {
        fill_slot(page * page_size + i - first);
      }
    }
  } else {
    std::vector<Slot> owned;
    for (int page = 0; page < (sequence.cached + page_size - 1) / page_size + 2; ++page) {
      const Slot base = take_page() * page_size;
      for (int i = 0; i < page_size; ++i) owned.push_back(base + i);
    }
    std::shuffle(owned.begin(), owned.end(), random_);
    owned.resize(static_cast<std::size_t>(sequence.cached));
    for (const Slot slot : owned) {
      fill_slot(slot);
      entries.push_back(slot);
    }
  }

  const int first_row = static_cast<int>(slots.size());
  masks.push_back(sequence.mask);
  Slot page = 0;
  for (int row = 0; row < sequence.rows; ++row) {
    if (row % page_size == 0) page = take_page();
    slots.push_back(page * page_size + (page_size - 1 - row % page_size));  // not in order
    fill_slot(slots.back());
    const int start = sequence.cached + sequence.sparse_gap;
    std::uint64_t bits[kMaskWords] = {};
    int parent = -1;
    if (sequence.mask == NewMask::kAncestor) {
      parent = row == 0 ? -1 : uniform(random_, std::max(0, row - 5), row - 1);
      for (int word = 0; parent >= 0 && word < kMaskWords; ++word) {
        bits[word] = mask_bits[static_cast<std::size_t>((first_row + parent) * kMaskWords + word)];
      }
      bits[row / 64] |= std::uint64_t{1} << (row % 64);
      positions.push_back(parent < 0 ? start : positions[static_cast<std::size_t>(first_row + parent)] + 1);
    } else {
      positions.push_back(start + row);
    }
    parents.push_back(parent);
    mask_bits.insert(mask_bits.end(), bits, bits + kMaskWords);
  }
  row_offsets.push_back(static_cast<std::int32_t>(slots.size()));
}

AttentionShape random_shape(std::mt19937_64& random) {
  constexpr int kHeadDims[] = {8, 16, 40, 64, 72, 128};
  constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  AttentionShape shape;
  shape.num_kv_heads = uniform(random, 1, 3);
  shape.group_size = uniform(random, 1, 7);
  shape.head_dim = kHeadDims[uniform(random, 0, 5)];
  shape.page_shift = uniform(random, 0, 5);
  shape.kv_dtype = kDTypes[uniform(random, 0, 2)];
  if (uniform(random, 0, 2) == 0) {
    shape.window = uniform(random, 1, 40);
    shape.sinks = uniform(random, 0, 1) * uniform(random, 0, 6);
  }
  for (int s = uniform(random, 1, 4); s > 0; --s) {
    SequenceShape sequence;
    sequence.mask = static_cast<NewMask>(uniform(random, 0, 3));
    sequence.rows = uniform(random, 0, 9) == 0 ? 0 : uniform(random, 1, uniform(random, 0, 4) == 0 ? 140 : 12);
    sequence.cached = uniform(random, 0, 4) == 0 ? 0 : uniform(random, 1, uniform(random, 0, 3) == 0 ? 700 : 90);
    sequence.pages = uniform(random, 0, 2) != 0;
    if (!sequence.pages) sequence.sparse_gap = uniform(random, 0, 50);
    shape.sequences.push_back(sequence);
  }
  return shape;
}

}  // namespace fastspec::test
