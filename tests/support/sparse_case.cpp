// See sparse_case.h.
#include "support/sparse_case.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/kv_layout.h"
#include "support/oracle.h"

namespace fastspec::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int uniform(std::mt19937_64& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

bool one_in(std::mt19937_64& random, int count) {
  return uniform(random, 1, count) == 1;
}

int pages_of(int length, int page_shift) {
  return (length + (1 << page_shift) - 1) >> page_shift;
}

}  // namespace

ScoreShape random_score_shape(std::mt19937_64& random) {
  constexpr int kHeadDims[] = {8, 16, 40, 64, 72, 96, 128, 192};
  constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  ScoreShape shape;
  shape.num_kv_heads = uniform(random, 1, 4);
  shape.group_size = uniform(random, 1, 7);
  shape.head_dim = kHeadDims[uniform(random, 0, 7)];
  shape.page_shift = uniform(random, 0, 6);
  shape.dtype = kDTypes[uniform(random, 0, 2)];
  shape.heads.clear();
  for (int head = 0; head < shape.num_kv_heads * shape.group_size; ++head) {
    if (one_in(random, 3)) shape.heads.push_back(head);
  }
  if (shape.heads.empty()) shape.heads.push_back(shape.num_kv_heads * shape.group_size - 1);
  shape.pooling = one_in(random, 3) ? RowPooling::kMax : RowPooling::kMean;
  shape.weighted = one_in(random, 2);
  shape.indirect = one_in(random, 2);
  shape.accumulate = one_in(random, 3);
  shape.share_prefix = one_in(random, 3);
  for (int s = uniform(random, 1, 4); s > 0; --s) {
    const int rows = one_in(random, 6) ? 0 : uniform(random, 1, one_in(random, 5) ? 40 : 6);
    const int length = one_in(random, 6) ? 0 : uniform(random, 1, one_in(random, 4) ? 900 : 90);
    shape.sequences.push_back({rows, length});
  }
  return shape;
}

ScoreCase::ScoreCase(const ScoreShape& shape, std::uint64_t seed) : heads(shape.heads), random_(seed) {
  lay_out_pool(shape);
  add_sequences(shape);
  const int num_heads = shape.num_kv_heads * shape.group_size;
  const int width = num_heads * shape.head_dim;
  const int stride = width + 16;
  const int num_rows = std::max(1, row_offsets.back());
  query.assign(static_cast<std::size_t>(num_rows * stride) * size_of(shape.query_dtype), 0xff);  // NaN in all types
  std::normal_distribution<double> normal;
  for (int row = 0; row < num_rows; ++row) {
    for (int i = 0; i < width; ++i) {
      oracle::write_element(query.data(), shape.query_dtype, std::int64_t{row} * stride + i, normal(random_));
    }
  }
  params.query = {query.data(), shape.query_dtype, num_rows, width, stride};
  params.num_heads = num_heads;
  params.heads = heads.data();
  params.num_scored_heads = static_cast<int>(heads.size());
  params.scale = 1.5f / std::sqrt(static_cast<float>(shape.head_dim));
  params.num_sequences = static_cast<int>(lists.size());
  params.row_offsets = row_offsets.data();
  params.rows = shape.indirect ? rows.data() : nullptr;
  params.row_weights = shape.weighted ? row_weights.data() : nullptr;
  params.pooling = shape.pooling;
  params.lists = lists.data();
  params.entries = entries.data();
  for (const ScoredSequence& sequence : shape.sequences) {
    params.max_rows_per_sequence = std::max(params.max_rows_per_sequence, sequence.rows);
    params.max_keys = std::max(params.max_keys, sequence.length);
  }
  params.max_keys += 40;  // a bound, not the longest
  params.weight = std::uniform_real_distribution<float>(0.1f, 2.0f)(random_);
  params.accumulate = shape.accumulate;
  params.score_stride = params.max_keys + 8;
  reset_scores();
}

