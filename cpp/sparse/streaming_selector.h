// StreamingLLM (arXiv 2309.17453) as a selector: the first tokens of a sequence and its last, whatever they say. Knows
// nothing of a sequence, so it is always ready; all of it is arithmetic of the host.
#pragma once

#include "sparse/kv_selector.h"

namespace fastspec {

class StreamingSelector final : public KvSelector {
 public:
  /// @param sinks first tokens that are read; the rest of a list are the last ones. @param page_size of the cache.
  StreamingSelector(int sinks, int page_size) : sinks_(sinks), page_size_(page_size) {}

  std::string name() const override { return "streaming"; }
  bool is_ready(SeqId) const override { return true; }
  void select(std::span<const SelectRequest> requests) override;
  void observe(std::span<const SelectorObservation>) override {}
  void truncate(SeqId, int) override {}
  void forget(SeqId) noexcept override {}
  void share(SeqId, SeqId, int) override {}

 private:
  int sinks_;
  int page_size_;
};

}  // namespace fastspec
