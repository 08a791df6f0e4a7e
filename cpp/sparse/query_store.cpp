// See query_store.h.
#include "sparse/query_store.h"

#include <algorithm>

#include "base/check.h"

namespace fastspec {

std::size_t QueryStore::device_bytes(int cols, std::size_t element_size, int max_sequences) {
  return static_cast<std::size_t>(max_sequences) *
         (static_cast<std::size_t>(cols) * element_size + sizeof(std::int32_t));
}

QueryStore::QueryStore(Backend& backend, const Matrix& pass_queries, int max_sequences)
    : backend_(backend), pass_queries_(pass_queries), rows_(static_cast<std::size_t>(max_sequences)) {
  const std::size_t row_bytes = static_cast<std::size_t>(pass_queries.cols) * size_of(pass_queries.dtype);
  queries_ = backend.device->allocate(rows_.size() * row_bytes, "queries of last tokens");
  row_index_ = backend.device->allocate(rows_.size() * sizeof(std::int32_t), "rows of last tokens");
  for (int row = max_sequences - 1; row >= 0; --row) free_rows_.push_back(row);
}

Matrix QueryStore::queries() const {
  return {queries_.data(), pass_queries_.dtype, static_cast<int>(rows_.size()), pass_queries_.cols, pass_queries_.cols};
}

bool QueryStore::holds(SeqId seq) const {
  const auto found = states_.find(seq);
  return found != states_.end() && found->second.length > 0;
}

int QueryStore::row_of(SeqId seq) {
  const auto found = states_.find(seq);
  if (found != states_.end()) return found->second.row;
  FS_CHECK(!free_rows_.empty(), "queries of more than ", rows_.size(), " sequences");
  const int row = free_rows_.back();
  states_.emplace(seq, State{.row = row});
  free_rows_.pop_back();
  return row;
}

void QueryStore::observe(std::span<const SelectorObservation> observations) {
  if (observations.empty()) return;
  std::fill(rows_.begin(), rows_.end(), -1);
  for (const SelectorObservation& seen : observations)
    rows_[static_cast<std::size_t>(row_of(seen.seq))] = seen.last_row;
  backend_.device->copy_to_device(row_index_.data(), rows_.data(), rows_.size() * sizeof(std::int32_t));
  backend_.ops->copy_rows(
      {.input = pass_queries_, .row_index = row_index_.as<const std::int32_t>(), .output = queries()});
  for (const SelectorObservation& seen : observations) states_.at(seen.seq).length = seen.kv_len;
}

void QueryStore::truncate(SeqId seq, int length) {
  const auto found = states_.find(seq);
  if (found != states_.end() && length < found->second.length) found->second.length = 0;
}

void QueryStore::forget(SeqId seq) noexcept {
  const auto found = states_.find(seq);
  if (found == states_.end()) return;
  free_rows_.push_back(found->second.row);  // cannot fail: there was room for all of them
  states_.erase(found);
}

}  // namespace fastspec