void ScoreCase::lay_out_pool(const ScoreShape& shape) {
  num_pages = 2;
  for (const ScoredSequence& sequence : shape.sequences) num_pages += pages_of(sequence.length, shape.page_shift);
  params.kv = {.dtype = shape.dtype,
               .page_shift = shape.page_shift,
               .num_kv_heads = shape.num_kv_heads,
               .head_dim = shape.head_dim};
  pool = make_gapped_pool(params.kv, num_pages);
  bounds.assign(static_cast<std::size_t>(num_pages * shape.num_kv_heads * 2 * shape.head_dim) * size_of(shape.dtype),
                0xff);
}

void ScoreCase::add_sequences(const ScoreShape& shape) {
  const KvView& kv = params.kv;
  const int page_size = 1 << shape.page_shift;
  std::vector<PageId> free_pages;
  for (int page = 0; page < num_pages; ++page) free_pages.push_back(page);
  std::shuffle(free_pages.begin(), free_pages.end(), random_);
  touched.push_back({free_pages.back(), 0});
  free_pages.pop_back();
  std::normal_distribution<double> normal;
  const auto fill = [&](PageId page, int num_slots) {
    for (Slot slot = Slot{page} * page_size; slot < Slot{page} * page_size + num_slots; ++slot) {
      for (int head = 0; head < kv.num_kv_heads; ++head) {
        for (int d = 0; d < kv.head_dim; ++d) {
          oracle::write_element(kv.base, kv.dtype, oracle::kv_index(kv, slot, head, 0, d), normal(random_));
        }
      }
    }
    touched.push_back({page, num_slots});
  };
  row_offsets.push_back(0);
  for (const ScoredSequence& sequence : shape.sequences) {
    std::vector<Slot> pages;
    for (int first = 0; first < sequence.length; first += page_size) {
      // Only whole pages are shared.
      const bool shared = shape.share_prefix && !lists.empty() && first + page_size <= lists[0].length &&
                          first + page_size <= sequence.length;
      if (shared) {
        pages.push_back(
            entries[static_cast<std::size_t>(lists[0].offset + (shape.slot_lists ? first : first / page_size))] /
            (shape.slot_lists ? page_size : 1));
        continue;
      }
      fill(free_pages.back(), std::min(page_size, sequence.length - first));
      pages.push_back(free_pages.back());
      free_pages.pop_back();
    }
    lists.push_back({static_cast<std::int64_t>(entries.size()), sequence.length, !shape.slot_lists});
    for (int key = 0; shape.slot_lists && key < sequence.length; ++key) {
      entries.push_back(pages[static_cast<std::size_t>(key / page_size)] * page_size + key % page_size);
    }
    if (!shape.slot_lists) entries.insert(entries.end(), pages.begin(), pages.end());
    row_offsets.push_back(row_offsets.back() + sequence.rows);
  }
  for (int row = 0; row < row_offsets.back(); ++row) {
    rows.push_back(uniform(random_, 0, row_offsets.back() - 1));
    row_weights.push_back(one_in(random_, 5) ? 0.0f : std::uniform_real_distribution<float>(0.0f, 1.0f)(random_));
  }
}

void ScoreCase::reset_scores() {
  scores.assign(static_cast<std::size_t>(params.num_sequences * params.score_stride), kUntouched);
  for (int s = 0; s < params.num_sequences; ++s) {
    float* own = scores.data() + s * params.score_stride;
    for (int key = 0; key < lists[static_cast<std::size_t>(s)].length; ++key) {
      own[key] = params.accumulate ? std::uniform_real_distribution<float>()(random_) : kNan;
    }
  }
  params.scores = scores.data();
}

PageBoundsParams ScoreCase::bounds_params() {
  return {params.kv, touched.data(), static_cast<int>(touched.size()), bounds.data()};
}

