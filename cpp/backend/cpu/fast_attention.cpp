// See fast_attention.h.
#include "backend/cpu/fast_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/half.h"
#include "backend/cpu/kv_address.h"

namespace fastspec::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Packed rows of a unit: query, output and scores of a block stay in the second-level cache.
constexpr int kMaxPackedRows = 96;
// Plan cost below which one thread does all: about the time of waking another.
constexpr std::int64_t kSingleThreadCost = 64;

/// Bits [begin, end) of a word.
std::uint64_t bit_range(int begin, int end) {
  begin = std::clamp(begin, 0, 64);
  end = std::clamp(end, 0, 64);
  if (begin >= end) return 0;
  return (~std::uint64_t{0} >> (64 - (end - begin))) << begin;
}

/// Which of the new rows key_row .. key_row + 63 of the sequence (relative) the mask lets a row see.
std::uint64_t new_row_bits(const AttentionParams& params, int sequence, int row, int key_row, int num_new) {
  const int first = params.row_offsets[sequence];
  switch (params.masks[sequence]) {
    case NewMask::kCausal:
      return bit_range(0, row - first + 1 - key_row);
    case NewMask::kFull:
      return bit_range(0, num_new - key_row);
    case NewMask::kNone:
      return 0;
    case NewMask::kAncestor: {
      const std::uint64_t* words = params.mask_bits + std::int64_t{row} * kMaskWords;
      const int word = key_row >> 6;
      const int shift = key_row & 63;
      std::uint64_t bits = words[word] >> shift;
      if (shift != 0 && word + 1 < kMaskWords) bits |= words[word + 1] << (64 - shift);
      return bits & bit_range(0, num_new - key_row);
    }
  }
  return 0;
}

/// Keys first_key .. first_key + num_keys - 1 (list, then new rows) that a row sees.
std::uint64_t visible_bits(const AttentionParams& params, int sequence, int row, int first_key, int num_keys) {
  const KvList& list = params.lists[sequence];
  const std::int32_t position = params.positions[row];
  const bool windowed = params.window > 0;
  const int cached = std::clamp(list.length - first_key, 0, num_keys);  // of this tile
  std::uint64_t bits = bit_range(0, cached);
  if (windowed && list.pages) {
    bits &= bit_range(position - params.window + 1 - first_key, 64) | bit_range(0, params.sinks - first_key);
  }
  if (cached == num_keys) return bits;
  const int begin = params.row_offsets[sequence];
  const int num_new = params.row_offsets[sequence + 1] - begin;
  const int key_row = first_key + cached - list.length;
  std::uint64_t fresh = new_row_bits(params, sequence, row, key_row, num_new) & bit_range(0, num_keys - cached);
  if (windowed) {
    for (std::uint64_t left = fresh; left != 0; left &= left - 1) {
      const int key = __builtin_ctzll(left);
      if (!in_window(params, position, params.positions[begin + key_row + key])) fresh &= ~(std::uint64_t{1} << key);
    }
  }
  return bits | (fresh << cached);
}

template <typename T>
void grow(std::vector<T>& values, std::size_t size) {
  if (values.size() < size) values.resize(size);
}

}  // namespace

FastAttention::FastAttention(ThreadPool& pool, const Kernels& kernels)
    : pool_(pool), kernels_(kernels), scratch_(static_cast<std::size_t>(pool.num_threads())) {}

void FastAttention::run(const AttentionParams& params) {
  prepare(params);
  const int num_threads = plan_.cost() < kSingleThreadCost ? 1 : pool_.num_threads();
  for (Scratch& scratch : scratch_) scratch.num_partials = 0;
  pool_.parallel_for(num_threads, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (int share = static_cast<int>(begin); share < end; ++share) {
      plan_.visit_share(share, num_threads, [&](const AttentionPiece& piece) {
        run_piece(params, piece, scratch_[static_cast<std::size_t>(share)]);
      });
    }
  });
  merge_partials(params);
}

