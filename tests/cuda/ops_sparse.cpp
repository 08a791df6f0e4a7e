// Cases of the operations of sparse passes: scores of keys and pages, page bounds, selection of slots, and recordings
// of them under other lengths. Held against the double-precision oracles themselves.
#include <algorithm>

#include "backend/graph.h"
#include "cuda/ops_cases.h"
#include "support/oracle_sparse.h"
#include "support/sparse_case.h"

namespace fastspec::gpu_check {

namespace {

using testing::kUntouched;
using testing::ScoreCase;
using testing::ScoreShape;
using testing::SelectCase;
using testing::SelectShape;

/// Fp16 logits are exact to 2^-11 of their distance from the largest, which counts for at most half of it.
double score_tolerance(DType dtype) {
  return dtype == DType::kFloat32 ? 1e-5 : 1e-3;
}

/// The arrays of a problem on the device.
struct ScoreOnDevice {
  Buffer query, pool, bounds, touched, row_offsets, rows, row_weights, lists, entries, scores;
  ScoreKeysParams params;
  ScorePagesParams page_params;
  PageBoundsParams bounds_params;

  ScoreOnDevice(Sides& sides, ScoreCase& problem)
      : query(sides.put(problem.query)),
        pool(sides.put(problem.pool)),
        bounds(sides.put(problem.bounds)),
        touched(sides.put(problem.touched)),
        row_offsets(sides.put(problem.row_offsets)),
        rows(sides.put(problem.rows)),
        row_weights(sides.put(problem.row_weights)),
        lists(sides.put(problem.lists)),
        entries(sides.put(problem.entries)),
        scores(sides.put(problem.scores)),
        params(problem.params) {
    params.query.data = query.data();
    params.kv.base = pool.data();
    params.row_offsets = row_offsets.as<std::int32_t>();
    if (params.rows != nullptr) params.rows = rows.as<std::int32_t>();
    if (params.row_weights != nullptr) params.row_weights = row_weights.as<float>();
    params.lists = lists.as<KvList>();
    params.entries = entries.as<Slot>();
    params.scores = scores.as<float>();
    page_params = {params, bounds.data()};
    bounds_params = {params.kv, touched.as<TouchedPage>(), static_cast<int>(problem.touched.size()), bounds.data()};
  }
};

/// Relative to the largest score; what must not be written is as it was.
void compare_scores(Sides& sides, const ScoreOnDevice& device, std::vector<double> expected, Outcome& outcome) {
  std::vector<float> seen = sides.get(device.scores, expected.size(), DType::kFloat32);
  double largest = 1e-30;
  for (const double value : expected) {
    if (!std::isnan(value)) largest = std::max(largest, value);
  }
  std::vector<float> scaled;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    scaled.push_back(std::isnan(expected[i]) ? kUntouched : static_cast<float>(expected[i] / largest));
    if (!std::isnan(expected[i])) seen[i] = static_cast<float>(seen[i] / largest);
  }
  compare(seen, scaled, score_tolerance(sides.dtype), "scores", outcome);
}

Outcome score_keys(Sides& sides, const ScoreShape& shape, std::uint64_t seed) {
  ScoreCase problem(shape, seed);
  const ScoreOnDevice device(sides, problem);
  Outcome outcome;
  const std::vector<double> expected = oracle::score_keys(problem.params);
  sides.gpu.ops->score_keys(device.params);
  compare_scores(sides, device, expected, outcome);
  return outcome;
}

Outcome score_pages(Sides& sides, const ScoreShape& shape, std::uint64_t seed) {
  ScoreCase problem(shape, seed);
  const ScoreOnDevice device(sides, problem);
  Outcome outcome;
  sides.gpu.ops->update_page_bounds(device.bounds_params);
  sides.cpu.ops->update_page_bounds(problem.bounds_params());
  std::vector<std::uint8_t> seen(problem.bounds.size());
  sides.gpu.device->copy_to_host(seen.data(), device.bounds.data(), seen.size());
  if (seen != problem.bounds) outcome.failure = "bounds differ from the reference's";
  const std::vector<double> expected = oracle::score_pages(problem.page_params());
  sides.gpu.ops->score_pages(device.page_params);
  compare_scores(sides, device, expected, outcome);
  return outcome;
}

/// The arrays of a problem on the device; masses in the host's memory.
struct SelectOnDevice {
  Buffer lists, entries, history, lookahead, slots, offsets, mass;
  SelectSlotsParams params;

