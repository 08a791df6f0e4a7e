// score_keys and score_pages of the fast path: keys are read once for all rows and heads of a group, threads share out
// tiles of keys.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/key_scores.h"
#include "backend/cpu/thread_pool.h"
#include "backend/params.h"

namespace fastspec::cpu {

class FastScores {
 public:
  /// Both must outlive this.
  FastScores(ThreadPool& pool, const Kernels& kernels);

  void score_keys(const ScoreKeysParams& params);
  void score_pages(const ScorePagesParams& params);

 private:
  /// Scratch of one thread; grows to the largest shape seen and stays.
  struct Scratch {
    std::vector<float> keys;            // [kTileKeys, padded head_dim]
    std::vector<const void*> key_rows;  // [kTileKeys]
    std::vector<float> scores;          // [packed rows of a K/V head, kTileKeys]
  };

  void pack_query(const ScoreKeysParams& params, const ScoredRows& scored);
  void score_tile(const ScoreKeysParams& params, ScoredRows& scored, std::int32_t first, int num_keys,
                  Scratch& scratch);
  void load_keys(const ScoreKeysParams& params, const ScoredRows& scored, int kv_head, std::int32_t first, int num_keys,
                 Scratch& scratch) const;

  ThreadPool& pool_;
  const Kernels& kernels_;
  int padded_dim_ = 0;
  std::vector<float> query_;             // [packed rows, padded head_dim] scaled
  std::vector<std::uint64_t> everyone_;  // [packed rows] a mask that hides nothing
  ScoredRows scored_;
  std::vector<Scratch> scratch_;
};

}  // namespace fastspec::cpu