void FastAttention::prepare(const AttentionParams& params) {
  group_size_ = params.num_heads / params.kv.num_kv_heads;
  const int width = kernels_.attention.width;
  padded_dim_ = (params.kv.head_dim + width - 1) / width * width;
  const int max_rows = std::max(1, kMaxPackedRows / group_size_);
  plan_.build(params, max_rows);

  int largest = 0;
  for (const AttentionUnit& unit : plan_.units()) largest = std::max(largest, unit.num_rows * group_size_);
  const auto packed = static_cast<std::size_t>(largest);
  const auto dim = static_cast<std::size_t>(padded_dim_);
  for (Scratch& scratch : scratch_) {
    grow(scratch.query, packed * dim);
    grow(scratch.scores, packed * kTileKeys);
    grow(scratch.keys, kTileKeys * dim);
    grow(scratch.values, kTileKeys * dim);
    grow(scratch.key_rows, kTileKeys);
    grow(scratch.value_rows, kTileKeys);
    grow(scratch.visible, packed);
    for (State* state : {&scratch.state, &scratch.partials[0].state, &scratch.partials[1].state}) {
      grow(state->top, packed);
      grow(state->sum, packed);
      grow(state->output, packed * dim);
    }
  }
}

void FastAttention::run_piece(const AttentionParams& params, const AttentionPiece& piece, Scratch& scratch) {
  const AttentionUnit& unit = plan_.units()[static_cast<std::size_t>(piece.unit)];
  State* state = &scratch.state;
  if (!piece.whole) {
    Partial& partial = scratch.partials[scratch.num_partials++];
    partial.unit = piece.unit;
    state = &partial.state;
  }
  const int packed = unit.num_rows * group_size_;
  std::fill_n(state->top.begin(), packed, -kInfinity);
  std::fill_n(state->sum.begin(), packed, 0.0f);
  std::fill_n(state->output.begin(), packed * padded_dim_, 0.0f);
  pack_query(params, unit, scratch);
  for (int tile = piece.begin; tile < piece.end; ++tile) {
    attend_tile(params, unit, unit.tile_start(tile), scratch, *state);
  }
  if (piece.whole) write_output(params, unit, *state);
}

void FastAttention::pack_query(const AttentionParams& params, const AttentionUnit& unit, Scratch& scratch) const {
  const int head_dim = params.kv.head_dim;
  float* packed = scratch.query.data();
  for (int row = unit.first_row; row < unit.first_row + unit.num_rows; ++row) {
    const float* source = params.query.row<float>(row) + std::int64_t{unit.kv_head} * group_size_ * head_dim;
    for (int head = 0; head < group_size_; ++head, source += head_dim, packed += padded_dim_) {
      for (int d = 0; d < head_dim; ++d) packed[d] = source[d] * params.scale;
      std::fill(packed + head_dim, packed + padded_dim_, 0.0f);
    }
  }
}

void FastAttention::attend_tile(const AttentionParams& params, const AttentionUnit& unit, int first_key,
                                Scratch& scratch, State& state) const {
  const int num_keys = std::min(kTileKeys, unit.num_keys - first_key);
  std::uint64_t any = 0;
  for (int i = 0; i < unit.num_rows; ++i) {
    const std::uint64_t bits = visible_bits(params, unit.sequence, unit.first_row + i, first_key, num_keys);
    scratch.visible[static_cast<std::size_t>(i)] = bits;
    any |= bits;
  }
  if (any == 0) return;

  AttentionTile tile;
  tile.rows = unit.num_rows * group_size_;
  tile.group_size = group_size_;
  tile.keys = num_keys;
  tile.head_dim = padded_dim_;
  tile.query = scratch.query.data();
  tile.key_rows = scratch.key_rows.data();
  tile.value_rows = scratch.value_rows.data();
  tile.visible = scratch.visible.data();
  tile.scores = scratch.scores.data();
  tile.top = state.top.data();
  tile.sum = state.sum.data();
  tile.output = state.output.data();

  // 16-bit keys are widened once where more than four packed rows read them; ragged dimensions are padded.
  const DType dtype = params.kv.dtype;
  const bool copy = padded_dim_ != params.kv.head_dim || (dtype != DType::kFloat32 && tile.rows > 4);
  dispatch_dtype(dtype, [&]<typename T>(T) { load_tile<T>(params, unit, first_key, num_keys, copy, scratch); });
  if (copy || dtype == DType::kFloat32) {
    kernels_.attention.float32(tile);
  } else if (dtype == DType::kBFloat16) {
    kernels_.attention.bfloat16(tile);
  } else {
    kernels_.attention.float16(tile);
  }
}

