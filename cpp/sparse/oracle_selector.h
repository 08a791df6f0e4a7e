// What a selector could know at best: the attention that the rows to be verified do pay, over all layers and heads, by
// a dense pass before the sparse one. For tests and quality reports: it costs more than it saves.
#pragma once

#include <vector>

#include "memory/kv_pool.h"
#include "model/transformer.h"
#include "sparse/device_selector.h"

namespace fastspec {

class OracleSelector final : public DeviceSelector {
 public:
  /// @param target keeps the queries of all its layers. @param limits with history_rows for all rows of a sequence.
  OracleSelector(Backend& backend, const SelectionShape& shape, const Limits& limits, Transformer& target,
                 const KvPool& kv, std::vector<ScoredLayer> layers);

  std::string name() const override { return "oracle"; }
  bool is_ready(SeqId) const override { return true; }
  void observe(std::span<const SelectorObservation>) override {}
  void truncate(SeqId, int) override {}
  void forget(SeqId) noexcept override {}
  void share(SeqId, SeqId, int) override {}

 private:
  void add_rows(const SelectRequest& request, SelectionBlock& block) override;
  void issue_scores(const Pass& pass) override;

  Transformer& target_;
  const KvPool& kv_;
  std::vector<ScoredLayer> layers_;
};

}  // namespace fastspec
