// Quest (arXiv 2406.10774) with one list for all layers: pages by an upper bound of what the last confirmed token could
// pay to any key in them.
#pragma once

#include <vector>

#include "sparse/device_selector.h"
#include "sparse/page_bounds.h"
#include "sparse/query_store.h"

namespace fastspec {

class QuestSelector final : public DeviceSelector {
 public:
  /// @param layers as HistorySelector's history; their keys' bounds are kept. @param num_pages of the pool.
  QuestSelector(Backend& backend, const SelectionShape& shape, const Limits& limits, const Matrix& pass_queries,
                std::vector<ScoredLayer> layers, int num_pages);

  std::string name() const override { return "quest"; }
  bool is_ready(SeqId seq) const override { return store_.holds(seq); }
  void observe(std::span<const SelectorObservation> observations) override;
  void truncate(SeqId seq, int length) override;
  void forget(SeqId seq) noexcept override;
  void share(SeqId from, SeqId to, int length) override { bounds_.share(from, to, length); }

  const PageBounds& bounds() const { return bounds_; }

 private:
  void add_rows(const SelectRequest& request, SelectionBlock& block) override;
  void issue_scores(const Pass& pass) override;

  QueryStore store_;
  std::vector<ScoredLayer> layers_;
  PageBounds bounds_;
};

}  // namespace fastspec