SelectShape random_select_shape(std::mt19937_64& random, int longest) {
  SelectShape shape;
  for (int s = uniform(random, 1, 4); s > 0; --s) {
    shape.lengths.push_back(one_in(random, 8) ? 0 : uniform(random, 1, longest));
  }
  const int length = *std::max_element(shape.lengths.begin(), shape.lengths.end());
  shape.page_shift = uniform(random, 0, 6);
  shape.budget = one_in(random, 5) && length > 1 ? length - 1 : uniform(random, 1, std::max(1, longest / 4));
  shape.sinks = uniform(random, 0, std::min(8, shape.budget));
  shape.recent = uniform(random, 0, std::min(20, shape.budget - shape.sinks));
  const int room = shape.budget - shape.sinks - shape.recent;
  shape.lookahead_slots = one_in(random, 4) ? 0 : one_in(random, 4) ? room : uniform(random, 0, room);
  shape.with_lookahead = !one_in(random, 5);
  shape.slot_lists = one_in(random, 5);
  shape.levels = one_in(random, 2) ? uniform(random, 1, 6) : 0;
  shape.zeros = one_in(random, 3) ? 0.97 : one_in(random, 3) ? 0.3 : 0;
  shape.bad_scores = one_in(random, 5);
  return shape;
}

std::vector<float> SelectCase::random_scores(const SelectShape& shape, std::int64_t stride) {
  std::vector<float> scores(static_cast<std::size_t>(stride * static_cast<std::int64_t>(shape.lengths.size())), kNan);
  const bool all_zero = one_in(random_, 8);
  for (std::size_t s = 0; s < shape.lengths.size(); ++s) {
    for (int i = 0; i < shape.lengths[s]; ++i) {
      // As attention weights are: over many orders of magnitude, down to denormal numbers.
      float score = static_cast<float>(std::exp(std::normal_distribution<double>(-9.0, 12.0)(random_)));
      if (shape.levels > 0) score = static_cast<float>(uniform(random_, 0, shape.levels)) * 0x1p-20f;
      if (all_zero || std::uniform_real_distribution<double>()(random_) < shape.zeros) score = 0;
      if (shape.bad_scores && one_in(random_, 10)) score = one_in(random_, 2) ? kNan : -score;
      scores[s * static_cast<std::size_t>(stride) + static_cast<std::size_t>(i)] = score;
    }
  }
  return scores;
}

SelectCase::SelectCase(const SelectShape& shape, std::uint64_t seed) : random_(seed) {
  const int page_size = 1 << shape.page_shift;
  Slot next_page = 3;
  for (const int length : shape.lengths) {
    lists.push_back({static_cast<std::int64_t>(entries.size()), length, !shape.slot_lists});
    const int num_pages = pages_of(length, shape.page_shift);
    std::vector<Slot> pages;
    for (int i = 0; i < num_pages; ++i) pages.push_back(next_page++);
    std::shuffle(pages.begin(), pages.end(), random_);
    for (int key = 0; shape.slot_lists && key < length; ++key) {
      entries.push_back(pages[static_cast<std::size_t>(key / page_size)] * page_size + key % page_size);
    }
    if (!shape.slot_lists) entries.insert(entries.end(), pages.begin(), pages.end());
    params.max_keys = std::max(params.max_keys, length);
  }
  params.num_sequences = static_cast<int>(lists.size());
  params.lists = lists.data();
  params.entries = entries.data();
  params.page_shift = shape.page_shift;
  params.max_keys += 5;
  params.score_stride = params.max_keys + 3;
  history = random_scores(shape, params.score_stride);
  lookahead = random_scores(shape, params.score_stride);
  params.history = history.data();
  params.lookahead = shape.with_lookahead ? lookahead.data() : nullptr;
  params.sinks = shape.sinks;
  params.recent = shape.recent;
  params.lookahead_slots = shape.lookahead_slots;
  params.budget = shape.budget;
  for (std::size_t s = 0; s < lists.size(); ++s) {
    offsets.push_back(static_cast<std::int64_t>((lists.size() - 1 - s)) * (shape.budget + 3) + 2);
  }
  slots.assign(lists.size() * static_cast<std::size_t>(shape.budget + 3) + 2, kNoSlot);
  params.slots = slots.data();
  params.offsets = offsets.data();
  mass.assign(2 * lists.size(), kNan);
  params.mass = mass.data();
}

}  // namespace fastspec::testing
