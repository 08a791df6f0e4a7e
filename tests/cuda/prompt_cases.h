// Passes with prompt chunks on both sides of a comparison: one layer's pool, shuffled pages, ragged sequences.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "cuda/ops_gpu.h"

namespace fastspec::gpu_check {

struct PromptSequence {
  int rows = 1;
  int cached = 0;
  NewMask mask = NewMask::kCausal;
  bool pages = true;
};

struct PromptCase {
  std::vector<PromptSequence> sequences;
  int num_heads = 1;
  int num_kv_heads = 1;
  int head_dim = 64;
  int page_size = 16;
};

/// Host arrays of an AttentionParams.
struct PromptArrays {
  std::vector<std::int32_t> row_offsets{0}, positions;
  std::vector<KvList> lists;
  std::vector<Slot> entries, slots;
  std::vector<NewMask> masks;
  std::vector<std::uint64_t> mask_bits;
  int num_pages = 0;

  int num_rows() const { return row_offsets.back(); }
  HostSequences host() const { return {row_offsets.data(), lists.data(), masks.data()}; }
};

inline PromptArrays make_prompt_arrays(const PromptCase& shape, Random& random) {
  PromptArrays arrays;
  const auto pages_of = [&](const PromptSequence& s) {
    return (s.cached + s.rows + shape.page_size - 1) / shape.page_size;
  };
  for (const PromptSequence& sequence : shape.sequences) arrays.num_pages += pages_of(sequence);
  std::vector<Slot> pages(static_cast<std::size_t>(arrays.num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random);
  std::size_t next = 0;
  for (const PromptSequence& sequence : shape.sequences) {
    const auto slot_at = [&](int key) {
      return pages[next + static_cast<std::size_t>(key / shape.page_size)] * shape.page_size + key % shape.page_size;
    };
    arrays.lists.push_back({static_cast<std::int64_t>(arrays.entries.size()), sequence.cached, sequence.pages});
    const int step = sequence.pages ? shape.page_size : 1;
    for (int key = 0; key < sequence.cached; key += step) {
      arrays.entries.push_back(sequence.pages ? slot_at(key) / shape.page_size : slot_at(key));
    }
    arrays.masks.push_back(sequence.mask);
    for (int row = 0; row < sequence.rows; ++row) {
      arrays.positions.push_back(sequence.cached + row);
      arrays.slots.push_back(slot_at(sequence.cached + row));
      const int bit = row % 64;  // itself; read under kAncestor only, whose sequences have at most 64 rows here
      arrays.mask_bits.push_back(std::uint64_t{1} << bit | 1u);
      arrays.mask_bits.resize(arrays.mask_bits.size() + kMaskWords - 1, 0);
    }
    arrays.row_offsets.push_back(static_cast<std::int32_t>(arrays.positions.size()));
    next += static_cast<std::size_t>(pages_of(sequence));
  }
  return arrays;
}

/// One layer's [page][kv_head][K,V][slot][head_dim].
inline KvView prompt_view(const PromptCase& shape, void* base, DType dtype) {
  KvView view;
  view.base = base;
  view.dtype = dtype;
  view.page_shift = std::countr_zero(static_cast<unsigned>(shape.page_size));
  view.num_kv_heads = shape.num_kv_heads;
  view.head_dim = shape.head_dim;
  view.slot_stride = shape.head_dim;
  view.value_offset = std::int64_t{shape.page_size} * shape.head_dim;
  view.head_stride = 2 * view.value_offset;
  view.page_stride = shape.num_kv_heads * view.head_stride;
  return view;
}

inline std::size_t prompt_pool_elements(const PromptCase& shape, const PromptArrays& arrays) {
  return std::size_t{2} * static_cast<std::size_t>(arrays.num_pages * shape.page_size) *
         static_cast<std::size_t>(shape.num_kv_heads * shape.head_dim);
}

/// The arrays on the device, and params that point to them; pool, query and output are the caller's.
class PromptOnDevice {
 public:
  PromptOnDevice(Sides& sides, const PromptCase& shape, const PromptArrays& arrays)
      : row_offsets_(sides.put(arrays.row_offsets)),
        positions_(sides.put(arrays.positions)),
        lists_(sides.put(arrays.lists)),
        entries_(sides.put(arrays.entries)),
        slots_(sides.put(arrays.slots)),
        masks_(sides.put(arrays.masks)),
        mask_bits_(sides.put(arrays.mask_bits)) {
    params_.num_heads = shape.num_heads;
    params_.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    params_.num_sequences = static_cast<int>(arrays.lists.size());
    params_.host = arrays.host();
    params_.row_offsets = row_offsets_.as<std::int32_t>();
    params_.lists = lists_.as<KvList>();
    params_.entries = entries_.as<Slot>();
    params_.masks = masks_.as<NewMask>();
    params_.mask_bits = mask_bits_.as<std::uint64_t>();
    params_.positions = positions_.as<std::int32_t>();
    params_.slots = slots_.as<Slot>();
  }
  const AttentionParams& params() const { return params_; }

 private:
  Buffer row_offsets_, positions_, lists_, entries_, slots_, masks_, mask_bits_;
  AttentionParams params_;
};

/// Prints microseconds and TFLOP/s of both ways for the shapes of interest.
void time_prompts(const std::string& device);

}  // namespace fastspec::gpu_check
