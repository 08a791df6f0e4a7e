// See quest_selector.h.
#include "sparse/quest_selector.h"

#include <utility>

namespace fastspec {

namespace {

std::vector<KvView> keys_of(const std::vector<ScoredLayer>& layers) {
  std::vector<KvView> keys;
  for (const ScoredLayer& layer : layers) keys.push_back(layer.kv);
  return keys;
}

}  // namespace

QuestSelector::QuestSelector(Backend& backend, const SelectionShape& shape, const Limits& limits,
                             const Matrix& pass_queries, std::vector<ScoredLayer> layers, int num_pages)
    : DeviceSelector(backend, shape, limits),
      store_(backend, pass_queries, limits.max_sequences),
      layers_(std::move(layers)),
      bounds_(backend, keys_of(layers_), num_pages) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].queries = columns_of(store_.queries(), i, layers_[i].queries.cols);
  }
}

void QuestSelector::observe(std::span<const SelectorObservation> observations) {
  bounds_.observe(observations);
  store_.observe(observations);
}

void QuestSelector::truncate(SeqId seq, int length) {
  bounds_.truncate(seq, length);
  store_.truncate(seq, length);
}

void QuestSelector::forget(SeqId seq) noexcept {
  bounds_.forget(seq);
  store_.forget(seq);
}

void QuestSelector::add_rows(const SelectRequest& request, SelectionBlock& block) {
  block.add_row(kHistory, request.index, store_.row(request.seq), 1.0f);
}

void QuestSelector::issue_scores(const Pass& pass) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    ops().score_pages({.scoring = scoring(pass, kHistory, layers_, i), .bounds = bounds_.layer(i)});
  }
}

}  // namespace fastspec
