// Threaded attention of the fast CPU path: K and V are read once for all rows and heads of a group, keys are split over
// threads where sequences and heads are too few, and the pieces are merged by log-sum-exp.
#pragma once

#include <vector>

#include "backend/cpu/attention_plan.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/thread_pool.h"
#include "backend/params.h"

namespace fastspec::cpu {

class FastAttention {
 public:
  /// Both must outlive this.
  FastAttention(ThreadPool& pool, const Kernels& kernels);

  void run(const AttentionParams& params);

 private:
  /// The running softmax of a block of packed rows.
  struct State {
    std::vector<float> top, sum;  // [packed rows]
    std::vector<float> output;    // [packed rows, padded head_dim]
  };
  /// A part of a unit that another thread has to be merged with.
  struct Partial {
    int unit = -1;
    State state;
  };
  /// Scratch of one thread; grows to the largest shape seen and stays.
  struct Scratch {
    std::vector<float> query, scores, keys, values;
    std::vector<const void*> key_rows, value_rows;
    std::vector<std::uint64_t> visible;
    State state;
    Partial partials[2];
    int num_partials = 0;
  };

  void prepare(const AttentionParams& params);
  void run_piece(const AttentionParams& params, const AttentionPiece& piece, Scratch& scratch);
  void pack_query(const AttentionParams& params, const AttentionUnit& unit, Scratch& scratch) const;
  void attend_tile(const AttentionParams& params, const AttentionUnit& unit, int first_key, Scratch& scratch,
                   State& state) const;
  template <typename T>
  void load_tile(const AttentionParams& params, const AttentionUnit& unit, int first_key, int num_keys, bool copy,
                 Scratch& scratch) const;
  template <typename T>
  void widen_rows(std::vector<const void*>& rows, int num_rows, int head_dim, float* copies) const;
  void write_output(const AttentionParams& params, const AttentionUnit& unit, const State& state) const;
  void merge_partials(const AttentionParams& params);

  ThreadPool& pool_;
  const Kernels& kernels_;
  AttentionPlan plan_;
  int group_size_ = 0;
  int padded_dim_ = 0;
  std::vector<Scratch> scratch_;
};

}  // namespace fastspec::cpu
