// Attention of the reference path. A row's visible keys are walked in one order (cached keys, then new rows), and every
// sum depends on a key's index in that order alone, so neither other rows nor the border between cached and new keys
// matter.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/check_params.h"
#include "backend/cpu/half.h"
#include "backend/cpu/kv_address.h"
#include "backend/cpu/reference_math.h"
#include "backend/cpu/reference_ops.h"

namespace fastspec::cpu {
namespace {

// Keys whose weighted values are summed apart before they join the total: keeps rounding small over long contexts.
constexpr int kKeysPerSum = 64;

void collect_visible(const AttentionParams& params, int sequence, int row, std::vector<Slot>& visible) {
  visible.clear();
  const std::int32_t position = params.positions[row];
  const KvList& list = params.lists[sequence];
  for (std::int32_t key = 0; key < list.length; ++key) {
    if (list.pages && !in_window(params, position, key)) continue;
    visible.push_back(list_slot(params.kv, list, params.entries, key));
  }
  for (int key_row = params.row_offsets[sequence]; key_row < params.row_offsets[sequence + 1]; ++key_row) {
    if (!mask_allows(params, sequence, row, key_row)) continue;
    if (!in_window(params, position, params.positions[key_row])) continue;
    visible.push_back(params.slots[key_row]);
  }
}

template <typename T>
void widen(const T* source, int size, float* output) {
  for (int i = 0; i < size; ++i) output[i] = to_float(source[i]);
}

struct HeadScratch {
  float* key;     // [head_dim]
  float* scores;  // [visible keys]
  float* total;   // [head_dim]
  float* block;   // [head_dim]
};

/// One head of one row: output [head_dim], returns the LSE.
template <typename T>
float attend(const AttentionParams& params, const float* query, int kv_head, const std::vector<Slot>& visible,
             const HeadScratch& scratch, float* output) {
  const KvView& kv = params.kv;
  const int head_dim = kv.head_dim;
  const int num_keys = static_cast<int>(visible.size());
  if (num_keys == 0) {
    std::fill(output, output + head_dim, 0.0f);
    return -std::numeric_limits<float>::infinity();
  }
  float top = -std::numeric_limits<float>::infinity();
  for (int i = 0; i < num_keys; ++i) {
    widen(kv_address<T>(kv, visible[static_cast<std::size_t>(i)], kv_head, 0), head_dim, scratch.key);
    scratch.scores[i] = reference::dot(query, scratch.key, head_dim) * params.scale;
    top = std::max(top, scratch.scores[i]);
  }
  for (int i = 0; i < num_keys; ++i) scratch.scores[i] = std::exp(scratch.scores[i] - top);
  const float sum = reference::sum(scratch.scores, num_keys);

  std::fill(scratch.total, scratch.total + head_dim, 0.0f);
  for (int first = 0; first < num_keys; first += kKeysPerSum) {
    std::fill(scratch.block, scratch.block + head_dim, 0.0f);
    for (int i = first; i < std::min(num_keys, first + kKeysPerSum); ++i) {
      widen(kv_address<T>(kv, visible[static_cast<std::size_t>(i)], kv_head, 1), head_dim, scratch.key);
      for (int d = 0; d < head_dim; ++d) scratch.block[d] += scratch.scores[i] * scratch.key[d];
    }
    for (int d = 0; d < head_dim; ++d) scratch.total[d] += scratch.block[d];
  }
  for (int d = 0; d < head_dim; ++d) output[d] = scratch.total[d] / sum;
  return top + std::log(sum);
}

int sequence_of(const AttentionParams& params, int row) {
  const std::int32_t* end = params.row_offsets + params.num_sequences + 1;
  return static_cast<int>(std::upper_bound(params.row_offsets, end, row) - params.row_offsets) - 1;
}

}  // namespace

void ReferenceOps::attention(const AttentionParams& params) {
  check_params(params);
  const int head_dim = params.kv.head_dim;
  const int group_size = params.num_heads / params.kv.num_kv_heads;
  const int num_rows = params.num_sequences == 0 ? 0 : params.row_offsets[params.num_sequences];
  const std::int64_t units = std::int64_t{num_rows} * params.num_heads;
  pool_.parallel_for(units, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    Scratch& scratch = scratch_[static_cast<std::size_t>(thread)];
    scratch.sums.resize(3 * static_cast<std::size_t>(head_dim));
    int current_row = -1;
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const int row = static_cast<int>(unit / params.num_heads);
      const int head = static_cast<int>(unit % params.num_heads);
      if (row != current_row) {
        collect_visible(params, sequence_of(params, row), row, scratch.visible);
        if (scratch.scores.size() < scratch.visible.size()) scratch.scores.resize(scratch.visible.size());
        current_row = row;
      }
      const HeadScratch buffers{scratch.sums.data(), scratch.scores.data(), scratch.sums.data() + head_dim,
                                scratch.sums.data() + 2 * head_dim};
      const std::int64_t at = std::int64_t{head} * head_dim;
      const float lse = dispatch_dtype(params.kv.dtype, [&]<typename T>(T) {
        return attend<T>(params, params.query.row<float>(row) + at, head / group_size, scratch.visible, buffers,
                         params.output.row<float>(row) + at);
      });
      if (params.lse != nullptr) params.lse[unit] = lse;
    }
  });
}

}  // namespace fastspec::cpu
