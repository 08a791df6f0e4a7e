// Selection by attention (Dustin, arXiv 2606.24957): history is what the last confirmed token looked at, lookahead what
// the rows look at that the drafter has just drafted. Without lookahead it is history alone.
#pragma once

#include <string>
#include <vector>

#include "model/lookahead.h"
#include "sparse/device_selector.h"
#include "sparse/query_store.h"

namespace fastspec {

class HistorySelector final : public DeviceSelector {
 public:
  /// @param name that it was asked for by.
  /// @param history layers of the target; their queries are those of the store, one layer after another.
  /// @param lookahead layers of the drafter; none where it is null or nothing is read of it. @param source their rows.
  HistorySelector(std::string name, Backend& backend, const SelectionShape& shape, const Limits& limits,
                  const Matrix& pass_queries, std::vector<ScoredLayer> history, std::vector<ScoredLayer> lookahead,
                  RowPooling pooling, const Lookahead* source);

  std::string name() const override { return name_; }
  bool is_ready(SeqId seq) const override { return store_.holds(seq); }
  void observe(std::span<const SelectorObservation> observations) override { store_.observe(observations); }
  void truncate(SeqId seq, int length) override { store_.truncate(seq, length); }
  void forget(SeqId seq) noexcept override { store_.forget(seq); }
  void share(SeqId, SeqId, int) override {}  // a token of its own comes first

 private:
  void add_rows(const SelectRequest& request, SelectionBlock& block) override;
  void issue_scores(const Pass& pass) override;

  std::string name_;
  QueryStore store_;
  std::vector<ScoredLayer> history_, lookahead_;
  RowPooling pooling_;
  const Lookahead* source_;
};

}  // namespace fastspec
