// See check_sparse.h.
#include "backend/check_sparse.h"

#include "base/check.h"

namespace fastspec {

void check_scoring(const ScoreKeysParams& params) {
  const KvView& kv = params.kv;
  FS_CHECK(params.num_heads > 0 && params.num_heads % kv.num_kv_heads == 0 &&
               params.query.cols == params.num_heads * kv.head_dim,
           "score_keys: query width ", params.query.cols, ", num_heads ", params.num_heads, ", num_kv_heads ",
           kv.num_kv_heads, ", head_dim ", kv.head_dim);
  FS_CHECK(params.num_scored_heads > 0 && params.num_scored_heads <= kMaxScoredHeads,
           "score_keys: ", params.num_scored_heads, " heads, 1 to ", kMaxScoredHeads);
  for (int i = 0; i < params.num_scored_heads; ++i) {
    FS_CHECK(
        params.heads[i] >= 0 && params.heads[i] < params.num_heads && (i == 0 || params.heads[i - 1] < params.heads[i]),
        "score_keys: heads[", i, "] = ", params.heads[i], ", must be ascending and below ", params.num_heads);
  }
  FS_CHECK(params.scale > 0 && params.weight >= 0, "score_keys: scale ", params.scale, ", weight ", params.weight);
  FS_CHECK(params.max_rows_per_sequence >= 0 && params.max_keys >= 0 && params.score_stride >= params.max_keys,
           "score_keys: at most ", params.max_rows_per_sequence, " rows and ", params.max_keys, " keys, scores ",
           params.score_stride, " apart");
}

void check_selection(const SelectSlotsParams& params) {
  FS_CHECK(params.budget > 0 && params.sinks >= 0 && params.recent >= 0 && params.lookahead_slots >= 0 &&
               std::int64_t{params.sinks} + params.recent + params.lookahead_slots <= params.budget,
           "select_slots: budget ", params.budget, " for ", params.sinks, " sinks, ", params.recent,
           " recent positions and ", params.lookahead_slots, " by lookahead");
  FS_CHECK(params.history != nullptr && params.slots != nullptr, "select_slots: no history scores, or no slots");
  FS_CHECK(params.page_shift >= 0 && params.page_shift < 31, "select_slots: page_shift ", params.page_shift);
  FS_CHECK(params.max_keys >= 0 && params.score_stride >= params.max_keys, "select_slots: at most ", params.max_keys,
           " keys, scores ", params.score_stride, " apart");
}

}  // namespace fastspec