template <typename T>
void FastAttention::load_tile(const AttentionParams& params, const AttentionUnit& unit, int first_key, int num_keys,
                              bool copy, Scratch& scratch) const {
  const KvView& kv = params.kv;
  const KvList& list = params.lists[unit.sequence];
  const int first_new = params.row_offsets[unit.sequence] - list.length;
  for (int k = 0; k < num_keys; ++k) {
    const int key = first_key + k;
    const Slot slot = key < list.length ? list_slot(kv, list, params.entries, key) : params.slots[first_new + key];
    const T* key_row = kv_address<T>(kv, slot, unit.kv_head, 0);
    const T* value_row = kv_address<T>(kv, slot, unit.kv_head, 1);
    scratch.key_rows[static_cast<std::size_t>(k)] = key_row;
    scratch.value_rows[static_cast<std::size_t>(k)] = value_row;
    // Pages lie anywhere: start all reads of the tile at once rather than row by row.
    for (int d = 0; d < kv.head_dim; d += 64 / static_cast<int>(sizeof(T))) {
      __builtin_prefetch(key_row + d);
      __builtin_prefetch(value_row + d);
    }
  }
  if (copy) {
    widen_rows<T>(scratch.key_rows, num_keys, kv.head_dim, scratch.keys.data());
    widen_rows<T>(scratch.value_rows, num_keys, kv.head_dim, scratch.values.data());
  }
  for (int k = num_keys; k < kTileKeys; ++k) {  // whole vectors of keys are scored: let them read something valid
    scratch.key_rows[static_cast<std::size_t>(k)] = scratch.key_rows[0];
    scratch.value_rows[static_cast<std::size_t>(k)] = scratch.value_rows[0];
  }
}

/// Replaces rows by float32 copies of padded width.
template <typename T>
void FastAttention::widen_rows(std::vector<const void*>& rows, int num_rows, int head_dim, float* copies) const {
  for (int k = 0; k < num_rows; ++k, copies += padded_dim_) {
    const T* source = static_cast<const T*>(rows[static_cast<std::size_t>(k)]);
    if constexpr (sizeof(T) == 4) {
      std::copy(source, source + head_dim, copies);
    } else {
      kernels_.row.widen(source, head_dim, copies);
    }
    std::fill(copies + head_dim, copies + padded_dim_, 0.0f);
    rows[static_cast<std::size_t>(k)] = copies;
  }
}

void FastAttention::write_output(const AttentionParams& params, const AttentionUnit& unit, const State& state) const {
  const int head_dim = params.kv.head_dim;
  std::size_t packed = 0;
  for (int row = unit.first_row; row < unit.first_row + unit.num_rows; ++row) {
    for (int i = 0; i < group_size_; ++i, ++packed) {
      const int head = unit.kv_head * group_size_ + i;
      const float* source = state.output.data() + packed * static_cast<std::size_t>(padded_dim_);
      float* output = params.output.row<float>(row) + std::int64_t{head} * head_dim;
      const bool empty = state.top[packed] == -kInfinity;
      const float scale = empty ? 0.0f : 1.0f / state.sum[packed];
      for (int d = 0; d < head_dim; ++d) output[d] = source[d] * scale;
      if (params.lse != nullptr) {
        params.lse[std::int64_t{row} * params.num_heads + head] =
            empty ? -kInfinity : state.top[packed] + std::log(state.sum[packed]);
      }
    }
  }
}

void FastAttention::merge_partials(const AttentionParams& params) {
  State* merged = nullptr;
  int current = -1;
  const auto finish = [&] {
    if (merged != nullptr) write_output(params, plan_.units()[static_cast<std::size_t>(current)], *merged);
  };
  for (Scratch& scratch : scratch_) {
    for (int i = 0; i < scratch.num_partials; ++i) {
      State& next = scratch.partials[i].state;
      if (scratch.partials[i].unit != current) {
        finish();
        current = scratch.partials[i].unit;
        merged = &next;
        continue;
      }
      const int packed = plan_.units()[static_cast<std::size_t>(current)].num_rows * group_size_;
      for (std::size_t p = 0; p < static_cast<std::size_t>(packed); ++p) {
        if (next.top[p] == -kInfinity) continue;
        const float top = std::max(merged->top[p], next.top[p]);
        const float weight = std::exp(merged->top[p] - top);
        const float other = std::exp(next.top[p] - top);
        merged->top[p] = top;
        merged->sum[p] = merged->sum[p] * weight + next.sum[p] * other;
        const std::size_t at = p * static_cast<std::size_t>(padded_dim_);
        for (std::size_t d = at; d < at + static_cast<std::size_t>(padded_dim_); ++d) {
          merged->output[d] = merged->output[d] * weight + next.output[d] * other;
        }
      }
    }
  }
  finish();
}

}  // namespace fastspec::cpu
