// What score_keys and score_pages do with logits, for any way of computing them: softmax over the whole list, pooling
// over rows, mean over heads. Included by the file of each path, which decides about floating-point contraction. Every
// sum has one order, whatever the threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "backend/cpu/half.h"
#include "backend/cpu/thread_pool.h"
#include "backend/params.h"

namespace fastspec::cpu {

constexpr int kScoredTile = 64;  // keys whose logits are computed together

/// The rows of one sequence that count, and its packed rows: named head x row, rows of a head one after another.
struct ScoredRows {
  int sequence = 0;
  std::int32_t length = 0;     // keys
  std::vector<int> rows;       // of the query matrix
  std::vector<float> weights;  // [rows] above 0
  std::vector<float> logits;   // [packed rows, length], then probabilities
  int num_packed = 0;

  void collect(const ScoreKeysParams& params, int index) {
    sequence = index;
    length = params.lists[index].length;
    rows.clear();
    weights.clear();
    for (std::int32_t at = params.row_offsets[index]; at < params.row_offsets[index + 1]; ++at) {
      const float weight = params.row_weights != nullptr ? params.row_weights[at] : 1.0f;
      if (!(weight > 0)) continue;
      rows.push_back(params.rows != nullptr ? params.rows[at] : at);
      weights.push_back(weight);
    }
    num_packed = static_cast<int>(rows.size()) * params.num_scored_heads;
    const std::size_t size = static_cast<std::size_t>(num_packed) * static_cast<std::size_t>(length);
    if (logits.size() < size) logits.resize(size);
  }
  float* packed_row(int packed) { return logits.data() + std::int64_t{packed} * length; }
  /// Query of a packed row, not scaled.
  const float* query(const ScoreKeysParams& params, int packed) const {
    const auto num_rows = static_cast<int>(rows.size());
    const int head = params.heads[packed / num_rows];
    return params.query.row<const float>(rows[static_cast<std::size_t>(packed % num_rows)]) +
           std::int64_t{head} * params.kv.head_dim;
  }
  /// K/V head of a packed row.
  int kv_head(const ScoreKeysParams& params, int packed) const {
    const int group_size = params.num_heads / params.kv.num_kv_heads;
    return params.heads[packed / static_cast<int>(rows.size())] / group_size;
  }
};

/// Logits of one packed row become probabilities.
template <typename Path>
void soften_row(float* logits, std::int32_t length) {
  const float top = *std::max_element(logits, logits + length);
  for (std::int32_t i = 0; i < length; ++i) logits[i] = std::exp(logits[i] - top);
  const float scale = 1.0f / Path::sum(logits, length);
  for (std::int32_t i = 0; i < length; ++i) logits[i] *= scale;
}

/// Adds up the probabilities of one head at positions [begin, end).
template <typename Path>
void pool_head(ScoredRows& scored, RowPooling pooling, int head, std::int32_t begin, std::int32_t end, float* sums) {
  const auto num_rows = static_cast<int>(scored.rows.size());
  float pooled[kScoredTile];
  std::fill_n(pooled, end - begin, 0.0f);
  for (int row = 0; row < num_rows; ++row) {
    const float weight = scored.weights[static_cast<std::size_t>(row)];
    const float* values = scored.packed_row(head * num_rows + row) + begin;
    for (std::int32_t i = 0; i < end - begin; ++i) {
      const float value = weight * values[i];
      pooled[i] = pooling == RowPooling::kMean ? pooled[i] + value : std::max(pooled[i], value);
    }
  }
  for (std::int32_t i = 0; i < end - begin; ++i) sums[i] += pooled[i];
}

/// @tparam Path has sum(values, size).
/// @param prepare (scored): before the logits of a sequence.
/// @param tile_logits (scored, first, num_keys, thread): writes scaled logits of keys [first, first + num_keys), at
/// most
///        kScoredTile, into all packed rows.
template <typename Path, typename Prepare, typename TileLogits>
void score_sequences(const ScoreKeysParams& params, ThreadPool& pool, ScoredRows& scored, const Prepare& prepare,
                     const TileLogits& tile_logits) {
  for (int s = 0; s < params.num_sequences; ++s) {
    scored.collect(params, s);
    const int num_tiles = (scored.length + kScoredTile - 1) / kScoredTile;
    const auto for_tiles = [&](const auto& work) {
      pool.parallel_for(num_tiles, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
        for (std::int64_t tile = begin; tile < end; ++tile) {
          const auto first = static_cast<std::int32_t>(tile) * kScoredTile;
          work(first, std::min(kScoredTile, scored.length - first), thread);
        }
      });
    };
    float total = params.pooling == RowPooling::kMean ? 0.0f : 1.0f;
    if (scored.num_packed > 0 && num_tiles > 0) {
      prepare(scored);
      for_tiles([&](std::int32_t first, int num_keys, int thread) { tile_logits(scored, first, num_keys, thread); });
      pool.parallel_for(scored.num_packed, 1, [&](std::int64_t begin, std::int64_t end, int) {
        for (auto p = static_cast<int>(begin); p < end; ++p) soften_row<Path>(scored.packed_row(p), scored.length);
      });
      for (std::size_t row = 0; params.pooling == RowPooling::kMean && row < scored.weights.size(); ++row) {
        total += scored.weights[row];
      }
    }
    const float factor =
        scored.num_packed > 0 ? params.weight / (total * static_cast<float>(params.num_scored_heads)) : 0.0f;
    for_tiles([&](std::int32_t first, int num_keys, int) {
      float sums[kScoredTile] = {};
      for (int head = 0; head < params.num_scored_heads; ++head) {
        pool_head<Path>(scored, params.pooling, head, first, first + num_keys, sums);
      }
      float* scores = params.scores + s * params.score_stride + first;
      for (int i = 0; i < num_keys; ++i) scores[i] = sums[i] * factor + (params.accumulate ? scores[i] : 0.0f);
    });
  }
}

