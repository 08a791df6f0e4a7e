// See selection.h.
#include "backend/cpu/selection.h"

#include <algorithm>
#include <vector>

#include "backend/cpu/check_params.h"
#include "backend/cpu/half.h"
#include "backend/cpu/kv_address.h"

namespace fastspec::cpu {
namespace {

/// Scores are not negative; what is no number counts for nothing.
float counted(float score) {
  return score > 0 ? score : 0.0f;
}

/// Marks the best `count` of the positions that are not yet chosen.
/// @param positive only those with a score above 0.
/// @returns how many there were.
int choose_best(const float* scores, int count, bool positive, std::vector<bool>& chosen,
                std::vector<std::int32_t>& candidates) {
  candidates.clear();
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(chosen.size()); ++i) {
    if (!chosen[static_cast<std::size_t>(i)] && (!positive || scores[i] > 0)) candidates.push_back(i);
  }
  const auto taken =
      static_cast<std::ptrdiff_t>(std::min<std::size_t>(static_cast<std::size_t>(count), candidates.size()));
  std::nth_element(candidates.begin(), candidates.begin() + taken, candidates.end(),
                   [&](std::int32_t a, std::int32_t b) {
                     const float first = counted(scores[a]), second = counted(scores[b]);
                     return first != second ? first > second : a < b;
                   });
  for (std::ptrdiff_t i = 0; i < taken; ++i) {
    chosen[static_cast<std::size_t>(candidates[static_cast<std::size_t>(i)])] = true;
  }
  return static_cast<int>(taken);
}

/// Share of all scores that lies at the chosen positions.
float mass_inside(const float* scores, const std::vector<bool>& chosen) {
  double inside = 0, all = 0;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    all += counted(scores[i]);
    if (chosen[i]) inside += counted(scores[i]);
  }
  return all > 0 ? static_cast<float>(inside / all) : 0.0f;
}

void select_sequence(const SelectSlotsParams& params, int sequence) {
  const KvList& list = params.lists[sequence];
  const float* history = params.history + sequence * params.score_stride;
  const float* lookahead = params.lookahead == nullptr ? nullptr : params.lookahead + sequence * params.score_stride;
  std::vector<bool> chosen(static_cast<std::size_t>(list.length));
  std::vector<std::int32_t> candidates;
  int left = std::min(params.budget, list.length);
  for (std::int32_t i = 0; i < list.length; ++i) {
    if (i >= params.sinks && i < list.length - params.recent) continue;
    chosen[static_cast<std::size_t>(i)] = true;
    --left;
  }
  if (lookahead != nullptr) {
    left -= choose_best(lookahead, std::min(left, params.lookahead_slots), true, chosen, candidates);
  }
  choose_best(history, left, false, chosen, candidates);

  KvView addressing;
  addressing.page_shift = params.page_shift;
  Slot* slot =
      params.slots + (params.offsets != nullptr ? params.offsets[sequence] : std::int64_t{sequence} * params.budget);
  for (std::int32_t i = 0; i < list.length; ++i) {
    if (chosen[static_cast<std::size_t>(i)]) *slot++ = list_slot(addressing, list, params.entries, i);
  }
  if (params.mass == nullptr) return;
  params.mass[2 * sequence] = mass_inside(history, chosen);
  params.mass[2 * sequence + 1] = lookahead == nullptr ? 0.0f : mass_inside(lookahead, chosen);
}

template <typename T>
void bound_page(const PageBoundsParams& params, const TouchedPage& touched, int head) {
  const KvView& kv = params.kv;
  T* low = static_cast<T*>(params.bounds) + (std::int64_t{touched.page} * kv.num_kv_heads + head) * 2 * kv.head_dim;
  T* high = low + kv.head_dim;
  for (std::int32_t i = 0; i < touched.num_slots; ++i) {
    const T* key = kv_address<T>(kv, (Slot{touched.page} << kv.page_shift) + i, head, 0);
    for (int d = 0; d < kv.head_dim; ++d) {
      if (i == 0 || to_float(key[d]) < to_float(low[d])) low[d] = key[d];
      if (i == 0 || to_float(key[d]) > to_float(high[d])) high[d] = key[d];
    }
  }
}

}  // namespace

void select_slots(const SelectSlotsParams& params, ThreadPool& pool) {
  check_params(params);
  pool.parallel_for(params.num_sequences, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (auto s = static_cast<int>(begin); s < end; ++s) select_sequence(params, s);
  });
}

void update_page_bounds(const PageBoundsParams& params, ThreadPool& pool) {
  check_params(params);
  const int num_heads = params.kv.num_kv_heads;
  dispatch_dtype(params.kv.dtype, [&]<typename T>(T) {
    pool.parallel_for(std::int64_t{params.num_pages} * num_heads, 4, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) {
        bound_page<T>(params, params.pages[i / num_heads], static_cast<int>(i % num_heads));
      }
    });
  });
}

}  // namespace fastspec::cpu
