// See chain_lookahead.h.
#include "draft/chain_lookahead.h"

#include "base/check.h"

namespace fastspec {

namespace {

std::size_t num_rows(const ChainLookahead::Limits& limits) {
  return static_cast<std::size_t>(limits.max_levels) * static_cast<std::size_t>(limits.max_sequences);
}

int num_cols(const ChainLookahead::Limits& limits) {
  return limits.num_layers * limits.num_heads * limits.head_dim;
}

}  // namespace

std::size_t ChainLookahead::device_bytes(const Limits& limits, std::size_t element_size) {
  if (limits.num_layers == 0) return 0;
  return num_rows(limits) * (static_cast<std::size_t>(num_cols(limits)) * element_size + sizeof(std::int32_t));
}

ChainLookahead::ChainLookahead(Backend& backend, const Limits& limits, const std::vector<int>& layers, const KvPool& kv)
    : backend_(backend), limits_(limits) {
  if (limits.num_layers == 0) return;
  const DType dtype = backend.ops->activation_dtype();
  const int cols = num_cols(limits);
  queries_ = backend.device->allocate(num_rows(limits) * static_cast<std::size_t>(cols) * size_of(dtype),
                                      "queries of drafted chains");
  row_index_ = backend.device->allocate(num_rows(limits) * sizeof(std::int32_t), "rows of drafted chains");
  all_queries_ = {queries_.data(), dtype, static_cast<int>(num_rows(limits)), cols, cols};
  lookahead_.num_heads = limits.num_heads;
  const int q_size = limits.num_heads * limits.head_dim;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Matrix queries = all_queries_;
    queries.data = queries_.as<std::byte>() + i * static_cast<std::size_t>(q_size) * size_of(dtype);
    queries.cols = q_size;
    lookahead_.layers.push_back({queries, kv.layer(layers[i])});
  }
}

void ChainLookahead::begin(std::size_t num_requests) {
  lookahead_.clear();
  rows_.assign(num_requests, {});
}

void ChainLookahead::keep(int level, const Matrix& pass_queries, std::span<const std::int32_t> rows,
                          std::span<const std::size_t> requests, std::span<const float> survival) {
  if (limits_.num_layers == 0) return;
  FS_CHECK(level < limits_.max_levels && std::ssize(rows) <= limits_.max_sequences, "level ", level, " of ",
           rows.size(), " sequences, limits ", limits_.max_levels, " and ", limits_.max_sequences);
  const int first = level * limits_.max_sequences;
  // A place of its own for each level: the device may not have read that of the level before.
  std::int32_t* index = row_index_.as<std::int32_t>() + first;
  backend_.device->copy_to_device(index, rows.data(), rows.size_bytes());
  Matrix place = all_queries_;
  place.data = static_cast<std::byte*>(place.data) +
               static_cast<std::size_t>(first) * static_cast<std::size_t>(place.stride) * size_of(place.dtype);
  place.rows = static_cast<int>(rows.size());
  backend_.ops->copy_rows({.input = pass_queries, .row_index = index, .output = place});
  for (std::size_t k = 0; k < rows.size(); ++k) {
    rows_[requests[k]].push_back({first + static_cast<std::int32_t>(k), survival[k]});
  }
}

void ChainLookahead::end() {
  for (const std::vector<Row>& rows : rows_) {
    for (const Row& row : rows) {
      lookahead_.rows.push_back(row.row);
      lookahead_.weights.push_back(row.weight);
    }
    lookahead_.end_request();
  }
}

}  // namespace fastspec
