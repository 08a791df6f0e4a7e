// score_keys and score_pages of the reference path: one inner product after another, each in a fixed order.
#include "backend/cpu/check_params.h"
#include "backend/cpu/half.h"
#include "backend/cpu/key_scores.h"
#include "backend/cpu/kv_address.h"
#include "backend/cpu/reference_math.h"
#include "backend/cpu/reference_ops.h"

namespace fastspec::cpu {
namespace {

struct ReferencePath {
  static float sum(const float* values, int size) { return reference::sum(values, size); }
  static float bound(const float* query, const float* low, const float* high, int size) {
    float lanes[reference::kLanes] = {};
    for (int i = 0; i < size; ++i) lanes[i % reference::kLanes] += std::max(query[i] * low[i], query[i] * high[i]);
    return reference::reduce(lanes);
  }
};

template <typename T>
void widen(const T* source, int size, float* output) {
  for (int i = 0; i < size; ++i) output[i] = to_float(source[i]);
}

}  // namespace

void ReferenceOps::score_keys(const ScoreKeysParams& params) {
  check_params(params);
  const KvView& kv = params.kv;
  const auto tile_logits = [&](ScoredRows& scored, std::int32_t first, int num_keys, int thread) {
    std::vector<float>& key = scratch_[static_cast<std::size_t>(thread)].widened;
    if (key.size() < static_cast<std::size_t>(kv.head_dim)) key.resize(static_cast<std::size_t>(kv.head_dim));
    for (std::int32_t i = first; i < first + num_keys; ++i) {
      const Slot slot = list_slot(kv, params.lists[scored.sequence], params.entries, i);
      int loaded = -1;
      for (int p = 0; p < scored.num_packed; ++p) {
        const int head = scored.kv_head(params, p);
        if (head != loaded) {
          dispatch_dtype(kv.dtype,
                         [&]<typename T>(T) { widen(kv_address<T>(kv, slot, head, 0), kv.head_dim, key.data()); });
          loaded = head;
        }
        scored.packed_row(p)[i] = reference::dot(scored.query(params, p), key.data(), kv.head_dim) * params.scale;
      }
    }
  };
  score_sequences<ReferencePath>(params, pool_, scored_, [](ScoredRows&) {}, tile_logits);
}

void ReferenceOps::score_pages(const ScorePagesParams& params) {
  check_params(params);
  score_pages_with<ReferencePath>(params, pool_, scored_);
}

}  // namespace fastspec::cpu
