// Random problems for the operations of sparse passes that own their memory: ragged lists, shuffled and shared pages,
// rows by index, weights, ties; what must not be read is NaN, what must not be written is marked.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "backend/params.h"

namespace fastspec::testing {

struct ScoredSequence {
  int rows = 1;
  int length = 0;
};

struct ScoreShape {
  int num_kv_heads = 2;
  int group_size = 3;
  int head_dim = 64;
  int page_shift = 4;
  DType dtype = DType::kFloat32;  // of K/V
  DType query_dtype = DType::kFloat32;
  std::vector<std::int32_t> heads = {0};
  RowPooling pooling = RowPooling::kMean;
  bool weighted = false;
  bool indirect = false;  // rows by index, several sequences may have the same
  bool accumulate = false;
  bool share_prefix = false;  // lists begin with the pages of the first
  bool slot_lists = false;    // instead of pages
  std::vector<ScoredSequence> sequences;
};

ScoreShape random_score_shape(std::mt19937_64& random);

/// The memory of one problem of score_keys and score_pages. Not copyable: params point into it.
class ScoreCase {
 public:
  ScoreCase(const ScoreShape& shape, std::uint64_t seed);
  ScoreCase(const ScoreCase&) = delete;
  ScoreCase& operator=(const ScoreCase&) = delete;

  ScoreKeysParams params;
  int num_pages = 0;  // of the pool
  std::vector<std::uint8_t> query, pool, bounds;
  std::vector<std::int32_t> heads, row_offsets, rows;
  std::vector<float> row_weights, scores;
  std::vector<KvList> lists;
  std::vector<Slot> entries;
  std::vector<TouchedPage> touched;  // every page of the lists once, and a page that is left as it is

  ScorePagesParams page_params() const { return {params, bounds.data()}; }
  PageBoundsParams bounds_params();
  /// Scores that are not overwritten keep kUntouched; with `accumulate` they are random before.
  void reset_scores();

 private:
  void lay_out_pool(const ScoreShape& shape);
  void add_sequences(const ScoreShape& shape);

  std::mt19937_64 random_;
};

constexpr float kUntouched = -77;

struct SelectShape {
  std::vector<int> lengths;
  int page_shift = 4;
  int sinks = 4, recent = 16, lookahead_slots = 0, budget = 64;
  bool with_lookahead = true;
  bool slot_lists = false;
  int levels = 0;           // few different scores make ties; 0 = any
  double zeros = 0;         // part of the scores that are 0
  bool bad_scores = false;  // NaN and negative ones among them
};

SelectShape random_select_shape(std::mt19937_64& random, int longest);

/// The memory of one problem of select_slots.
class SelectCase {
 public:
  SelectCase(const SelectShape& shape, std::uint64_t seed);
  SelectCase(const SelectCase&) = delete;
  SelectCase& operator=(const SelectCase&) = delete;

  SelectSlotsParams params;
  std::vector<KvList> lists;
  std::vector<Slot> entries;
  std::vector<float> history, lookahead, mass;
  std::vector<Slot> slots;  // with a gap behind every sequence's place
  std::vector<std::int64_t> offsets;

 private:
  std::vector<float> random_scores(const SelectShape& shape, std::int64_t stride);

  std::mt19937_64 random_;
};

constexpr Slot kNoSlot = -77;  // what slots hold that nothing was written to

}  // namespace fastspec::testing
