// See oracle_sparse.h.
#include "support/oracle_sparse.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "support/oracle.h"

namespace fastspec::oracle {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

Slot slot_of(const KvList& list, const Slot* entries, int page_shift, int key) {
  const int page_size = 1 << page_shift;
  return list.pages ? entries[list.offset + key / page_size] * page_size + key % page_size : entries[list.offset + key];
}

/// logit(sequence, key, head, row of query), not scaled.
using Logit = std::function<double(int, int, int, int)>;

std::vector<double> scores_by(const ScoreKeysParams& params, const Logit& logit) {
  std::vector<double> result(static_cast<std::size_t>(params.num_sequences * params.score_stride), kNothing);
  for (int s = 0; s < params.num_sequences; ++s) {
    const int length = params.lists[s].length;
    std::vector<double> pooled(static_cast<std::size_t>(length), 0.0);
    double total = 0;
    for (int at = params.row_offsets[s]; at < params.row_offsets[s + 1]; ++at) {
      total += params.row_weights != nullptr ? params.row_weights[at] : 1.0;
    }
    for (int h = 0; h < params.num_scored_heads && total > 0; ++h) {
      std::vector<double> of_head(static_cast<std::size_t>(length), 0.0);
      for (int at = params.row_offsets[s]; at < params.row_offsets[s + 1]; ++at) {
        const double weight = params.row_weights != nullptr ? params.row_weights[at] : 1.0;
        std::vector<double> values;
        double sum = 0;
        for (int key = 0; key < length; ++key) {
          const int row = params.rows != nullptr ? params.rows[at] : at;
          values.push_back(logit(s, key, params.heads[h], row) * params.scale);
        }
        const double top = length == 0 ? 0 : *std::max_element(values.begin(), values.end());
        for (double& value : values) sum += value = std::exp(value - top);
        for (std::size_t key = 0; key < values.size(); ++key) {
          const double value = weight * values[key] / sum;
          const bool mean = params.pooling == RowPooling::kMean;
          of_head[key] = mean ? of_head[key] + value / total : std::fmax(of_head[key], value);
        }
      }
      for (std::size_t key = 0; key < pooled.size(); ++key) pooled[key] += of_head[key] / params.num_scored_heads;
    }
    for (int key = 0; key < length; ++key) {
      const auto at = static_cast<std::size_t>(s * params.score_stride + key);
      result[at] =
          params.weight * pooled[static_cast<std::size_t>(key)] + (params.accumulate ? params.scores[at] : 0.0);
    }
  }
  return result;
}

double query_of(const ScoreKeysParams& params, int row, int head, int d) {
  return read_element(params.query.data, params.query.dtype,
                      row * params.query.stride + std::int64_t{head} * params.kv.head_dim + d);
}

double counted(float score) {
  return std::isnan(score) || score < 0 ? 0.0 : score;
}

/// The best position that is left, -1 where there is none.
int best_left(const float* scores, const std::vector<bool>& taken, bool only_positive) {
  int best = -1;
  for (int i = 0; i < static_cast<int>(taken.size()); ++i) {
    if (taken[static_cast<std::size_t>(i)] || (only_positive && counted(scores[i]) == 0)) continue;
    if (best < 0 || counted(scores[i]) > counted(scores[best])) best = i;
  }
  return best;
}

double share(const float* scores, const std::vector<bool>& taken) {
  double inside = 0, all = 0;
  for (std::size_t i = 0; i < taken.size(); ++i) {
    inside += taken[i] ? counted(scores[i]) : 0;
    all += counted(scores[i]);
  }
  return all == 0 ? 0 : inside / all;
}

}  // namespace

std::vector<double> score_keys(const ScoreKeysParams& params) {
  const KvView& kv = params.kv;
  const int group = params.num_heads / kv.num_kv_heads;
  return scores_by(params, [&](int sequence, int key, int head, int row) {
    const Slot slot = slot_of(params.lists[sequence], params.entries, kv.page_shift, key);
    double sum = 0;
    for (int d = 0; d < kv.head_dim; ++d) {
      sum += query_of(params, row, head, d) * read_element(kv.base, kv.dtype, kv_index(kv, slot, head / group, 0, d));
    }
    return sum;
  });
}

std::vector<double> score_pages(const ScorePagesParams& params) {
  const ScoreKeysParams& scoring = params.scoring;
  const KvView& kv = scoring.kv;
  const int group = scoring.num_heads / kv.num_kv_heads;
  return scores_by(scoring, [&](int sequence, int key, int head, int row) {
    const std::int64_t page = scoring.entries[scoring.lists[sequence].offset + key / (1 << kv.page_shift)];
    const std::int64_t low = (page * kv.num_kv_heads + head / group) * 2 * kv.head_dim;
    double sum = 0;
    for (int d = 0; d < kv.head_dim; ++d) {
      const double query = query_of(scoring, row, head, d);
      sum += std::fmax(query * read_element(params.bounds, kv.dtype, low + d),
                       query * read_element(params.bounds, kv.dtype, low + kv.head_dim + d));
    }
    return sum;
  });
}

std::vector<double> page_bounds(const PageBoundsParams& params) {
  const KvView& kv = params.kv;
  std::vector<double> result;
  for (int i = 0; i < params.num_pages; ++i) {
    for (int head = 0; head < kv.num_kv_heads; ++head) {
      for (int which = 0; which < 2; ++which) {
        for (int d = 0; d < kv.head_dim; ++d) {
          double bound = kNothing;
          for (int offset = 0; offset < params.pages[i].num_slots; ++offset) {
            const Slot slot = (Slot{params.pages[i].page} << kv.page_shift) + offset;
            const double value = read_element(kv.base, kv.dtype, kv_index(kv, slot, head, 0, d));
            bound = which == 0 ? std::fmin(bound, value) : std::fmax(bound, value);  // a NaN gives way
          }
          result.push_back(bound);
        }
      }
    }
  }
  return result;
}

Selection select_slots(const SelectSlotsParams& params) {
  Selection result;
  for (int s = 0; s < params.num_sequences; ++s) {
    const KvList& list = params.lists[s];
    const float* history = params.history + s * params.score_stride;
    const float* lookahead = params.lookahead == nullptr ? nullptr : params.lookahead + s * params.score_stride;
    std::vector<bool> taken(static_cast<std::size_t>(list.length), false);
    int num_taken = 0;
    const auto take = [&](int position) {
      if (position < 0 || taken[static_cast<std::size_t>(position)]) return position >= 0;
      taken[static_cast<std::size_t>(position)] = true;
      ++num_taken;
      return true;
    };
    for (int i = 0; i < std::min(params.sinks, list.length); ++i) take(i);
    for (int i = std::max(0, list.length - params.recent); i < list.length; ++i) take(i);
    for (int i = 0; lookahead != nullptr && i < params.lookahead_slots; ++i) {
      if (!take(best_left(lookahead, taken, true))) break;
    }
    while (num_taken < std::min(params.budget, list.length)) take(best_left(history, taken, false));
    result.slots.emplace_back();
    for (int i = 0; i < list.length; ++i) {
      if (!taken[static_cast<std::size_t>(i)]) continue;
      result.slots.back().push_back(slot_of(list, params.entries, params.page_shift, i));
    }
    result.mass.push_back(share(history, taken));
    result.mass.push_back(lookahead == nullptr ? 0 : share(lookahead, taken));
  }
  return result;
}

}  // namespace fastspec::oracle
