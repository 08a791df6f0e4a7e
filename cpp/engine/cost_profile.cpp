// See cost_profile.h.
#include "engine/cost_profile.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/log.h"
#include "model/random_weights.h"
#include "step/row_tiers.h"
#include "verify/batch.h"

namespace fastspec {

namespace {

constexpr int kShortKeys = 16;    // of sequences whose attention costs next to nothing
constexpr int kRowsOfTile = 128;  // query heads packed into a tile of attention on a GPU
constexpr int kRepetitions = 5;

SeqId id_of(int sequence) {
  return -1 - static_cast<SeqId>(sequence);  // no request has one
}

double milliseconds_since(Clock::time_point start) {
  return 1e3 * std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

CostProfiler::CostProfiler(Backend& backend, const ModelConfig& model, PassRunner& passes, const KvPool& pool,
                           PagedKvCache& kv, Drafter& drafter, const Limits& limits)
    : backend_(backend),
      model_(model),
      passes_(passes),
      pool_(pool),
      kv_(kv),
      drafter_(drafter),
      limits_(limits),
      num_rows_(std::min(limits.max_batch_rows, limits.max_num_seqs * (1 + drafter.shape().max_nodes))),
      short_keys_(std::clamp(limits.max_model_len / 4, 1, kShortKeys)),
      filled_(static_cast<std::size_t>(kv.num_pages()), false) {
  FS_CHECK(kv.num_free_pages() == kv.num_pages(), "costs are measured while no sequence has pages");
  const bool is_gpu = backend.device->has_graphs();
  long_ = {.num_sequences = is_gpu ? std::min(8, limits.max_num_seqs) : 1, .keys_each = is_gpu ? 4096 : 1024};
  long_.num_rows = std::min(num_rows_, long_.num_sequences * (1 + drafter.shape().max_nodes));
  while (long_.keys_each > short_keys_ && !fits(long_)) long_.keys_each /= 2;
  std::uint64_t state = 1;
  for (int i = 0; i <= std::max(long_.keys_each, short_keys_); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens_.push_back(static_cast<TokenId>((state >> 33) % static_cast<std::uint64_t>(model.vocab_size)));
  }
}

CostProfiler::~CostProfiler() {
  forget_all();
}

void CostProfiler::forget_all() noexcept {
  for (int i = 0; i < num_prepared_; ++i) {
    kv_.forget(id_of(i));
    drafter_.forget(id_of(i));
  }
  num_prepared_ = 0;
}

void CostProfiler::prepare(int count, int keys) {
  if (keys != keys_prepared_ || count < num_prepared_) forget_all();
  keys_prepared_ = keys;
  const NoiseFill noise(*backend_.device, pool_.layer(0).dtype, 1.0f);
  for (; num_prepared_ < count; ++num_prepared_) {
    const SeqId seq = id_of(num_prepared_);
    kv_.add(seq);
    StepPlan plan;
    plan.sequences.push_back({.seq = seq, .num_known_rows = keys});
    KvReservation reservation = kv_.reserve(plan);
    kv_.commit(reservation, {&keys, 1});
    drafter_.start_on_noise(seq, keys);
    for (const PageId page : kv_.pages(seq)) {
      if (filled_[static_cast<std::size_t>(page)]) continue;
      filled_[static_cast<std::size_t>(page)] = true;
      for (const KvView& layer : pool_.layers()) {
        const std::size_t bytes = static_cast<std::size_t>(layer.page_stride) * size_of(layer.dtype);
        noise.fill(static_cast<std::byte*>(layer.base) + static_cast<std::size_t>(page) * bytes, bytes);
      }
    }
  }
}

bool CostProfiler::fits(const Shape& shape) const {
  const int rows = shape.rows_of(0);
  return shape.num_sequences <= limits_.max_num_seqs && shape.num_rows <= num_rows_ &&
         shape.num_rows >= shape.num_sequences && rows <= 1 + drafter_.shape().max_nodes &&
         shape.keys_each + rows < limits_.max_model_len &&
         shape.num_sequences * kv_.pages_for(shape.keys_each + rows) <= kv_.num_pages();
}

CostProfiler::Shape CostProfiler::dense(int num_rows, int keys_each) const {
  const int most = 1 + drafter_.shape().max_nodes;
  return {(num_rows + most - 1) / most, num_rows, keys_each};
}

int CostProfiler::next_rows(int num_rows) const {
  const int tier = backend_.device->has_graphs() ? row_tier(num_rows + 1, num_rows_) : 0;
  return std::min(num_rows_, tier > 0 ? tier : num_rows + std::max(1, num_rows / 2));
}

StepPlan CostProfiler::plan_of(const Shape& shape, int max_drafted, int max_depth) const {
  StepPlan plan;
  for (int i = 0; i < shape.num_sequences; ++i) {
    plan.sequences.push_back({.seq = id_of(i),
                              .first_position = shape.keys_each,
                              .num_known_rows = 1,
                              .samples = true,
                              .is_decoding = true,
                              .max_drafted = max_drafted,
                              .max_depth = max_depth});
  }
  return plan;
}

template <typename Work>
double CostProfiler::least_time(const Work& work) {
  // A shape runs as it is, then is recorded, then replayed.
  for (int i = 0; i < (backend_.device->has_graphs() ? 3 : 1); ++i) work();
  double least = std::numeric_limits<double>::infinity();
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kRepetitions; ++i) {
    const Clock::time_point start = Clock::now();
    work();
    least = std::min(least, milliseconds_since(start));
    if (seconds_left() <= 0 || (i >= 1 && 1e-3 * milliseconds_since(begin) > point_seconds_)) break;
  }
  return least;
}

double CostProfiler::time_pass(const Shape& shape) {
  prepare(shape.num_sequences, shape.keys_each);
  const int most = shape.rows_of(0) - 1;
  const StepPlan plan = plan_of(shape, most, most);
  const KvReservation reservation = kv_.reserve(plan);
  const std::span<const TokenId> known(tokens_.data(), static_cast<std::size_t>(shape.keys_each) + 1);
  const std::vector<std::span<const TokenId>> tokens(plan.sequences.size(), known);
  std::vector<TokenTree> trees;
  std::vector<AcceptRequest> requests;
  for (int i = 0; i < shape.num_sequences; ++i) {
    TokenTree& tree = trees.emplace_back(known.back());
    for (int node = 1; node < shape.rows_of(i); ++node)
      tree.add(known[static_cast<std::size_t>(node) % known.size()], node - 1);
  }
  for (const TokenTree& tree : trees) {
    AcceptRequest& request = requests.emplace_back();
    request.tree = &tree;
    request.root_position = shape.keys_each;
    request.rule.temperature = 0;
  }
  return least_time([&] {
    build_batch(plan, tokens, trees, reservation, batch_);
    const Matrix logits = passes_.forward(batch_, true);
    walks_.launch(*backend_.ops, logits, requests);
    walks_.wait(*backend_.ops);
  });
}

double CostProfiler::time_draft(int num_sequences, int keys_each) {
  prepare(num_sequences, keys_each);
  const DraftShape most = drafter_.shape();
  const StepPlan plan = plan_of({num_sequences, num_sequences, keys_each}, most.max_nodes, most.max_depth);
  const KvReservation reservation = kv_.reserve(plan);
  std::vector<DraftRequest> requests;
  for (int i = 0; i < num_sequences; ++i) {
    DraftRequest& request = requests.emplace_back();
    request.seq = id_of(i);
    request.tokens = std::span(tokens_).first(static_cast<std::size_t>(keys_each) + 1);
    request.pages = reservation.pages(i);
    request.version = reservation.version(i);
    request.max_drafted = most.max_nodes;
    request.max_depth = most.max_depth;
    request.rule.temperature = 0;
  }
  std::vector<TokenTree> trees;
  return least_time([&] {  // its first run also brings the drafter to where the tokens are
    trees.assign(requests.size(), TokenTree(requests[0].tokens.back()));
    drafter_.draft(requests, trees);
  });
}

CostParameters CostProfiler::measure(double seconds) {
  deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  point_seconds_ = seconds / 40;
  CostParameters costs;
  if (backend_.device->has_graphs()) costs.rows_per_tile = std::max(1, kRowsOfTile / model_.group_size());
  // What matters most comes first, and half of the time is its own.
  measure_rows(seconds / 2, costs);
  fit_draft(costs);
  fit_attention(costs);
  fit_sequences(costs);
  subtract_others(costs);
  forget_all();
  return costs;
}

void CostProfiler::fit_attention(CostParameters& costs) {
  if (long_.keys_each <= short_keys_) return;  // sequences are too short for attention to matter
  const double keys = double(long_.num_sequences) * (long_.keys_each - short_keys_);
  // Milliseconds a key, of one row a sequence and of as many as there can be.
  const auto slope = [&](int num_rows) {
    const double longer = time_pass({long_.num_sequences, num_rows, long_.keys_each});
    return std::max(0.0, longer - time_pass({long_.num_sequences, num_rows, short_keys_})) / keys;
  };
  const double one = slope(long_.num_sequences);
  const double many = slope(long_.num_rows);
  const int tiles = CostModel(costs).tiles(long_.num_rows / long_.num_sequences);
  if (tiles > 1) {
    costs.per_tile_key = std::max(0.0, (many - one) / (tiles - 1));
    costs.per_key = std::max(0.0, one - costs.per_tile_key);
  } else {
    costs.per_key = (one + many) / 2;  // more rows cost nothing more
  }
}

void CostProfiler::fit_sequences(CostParameters& costs) {
  const int rows = std::min({1 + drafter_.shape().max_nodes, limits_.max_num_seqs, num_rows_});
  if (rows < 2 || !fits({rows, rows, short_keys_})) return;
  const double apart = time_pass({rows, rows, short_keys_});
  const double together = time_pass({1, rows, short_keys_});
  // A difference of two times is rough; it must not claim what is the rows' own.
  costs.per_sequence = std::clamp((apart - together) / (rows - 1), 0.0, 0.5 * apart / rows);
}

void CostProfiler::measure_rows(double seconds, CostParameters& costs) {
  const Clock::time_point start = Clock::now();
  for (int rows = 1;; rows = next_rows(rows)) {
    const Shape shape = dense(rows, short_keys_);
    if (!fits(shape)) break;
    costs.linear.counts.push_back(rows);
    costs.linear.milliseconds.push_back(time_pass(shape));
    // The next point runs a few times and is half as large again, or twice as large.
    const double next_seconds = 3 * 2e-3 * costs.linear.milliseconds.back();
    if (rows == num_rows_ || (rows >= 2 && 1e-3 * milliseconds_since(start) + next_seconds > seconds)) break;
  }
  if (costs.linear.counts.empty()) return;  // sequences are too short for any draft
  // More rows never cost less: what says so was measured while something else ran.
  std::vector<double>& times = costs.linear.milliseconds;
  for (std::size_t i = times.size() - 1; i > 0; --i) times[i - 1] = std::min(times[i - 1], times[i]);
  log(LogLevel::kInfo, "costs of passes were measured up to ", costs.linear.counts.back(), " of ", num_rows_, " rows");
}

void CostProfiler::subtract_others(CostParameters& costs) const {
  constexpr double kLeastShare = 0.2;  // of a pass over a few keys that is the rows' own
  CostParameters others = costs;
  others.linear = {};
  const CostModel model(others);
  for (std::size_t i = 0; i < costs.linear.counts.size(); ++i) {
    const Shape shape = dense(costs.linear.counts[i], short_keys_);
    StepLoad load;
    for (int k = 0; k < shape.num_sequences; ++k) model.add_sequence(shape.rows_of(k), short_keys_, load);
    double& time = costs.linear.milliseconds[i];
    time = std::max(kLeastShare * time, time - model.pass_milliseconds(load));
  }
}

void CostProfiler::fit_draft(CostParameters& costs) {
  for (int sequences = 1; sequences <= limits_.max_num_seqs; sequences *= 2) {
    if (!fits({sequences, sequences, short_keys_ + drafter_.shape().max_depth})) break;
    const Clock::time_point start = Clock::now();
    costs.draft.counts.push_back(sequences);
    costs.draft.milliseconds.push_back(time_draft(sequences, short_keys_));
    if (2e-3 * milliseconds_since(start) > seconds_left() / 2) break;  // what is left belongs to the passes
  }
  if (costs.draft.counts.empty() || long_.keys_each <= short_keys_) return;
  const double longer = time_draft(1, long_.keys_each) - costs.draft.milliseconds[0];
  costs.draft_per_key = std::max(0.0, longer) / (long_.keys_each - short_keys_);
}

std::vector<CostCheck> CostProfiler::check(const CostModel& cost, double seconds) {
  deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  const int nodes = drafter_.shape().max_nodes;
  const int some = std::min(4, limits_.max_num_seqs);
  const int middle = std::max(short_keys_, long_.keys_each / 2);
  const Shape shapes[] = {{1, 1, middle},
                          {1, 1 + nodes / 2, middle},
                          {some, some, 2 * short_keys_},
                          {some, some * (1 + nodes / 2), 2 * short_keys_},
                          {some, some * (1 + nodes), middle / 2},
                          {some, some + nodes, middle},
                          {limits_.max_num_seqs, limits_.max_num_seqs, 2 * short_keys_},
                          {limits_.max_num_seqs, limits_.max_num_seqs * (1 + nodes / 4), 2 * short_keys_}};
  std::vector<CostCheck> checks;
  for (const Shape& shape : shapes) {
    if (!fits(shape)) continue;
    if (seconds_left() <= 0) break;
    StepLoad load;
    for (int i = 0; i < shape.num_sequences; ++i) cost.add_sequence(shape.rows_of(i), shape.keys_each, load);
    const int tier = backend_.device->has_graphs() ? row_tier(load.num_rows, num_rows_) : 0;
    load.num_rows = std::max(load.num_rows, tier);
    const double measured = time_pass(shape);
    checks.push_back({.num_sequences = shape.num_sequences,
                      .num_rows = shape.num_rows,
                      .keys_each = shape.keys_each,
                      .measured_milliseconds = measured,
                      .predicted_milliseconds = cost.pass_milliseconds(load)});
  }
  forget_all();
  return checks;
}

}  // namespace fastspec
