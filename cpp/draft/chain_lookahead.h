// The queries that a small model's drafted rows ask its own keys with, kept until the next draft: each pass overwrites
// those of the one before, so the last row of every sequence is copied to a place of its own. Computes nothing.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "draft/drafter.h"
#include "memory/kv_pool.h"
#include "model/transformer.h"

namespace fastspec {

class ChainLookahead {
 public:
  struct Limits {
    int num_layers = 0;  // whose queries are kept; 0 = none
    int num_heads = 0;
    int head_dim = 0;
    int max_sequences = 0;
    int max_levels = 0;
  };
  /// @param layers of the model, whose taps they are.
  ChainLookahead(Backend& backend, const Limits& limits, const std::vector<int>& layers, const KvPool& kv);
  static std::size_t device_bytes(const Limits& limits, std::size_t element_size);

  void begin(std::size_t num_requests);
  /// Keeps row rows[k] of the pass of a level for request requests[k], which is reached with chance survival[k].
  void keep(int level, const Matrix& pass_queries, std::span<const std::int32_t> rows,
            std::span<const std::size_t> requests, std::span<const float> survival);
  void end();

  const Lookahead* get() const { return limits_.num_layers > 0 ? &lookahead_ : nullptr; }

 private:
  struct Row {
    std::int32_t row = 0;
    float weight = 0;
  };

  Backend& backend_;
  Limits limits_;
  Buffer queries_;                      // [max_levels, max_sequences, num_layers * num_heads * head_dim]
  Buffer row_index_;                    // [max_levels, max_sequences], on the device
  Matrix all_queries_;                  // of queries_
  std::vector<std::vector<Row>> rows_;  // of each request
  Lookahead lookahead_;
};

}  // namespace fastspec
