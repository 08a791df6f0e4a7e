// See selection_watch.h.
#include "support/selection_watch.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <sstream>

#include "support/oracle.h"

namespace fastspec::testing {

namespace {

constexpr double kTolerance = 2e-5;

Slot slot_at(const KvList& list, const Slot* entries, int page_shift, int position) {
  if (!list.pages) return entries[list.offset + position];
  const int page_size = 1 << page_shift;
  return entries[list.offset + position / page_size] * page_size + position % page_size;
}

double key_at(const KvView& kv, Slot slot, int head, int d) {
  return oracle::read_element(kv.base, kv.dtype, oracle::kv_index(kv, slot, head, 0, d));
}

std::vector<float> row_of(const Matrix& matrix, int row) {
  const float* begin = matrix.row<const float>(row);
  return {begin, begin + matrix.cols};
}

/// Smallest or largest element of the keys of a page's first slots.
double bound_at(const KvView& kv, Slot page, int num_slots, int head, int d, bool largest) {
  double bound = key_at(kv, page << kv.page_shift, head, d);
  for (int i = 1; i < num_slots; ++i) {
    const double key = key_at(kv, (page << kv.page_shift) + i, head, d);
    bound = largest ? std::max(bound, key) : std::min(bound, key);
  }
  return bound;
}

int slots_in_page(int length, int page_size, int page) {
  return std::min(page_size, length - page * page_size);
}

/// Softmax of what a query pays to every position of a list.
std::vector<double> softmax(std::vector<double> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (double& logit : logits) sum += logit = std::exp(logit - most);
  for (double& logit : logits) logit /= sum;
  return logits;
}

}  // namespace

void SelectionWatch::fault(const std::string& text) {
  if (faults.size() < 5) faults.push_back(text);
}

void SelectionWatch::attention(const AttentionParams& params) {
  auto& queries = queries_[params.kv.base];
  Call& call = last_call_[params.kv.base];
  call.rows.assign(static_cast<std::size_t>(params.num_sequences), {});
  call.lists.assign(params.lists, params.lists + params.num_sequences);
  for (int s = 0; s < params.num_sequences; ++s) {
    if (params.masks[s] == NewMask::kNone) continue;  // they have keys elsewhere: a drafter's own, or none
    for (int row = params.row_offsets[s]; row < params.row_offsets[s + 1]; ++row) {
      const Row query = row_of(params.query, row);
      queries[params.slots[row]] = query;
      call.rows[static_cast<std::size_t>(s)].push_back(query);
    }
  }
  InterceptedOps::attention(params);
}

void SelectionWatch::copy_slots(const CopySlotsParams& params) {
  for (int layer = 0; layer < params.num_layers; ++layer) {
    auto& queries = queries_[params.layers[layer].base];
    for (int i = 0; i < params.num_moves; ++i) queries[params.moves[i].destination] = queries[params.moves[i].source];
  }
  InterceptedOps::copy_slots(params);
}

std::vector<SelectionWatch::Row> SelectionWatch::expected_rows(const ScoreKeysParams& params, int s) {
  if (asks_by_dense_pass) {
    const Call& call = last_call_[params.kv.base];
    const KvList& list = call.lists[static_cast<std::size_t>(s)];
    if (!list.pages || list.length != params.lists[s].length) fault("the dense pass read a part of the context");
    return call.rows[static_cast<std::size_t>(s)];
  }
  const KvList& list = params.lists[s];
  const Slot last = slot_at(list, params.entries, params.kv.page_shift, list.length - 1);
  return {queries_[params.kv.base][last]};
}

void SelectionWatch::expect_rows(const ScoreKeysParams& params, bool looks_ahead) {
  for (int s = 0; s < params.num_sequences; ++s) {
    const int begin = params.row_offsets[s], end = params.row_offsets[s + 1];
    if (params.lists[s].length == 0) {
      if (begin != end) fault("a sequence that chooses nothing is asked for");
      continue;
    }
    rows += end - begin;
    if (looks_ahead) continue;  // the drafters' own tests say whose these are
    std::vector<Row> seen;
    for (int i = begin; i < end; ++i) seen.push_back(row_of(params.query, params.rows[i]));
    if (seen != expected_rows(params, s)) {
      std::ostringstream text;
      text << "sequence " << s << " of " << params.lists[s].length << " keys is asked for with other queries";
      fault(text.str());
    }
  }
}

void SelectionWatch::add_scores(const ScoreKeysParams& params, bool looks_ahead, const void* bounds) {
  Scores& scores = looks_ahead ? lookahead_ : history_;
  if (!params.accumulate) scores.assign(static_cast<std::size_t>(params.num_sequences), {});
  const KvView& kv = params.kv;
  const int group = params.num_heads / kv.num_kv_heads, page_size = 1 << kv.page_shift;
  for (int s = 0; s < params.num_sequences; ++s) {
    const KvList& list = params.lists[s];
    std::vector<double>& own = scores[static_cast<std::size_t>(s)];
    own.resize(static_cast<std::size_t>(list.length));
    const int begin = params.row_offsets[s], end = params.row_offsets[s + 1];
    const double total = std::accumulate(params.row_weights + begin, params.row_weights + end, 0.0);
    for (int i = begin; i < end; ++i) {
      const float* query = params.query.row<const float>(params.rows[i]);
      for (int h = 0; h < params.num_scored_heads; ++h) {
        const int head = params.heads[h];
        std::vector<double> logits;
        for (int position = 0; position < list.length; ++position) {
          const Slot slot = slot_at(list, params.entries, kv.page_shift, position);
          double logit = 0;
          for (int d = 0; d < kv.head_dim; ++d) {
            const double q = query[head * kv.head_dim + d];
            const int in_page = slots_in_page(list.length, page_size, position / page_size);
            logit += q * (bounds == nullptr ? key_at(kv, slot, head / group, d)
                                            : bound_at(kv, slot / page_size, in_page, head / group, d, q > 0));
          }
          logits.push_back(logit * params.scale);
        }
        const std::vector<double> paid = softmax(logits);
        for (std::size_t position = 0; position < own.size(); ++position) {
          own[position] += params.weight * params.row_weights[i] / total * paid[position] / params.num_scored_heads;
        }
      }
    }
  }
}

void SelectionWatch::score_keys(const ScoreKeysParams& params) {
  const bool looks_ahead = !history_.empty() && !params.accumulate;
  const bool goes_on = params.accumulate && !lookahead_.empty();
  expect_rows(params, looks_ahead || goes_on);
  add_scores(params, looks_ahead || goes_on, nullptr);
  InterceptedOps::score_keys(params);
}

void SelectionWatch::score_pages(const ScorePagesParams& params) {
  expect_rows(params.scoring, false);
  check_bounds(params);
  add_scores(params.scoring, false, params.bounds);
  InterceptedOps::score_pages(params);
}

void SelectionWatch::check_bounds(const ScorePagesParams& params) {
  const ScoreKeysParams& scoring = params.scoring;
  const KvView& kv = scoring.kv;
  const int page_size = 1 << kv.page_shift;
  for (int s = 0; s < scoring.num_sequences; ++s) {
    const KvList& list = scoring.lists[s];
    for (int i = 0; i * page_size < list.length; ++i) {
      ++bounded_pages;
      const Slot page = scoring.entries[list.offset + i];
      const int num_slots = slots_in_page(list.length, page_size, i);
      for (int at = 0; at < kv.num_kv_heads * 2 * kv.head_dim; ++at) {
        const int head = at / (2 * kv.head_dim), which = at / kv.head_dim % 2, d = at % kv.head_dim;
        const double seen =
            oracle::read_element(params.bounds, kv.dtype, page * kv.num_kv_heads * 2 * kv.head_dim + at);
        if (seen == bound_at(kv, page, num_slots, head, d, which == 1)) continue;
        std::ostringstream text;
        text << "page " << i << " of sequence " << s << " with " << num_slots << " keys has a wrong bound";
        return fault(text.str());
      }
    }
  }
}

void SelectionWatch::check_scores(const SelectSlotsParams& params, const float* seen, const Scores& expected,
                                  const char* signal) {
  for (int s = 0; s < params.num_sequences; ++s) {
    for (int position = 0; position < params.lists[s].length; ++position) {
      const double want = expected[static_cast<std::size_t>(s)][static_cast<std::size_t>(position)];
      const float got = seen[s * params.score_stride + position];
      if (std::abs(got - want) <= kTolerance) continue;
      std::ostringstream text;
      text << signal << " of sequence " << s << ", position " << position << ": " << got << ", expected " << want;
      return fault(text.str());
    }
  }
}

void SelectionWatch::check_chosen(const SelectSlotsParams& params, int s) {
  const KvList& list = params.lists[s];
  const int length = list.length;
  const Slot* slots = params.slots + params.offsets[s];
  const int count = std::min(params.budget, length);
  std::set<int> chosen;
  int position = 0;
  for (int i = 0; i < count; ++i, ++position) {  // ascending by position, so all are found on one way
    while (position < length && slot_at(list, params.entries, params.page_shift, position) != slots[i]) ++position;
    if (position == length) return fault("a slot is none of the context's, or out of order");
    chosen.insert(position);
  }
  const auto is_protected = [&](int p) { return p < params.sinks || p >= length - params.recent; };
  // What was taken by lookahead: the best of it. The rest of the set: the best of history that is left.
  const std::vector<double>& history = history_[static_cast<std::size_t>(s)];
  const std::vector<double> none(static_cast<std::size_t>(length), 0.0);
  const std::vector<double>& lookahead = lookahead_.empty() ? none : lookahead_[static_cast<std::size_t>(s)];
  std::vector<int> order;
  for (int p = 0; p < length; ++p) {
    if (!is_protected(p)) order.push_back(p);
    if (is_protected(p) && count == params.budget && !chosen.contains(p)) return fault("a protected key is left out");
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return lookahead[a] > lookahead[b]; });
  std::set<int> ahead;
  for (const int p : order) {
    if (static_cast<int>(ahead.size()) == params.lookahead_slots || lookahead[static_cast<std::size_t>(p)] <= 0) break;
    ahead.insert(p);
  }
  double worst = 2;  // of those that history took
  for (const int p : chosen) {
    if (!is_protected(p) && !ahead.contains(p)) worst = std::min(worst, history[static_cast<std::size_t>(p)]);
  }
  int missing_ahead = 0;
  for (int p = 0; p < length; ++p) {
    if (chosen.contains(p)) continue;
    missing_ahead += ahead.contains(p) ? 1 : 0;
    if (history[static_cast<std::size_t>(p)] > worst + kTolerance) return fault("a better key was left out");
  }
  if (missing_ahead > 1) fault("keys that lookahead asks for are left out");  // one may be a near-tie
  double inside = 0;
  for (const int p : chosen) inside += history[static_cast<std::size_t>(p)];
  const float mass = params.mass[2 * s];
  if (!(mass >= 0 && mass <= 1 + kTolerance) || std::abs(mass - inside) > 10 * kTolerance) {
    std::ostringstream text;
    text << "attention inside the chosen keys is " << inside << ", said to be " << mass;
    fault(text.str());
  }
  ++selections;
}

void SelectionWatch::select_slots(const SelectSlotsParams& params) {
  check_scores(params, params.history, history_, "history");
  if (!lookahead_.empty()) check_scores(params, params.lookahead, lookahead_, "lookahead");
  InterceptedOps::select_slots(params);
  for (int s = 0; s < params.num_sequences; ++s) {
    if (params.lists[s].length > 0) check_chosen(params, s);
  }
  history_.clear();
  lookahead_.clear();
}

}  // namespace fastspec::testing