/// Calls visit(page, first, end) for the stretches of keys [first, end) of a page list that lie in one page.
template <typename Visit>
void visit_pages(const ScoreKeysParams& params, int sequence, std::int32_t first, std::int32_t end,
                 const Visit& visit) {
  const KvList& list = params.lists[sequence];
  while (first < end) {
    const std::int32_t index = first >> params.kv.page_shift;
    const std::int32_t next = std::min(end, (index + 1) << params.kv.page_shift);
    visit(params.entries[list.offset + index], first, next);
    first = next;
  }
}

/// score_pages: the bound of a page is the logit of its positions.
/// @tparam Path has sum(values, size) and bound(query, low, high, size).
template <typename Path>
void score_pages_with(const ScorePagesParams& params, ThreadPool& pool, ScoredRows& scored) {
  const ScoreKeysParams& scoring = params.scoring;
  const KvView& kv = scoring.kv;
  std::vector<std::vector<float>> limits(static_cast<std::size_t>(pool.num_threads()),
                                         std::vector<float>(2 * static_cast<std::size_t>(kv.head_dim)));
  const auto page_logits = [&](Slot page, std::int32_t begin, std::int32_t end, float* low) {
    int loaded = -1;
    for (int p = 0; p < scored.num_packed; ++p) {
      const int head = scored.kv_head(scoring, p);
      if (head != loaded) {
        const std::int64_t at = (page * kv.num_kv_heads + head) * 2 * kv.head_dim;
        dispatch_dtype(kv.dtype, [&]<typename T>(T) {
          for (int d = 0; d < 2 * kv.head_dim; ++d) low[d] = to_float(static_cast<const T*>(params.bounds)[at + d]);
        });
        loaded = head;
      }
      const float bound = Path::bound(scored.query(scoring, p), low, low + kv.head_dim, kv.head_dim) * scoring.scale;
      std::fill(scored.packed_row(p) + begin, scored.packed_row(p) + end, bound);
    }
  };
  score_sequences<Path>(
      scoring, pool, scored, [](ScoredRows&) {},
      [&](ScoredRows&, std::int32_t first, int num_keys, int thread) {
        visit_pages(scoring, scored.sequence, first, first + num_keys,
                    [&](Slot page, std::int32_t begin, std::int32_t end) {
                      page_logits(page, begin, end, limits[static_cast<std::size_t>(thread)].data());
                    });
      });
}

}  // namespace fastspec::cpu
