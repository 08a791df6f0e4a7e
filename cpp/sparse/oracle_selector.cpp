// See oracle_selector.h.
#include "sparse/oracle_selector.h"

#include <utility>

namespace fastspec {

OracleSelector::OracleSelector(Backend& backend, const SelectionShape& shape, const Limits& limits, Transformer& target,
                               const KvPool& kv, std::vector<ScoredLayer> layers)
    : DeviceSelector(backend, shape, limits), target_(target), kv_(kv), layers_(std::move(layers)) {}

void OracleSelector::add_rows(const SelectRequest& request, SelectionBlock& block) {
  for (int row = request.first_row; row < request.first_row + request.num_rows; ++row) {
    block.add_row(kHistory, request.index, row, 1.0f);
  }
}

void OracleSelector::issue_scores(const Pass& pass) {
  // Dense for the sequences that choose. Of the others nothing is asked, and what this pass writes for them (or for any
  // row) the real one writes again.
  Pass dense = pass;
  dense.lists = pass.contexts;
  dense.host = {};
  target_.forward(dense, kv_);
  for (std::size_t i = 0; i < layers_.size(); ++i) ops().score_keys(scoring(pass, kHistory, layers_, i));
}

}  // namespace fastspec
