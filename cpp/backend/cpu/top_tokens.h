// The k largest of a stream of scored tokens. Order: higher score first, then lower id.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "base/types.h"

namespace fastspec::cpu {

/// One token and its score.
struct ScoredToken {
  TokenId token = 0;
  float score = 0;
};

inline bool better(const ScoredToken& a, const ScoredToken& b) {
  return a.score > b.score || (a.score == b.score && a.token < b.token);
}

/// Keeps the best `count` of the tokens offered, in a heap over the caller's memory.
class TopTokens {
 public:
  TopTokens(int count, std::vector<ScoredToken>& heap) : count_(static_cast<std::size_t>(count)), heap_(heap) {
    heap_.clear();
  }

  /// A token with a score below this cannot enter; -inf while there is room.
  float threshold() const {
    return heap_.size() < count_ ? -std::numeric_limits<float>::infinity() : heap_.front().score;
  }

  void offer(const ScoredToken& scored) {
    if (heap_.size() < count_) {
      heap_.push_back(scored);
      std::push_heap(heap_.begin(), heap_.end(), better);
    } else if (better(scored, heap_.front())) {
      std::pop_heap(heap_.begin(), heap_.end(), better);
      heap_.back() = scored;
      std::push_heap(heap_.begin(), heap_.end(), better);
    }
  }

  /// Best first. Nothing may be offered afterwards.
  void sort() { std::sort_heap(heap_.begin(), heap_.end(), better); }

 private:
  std::size_t count_;
  std::vector<ScoredToken>& heap_;
};

}  // namespace fastspec::cpu
