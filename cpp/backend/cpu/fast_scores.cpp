// See fast_scores.h.
#include "backend/cpu/fast_scores.h"

#include <algorithm>

#include "backend/cpu/half.h"
#include "backend/cpu/kv_address.h"

namespace fastspec::cpu {
namespace {

static_assert(kScoredTile == kTileKeys);

struct FastPath {
  static float sum(const float* values, int size) {
    float lanes[16] = {};
    int i = 0;
    for (; i + 16 <= size; i += 16) {
      for (int lane = 0; lane < 16; ++lane) lanes[lane] += values[i + lane];
    }
    for (; i < size; ++i) lanes[0] += values[i];
    float total = 0;
    for (const float lane : lanes) total += lane;
    return total;
  }
  static float bound(const float* query, const float* low, const float* high, int size) {
    float total = 0;
    for (int d = 0; d < size; ++d) total += std::max(query[d] * low[d], query[d] * high[d]);
    return total;
  }
};

template <typename T>
void grow(std::vector<T>& values, std::size_t size) {
  if (values.size() < size) values.resize(size);
}

}  // namespace

FastScores::FastScores(ThreadPool& pool, const Kernels& kernels)
    : pool_(pool), kernels_(kernels), scratch_(static_cast<std::size_t>(pool.num_threads())) {}

void FastScores::pack_query(const ScoreKeysParams& params, const ScoredRows& scored) {
  const int head_dim = params.kv.head_dim;
  const int width = kernels_.attention.width;
  padded_dim_ = (head_dim + width - 1) / width * width;
  const auto packed = static_cast<std::size_t>(scored.num_packed);
  const auto dim = static_cast<std::size_t>(padded_dim_);
  grow(query_, packed * dim);
  everyone_.assign(packed, ~std::uint64_t{0});
  for (int p = 0; p < scored.num_packed; ++p) {
    const float* source = scored.query(params, p);
    float* query = query_.data() + std::int64_t{p} * padded_dim_;
    for (int d = 0; d < head_dim; ++d) query[d] = source[d] * params.scale;
    std::fill(query + head_dim, query + padded_dim_, 0.0f);
  }
  for (Scratch& scratch : scratch_) {
    grow(scratch.keys, kTileKeys * dim);
    grow(scratch.key_rows, kTileKeys);
    grow(scratch.scores, packed * kTileKeys);
  }
}

void FastScores::load_keys(const ScoreKeysParams& params, const ScoredRows& scored, int kv_head, std::int32_t first,
                           int num_keys, Scratch& scratch) const {
  const KvView& kv = params.kv;
  dispatch_dtype(kv.dtype, [&]<typename T>(T) {
    for (int k = 0; k < kTileKeys; ++k) {  // whole vectors of keys are scored: let them read something valid
      float* key = scratch.keys.data() + std::int64_t{k} * padded_dim_;
      scratch.key_rows[static_cast<std::size_t>(k)] = k < num_keys ? key : scratch.keys.data();
      if (k >= num_keys) continue;
      const Slot slot = list_slot(kv, params.lists[scored.sequence], params.entries, first + k);
      const T* source = kv_address<T>(kv, slot, kv_head, 0);
      if constexpr (sizeof(T) == 4) {
        std::copy(source, source + kv.head_dim, key);
      } else {
        kernels_.row.widen(source, kv.head_dim, key);
      }
      std::fill(key + kv.head_dim, key + padded_dim_, 0.0f);
    }
  });
}

void FastScores::score_tile(const ScoreKeysParams& params, ScoredRows& scored, std::int32_t first, int num_keys,
                            Scratch& scratch) {
  for (int begin = 0, end; begin < scored.num_packed; begin = end) {
    const int kv_head = scored.kv_head(params, begin);
    end = begin + 1;
    while (end < scored.num_packed && scored.kv_head(params, end) == kv_head) ++end;
    load_keys(params, scored, kv_head, first, num_keys, scratch);
    AttentionTile tile;
    tile.rows = end - begin;
    tile.keys = num_keys;
    tile.head_dim = padded_dim_;
    tile.query = query_.data() + std::int64_t{begin} * padded_dim_;
    tile.key_rows = scratch.key_rows.data();
    tile.visible = everyone_.data();
    tile.scores = scratch.scores.data();
    kernels_.attention.scores(tile);
    for (int p = begin; p < end; ++p) {
      std::copy_n(scratch.scores.data() + std::int64_t{p - begin} * kTileKeys, num_keys, scored.packed_row(p) + first);
    }
  }
}

void FastScores::score_keys(const ScoreKeysParams& params) {
  score_sequences<FastPath>(
      params, pool_, scored_, [&](ScoredRows& scored) { pack_query(params, scored); },
      [&](ScoredRows& scored, std::int32_t first, int num_keys, int thread) {
        score_tile(params, scored, first, num_keys, scratch_[static_cast<std::size_t>(thread)]);
      });
}

void FastScores::score_pages(const ScorePagesParams& params) {
  score_pages_with<FastPath>(params, pool_, scored_);
}

}  // namespace fastspec::cpu
