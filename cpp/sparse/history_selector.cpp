// See history_selector.h.
#include "sparse/history_selector.h"

#include <utility>

namespace fastspec {

HistorySelector::HistorySelector(std::string name, Backend& backend, const SelectionShape& shape, const Limits& limits,
                                 const Matrix& pass_queries, std::vector<ScoredLayer> history,
                                 std::vector<ScoredLayer> lookahead, RowPooling pooling, const Lookahead* source)
    : DeviceSelector(backend, shape, limits),
      name_(std::move(name)),
      store_(backend, pass_queries, limits.max_sequences),
      history_(std::move(history)),
      lookahead_(std::move(lookahead)),
      pooling_(pooling),
      source_(source) {
  for (std::size_t i = 0; i < history_.size(); ++i) {
    history_[i].queries = columns_of(store_.queries(), i, history_[i].queries.cols);
  }
}

void HistorySelector::add_rows(const SelectRequest& request, SelectionBlock& block) {
  block.add_row(kHistory, request.index, store_.row(request.seq), 1.0f);
  if (lookahead_.empty() || request.draft < 0) return;
  const auto draft = static_cast<std::size_t>(request.draft);
  const auto begin = static_cast<std::size_t>(source_->row_offsets[draft]);
  const auto end = static_cast<std::size_t>(source_->row_offsets[draft + 1]);
  for (std::size_t i = begin; i < end; ++i) {
    block.add_row(kLookahead, request.index, source_->rows[i], source_->weights[i]);
  }
}

void HistorySelector::issue_scores(const Pass& pass) {
  for (std::size_t i = 0; i < history_.size(); ++i) ops().score_keys(scoring(pass, kHistory, history_, i));
  for (std::size_t i = 0; i < lookahead_.size(); ++i) {
    ScoreKeysParams params = scoring(pass, kLookahead, lookahead_, i);
    params.pooling = pooling_;
    ops().score_keys(params);
  }
}

}  // namespace fastspec