  SelectOnDevice(Sides& sides, const SelectCase& problem)
      : lists(sides.put(problem.lists)),
        entries(sides.put(problem.entries)),
        history(sides.put(problem.history)),
        lookahead(sides.put(problem.lookahead)),
        slots(sides.put(problem.slots)),
        offsets(sides.put(problem.offsets)),
        mass(sides.gpu.device->allocate_host(problem.mass.size() * sizeof(float), "masses")),
        params(problem.params) {
    params.lists = lists.as<KvList>();
    params.entries = entries.as<Slot>();
    params.history = history.as<float>();
    if (params.lookahead != nullptr) params.lookahead = lookahead.as<float>();
    params.slots = slots.as<Slot>();
    params.offsets = offsets.as<std::int64_t>();
    params.mass = mass.as<float>();
    std::fill_n(params.mass, problem.mass.size(), kUntouched);
  }
};

void compare_selection(Sides& sides, const SelectCase& problem, const SelectOnDevice& device, Outcome& outcome) {
  const oracle::Selection expected = oracle::select_slots(problem.params);
  std::vector<Slot> slots(problem.slots.size(), testing::kNoSlot), seen(problem.slots.size());
  for (std::size_t s = 0; s < expected.slots.size(); ++s) {
    std::copy(expected.slots[s].begin(), expected.slots[s].end(), slots.begin() + problem.offsets[s]);
  }
  sides.gpu.device->copy_to_host(seen.data(), device.slots.data(), seen.size() * sizeof(Slot));
  sides.gpu.device->synchronize();
  for (std::size_t i = 0; i < slots.size() && outcome.failure.empty(); ++i) {
    if (seen[i] != slots[i]) outcome.failure = text("slot ", i, " is ", seen[i], ", expected ", slots[i]);
  }
  compare({device.params.mass, device.params.mass + expected.mass.size()},
          std::vector<float>(expected.mass.begin(), expected.mass.end()), 1e-5, "mass", outcome);
}

Outcome select_slots(Sides& sides, const SelectShape& shape, std::uint64_t seed) {
  const SelectCase problem(shape, seed);
  const SelectOnDevice device(sides, problem);
  Outcome outcome;
  sides.gpu.ops->select_slots(device.params);
  compare_selection(sides, problem, device, outcome);
  return outcome;
}

/// Scoring and selection recorded once, replayed under shorter lists and fewer rows.
Outcome recorded(Sides& sides, std::uint64_t seed) {
  ScoreShape shape;
  shape.dtype = shape.query_dtype = sides.dtype;
  shape.head_dim = 128;
  shape.heads = {0, 1, 4};
  shape.sequences = {{5, 3000}, {8, 700}};
  ScoreCase scored(shape, seed);
  const ScoreOnDevice device(sides, scored);
  SelectShape selection;
  selection.lengths = {20000, 3000};
  selection.lookahead_slots = 16;
  SelectCase chosen(selection, seed);
  const SelectOnDevice chosen_on_device(sides, chosen);
  const auto work = [&] {
    sides.gpu.ops->score_keys(device.params);
    sides.gpu.ops->select_slots(chosen_on_device.params);
  };
  work();
  const std::unique_ptr<Graph> graph = sides.gpu.device->capture(work);
  Outcome outcome;
  if (graph == nullptr) outcome.failure = "not recorded";
  for (int round = 0; round < 3 && outcome.failure.empty(); ++round) {
    scored.lists[0].length = 2100 - 1000 * round;
    scored.row_offsets = {0, 3 - round, 11 - 2 * round};
    scored.reset_scores();
    chosen.lists[0].length = 9000 - 4470 * round;  // at last the budget and no more
    std::fill(chosen.slots.begin(), chosen.slots.end(), testing::kNoSlot);
    const auto send = [&](const Buffer& buffer, const auto& values) {
      sides.gpu.device->copy_to_device(buffer.data(), values.data(), values.size() * sizeof(values[0]));
    };
    send(device.lists, scored.lists);
    send(device.row_offsets, scored.row_offsets);
    send(device.scores, scored.scores);
    send(chosen_on_device.lists, chosen.lists);
    send(chosen_on_device.slots, chosen.slots);
    const std::vector<double> expected = oracle::score_keys(scored.params);
    graph->launch();
    compare_scores(sides, device, expected, outcome);
    compare_selection(sides, chosen, chosen_on_device, outcome);
  }
  return outcome;
}

}  // namespace

void check_sparse(Sides& sides, Report& report) {
  Random random(909);
  const char* dtype = to_string(sides.dtype);
  for (int round = 0; round < (report.small() ? 6 : 60); ++round) {
    ScoreShape shape = testing::random_score_shape(random);
    shape.dtype = shape.query_dtype = sides.dtype;
    const std::string name =
        text(dtype, " ", round, ": heads ", shape.num_kv_heads * shape.group_size, "/", shape.num_kv_heads, " x ",
             shape.head_dim, " named ", shape.heads.size(), " page ", 1 << shape.page_shift);
    report.run(text("sparse page scores ", name), [&] { return score_pages(sides, shape, 500 + round); });
    shape.slot_lists = round % 7 == 3;
    report.run(text("sparse key scores ", name), [&] { return score_keys(sides, shape, 600 + round); });
  }
  if (!report.small()) {
    ScoreShape shape;
    shape.dtype = shape.query_dtype = sides.dtype;
    shape.num_kv_heads = 4;
    shape.group_size = 7;
    shape.head_dim = 128;
    shape.heads = {0, 3, 8, 9, 27};
    shape.weighted = true;
    shape.sequences = {{1, 9000}, {69, 1500}, {16, 2049}};
    report.run(text("sparse key scores ", dtype, " of a tree of 69 rows and a long context"),
               [&] { return score_keys(sides, shape, 7); });
  }
  if (sides.dtype == DType::kFloat32) {  // scores are float32 whatever the keys are
    for (int round = 0; round < (report.small() ? 6 : 80); ++round) {
      const int longest = round % 4 == 0 ? (report.small() ? 3000 : 40000) : 400;
      SelectShape shape = testing::random_select_shape(random, longest);
      if (longest > 4000) shape.budget = std::min(shape.budget, 2048);
      shape.sinks = std::min(shape.sinks, shape.budget);
      shape.recent = std::min(shape.recent, shape.budget - shape.sinks);
      shape.lookahead_slots = std::min(shape.lookahead_slots, shape.budget - shape.sinks - shape.recent);
      report.run(text("sparse selection ", round, ": budget ", shape.budget, " lookahead ", shape.lookahead_slots,
                      " longest ", longest, " levels ", shape.levels),
                 [&] { return select_slots(sides, shape, 700 + round); });
    }
  }
  report.run(text("sparse operations recorded ", dtype), [&] { return recorded(sides, 8); });
}

}  // namespace fastspec::gpu_check
