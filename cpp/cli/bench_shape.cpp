// See bench_shape.h.
#include "cli/bench_shape.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/bandwidth.h"
#include "cli/bench_trace.h"
#include "cli/command.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/output_json.h"

namespace fastspec::cli {
namespace {

using Verbs = std::vector<std::pair<const char*, double>>;

Verbs verbs(const EngineStats& stats) {
  const double steps = static_cast<double>(std::max<std::int64_t>(stats.steps, 1));
  Verbs result = {{"plan", stats.plan_seconds},     {"draft", stats.draft_seconds},   {"budget", stats.budget_seconds},
                  {"select", stats.select_seconds}, {"verify", stats.verify_seconds}, {"accept", stats.accept_seconds},
                  {"commit", stats.commit_seconds}, {"emit", stats.emit_seconds}};
  for (auto& [name, seconds] : result) seconds *= 1e3 / steps;
  return result;
}

void print_heading(const EngineInfo& info, const ShapeBenchOptions& options) {
  std::printf("shape %s (%s), %s on %s, weights %s, KV cache %s, random weights, KV cache of noise\n",
              options.config.shape.c_str(), info.architecture.c_str(), to_string(info.dtype), info.device.c_str(),
              format_bytes(static_cast<double>(info.weight_bytes)).c_str(),
              format_bytes(static_cast<double>(info.kv_cache_bytes)).c_str());
  std::printf("greedy decoding, median of %d runs of %d steps; ", options.repetitions, options.steps);
  if (options.bytes_per_second > 0) {
    std::printf("roofline: weights and K/V read once at %s/s\n", format_bytes(options.bytes_per_second).c_str());
  } else {
    std::printf("no roofline: the rate of this device is not measured here, give --rate\n");
  }
  if (options.config.synthetic_rows > 0) {
    std::printf(
        "SYNTHETIC speculation: each step verifies %d proposed tokens a sequence, of which %.3g in the mean are "
        "accepted because the weights are made so (tau, tokens a step and sequence, is %.3g). Passes, draws and "
        "commits are real; ",
        options.config.synthetic_rows, options.config.synthetic_acceptance, 1 + options.config.synthetic_acceptance);
    if (info.drafter == "synthetic") {
      std::printf("no drafter runs, and its time is missing: this is the limit for a drafter of that tau, ");
    } else {
      std::printf("the drafter (%s, random weights) does all its work and proposes in vain: ", info.drafter.c_str());
    }
    std::printf("no model's speed\n");
  }
  if (options.config.sparse.enabled()) {
    std::printf("speculative steps with sparse passes: %s\n", info.sparse_text().c_str());
  }
}

void print_point(const ShapePoint& point, double rate) {
  const double median = point.median_milliseconds();
  if (point.synthetic_rows == 0) {
    std::printf("\nbatch %d, context %d", point.batch, point.context);
  } else {
    std::printf("  SYNTHETIC speculation, %d rows a sequence, tau %.3f", 1 + point.synthetic_rows,
                point.stats.acceptance_length());
  }
  std::printf(": %.3f ms/step (%.3f to %.3f), %.1f %stokens/s\n", median,
              *std::min_element(point.milliseconds.begin(), point.milliseconds.end()),
              *std::max_element(point.milliseconds.begin(), point.milliseconds.end()), point.tokens_per_second(),
              point.synthetic_rows == 0 ? "" : "SYNTHETIC ");
  std::printf("  reads %s (weights %s, K/V %s)", format_bytes(point.weight_bytes + point.kv_bytes).c_str(),
              format_bytes(point.weight_bytes).c_str(), format_bytes(point.kv_bytes).c_str());
  if (rate > 0) {
    const double roofline = point.roofline_milliseconds(rate);
    std::printf(", roofline %.3f ms: %.1f %%", roofline, 100 * roofline / median);
  }
  std::printf("\n");
  std::printf("  ms/step:");
  for (const auto& [name, milliseconds] : verbs(point.stats)) std::printf("  %s %.3f", name, milliseconds);
  std::printf("\n");
  if (point.stats.sparse.sparse_passes > 0) std::printf("  %s\n", point.stats.sparse.to_string().c_str());
  if (point.stats.graph_replays == 0) return;  // on such a device the pass itself lies in the gap
  std::printf("  host, from tokens to the next launch: %.1f us", 1e3 * point.host_gap_milliseconds());
  if (point.stats.timed_steps > 0) {
    const double idle = point.device_idle_milliseconds(), busy = point.device_busy_milliseconds();
    std::printf("; device idles %.1f us between steps of %.3f ms (%.2f %%)", 1e3 * idle, busy,
                100 * idle / (idle + busy));
  }
  std::printf(
      "\n  passes replayed as graphs %lld, captured %lld, eager %lld; %lld graphs take %s, recorded in %.2f s\n",
      static_cast<long long>(point.stats.graph_replays), static_cast<long long>(point.stats.graph_captures),
      static_cast<long long>(point.stats.graph_eager_passes), static_cast<long long>(point.stats.graphs),
      format_bytes(static_cast<double>(point.stats.graph_bytes)).c_str(), point.stats.graph_capture_seconds);
}

nlohmann::ordered_json point_json(const ShapePoint& point, double rate) {
  nlohmann::ordered_json by_verb;
  for (const auto& [name, milliseconds] : verbs(point.stats)) by_verb[name] = milliseconds;
  nlohmann::ordered_json roofline;  // null where the rate is not known
  if (rate > 0) roofline = point.roofline_milliseconds(rate);
  return {{"batch", point.batch},
          {"context", point.context},
          {"synthetic_rows", point.synthetic_rows},
          {"ms_per_step", point.median_milliseconds()},
          {"ms_per_step_runs", point.milliseconds},
          {"tokens_per_second", point.tokens_per_second()},
          {"acceptance_length", point.stats.acceptance_length()},
          {"ms_per_step_by_verb", by_verb},
          {"sparse", to_json(point.stats.sparse)},
          {"weight_bytes", point.weight_bytes},
          {"kv_bytes", point.kv_bytes},
          {"roofline_ms", roofline},
          {"host_gap_ms", point.host_gap_milliseconds()},
          {"device_idle_ms", point.device_idle_milliseconds()},
          {"device_busy_ms", point.device_busy_milliseconds()},
          {"graphs", point.stats.graphs},
          {"graph_bytes", point.stats.graph_bytes},
          {"graph_capture_seconds", point.stats.graph_capture_seconds},
          {"graph_replays", point.stats.graph_replays},
          {"graph_captures", point.stats.graph_captures},
          {"graph_eager_passes", point.stats.graph_eager_passes}};
}

/// One line of the grid.
struct ShapeCase {
  int batch;
  int context;
  bool speculative;
};

std::vector<ShapeCase> cases_of(const ShapeBenchOptions& options) {
  std::vector<ShapeCase> cases;
  for (const int batch : options.batches) {
    for (const int context : options.contexts) {
      cases.push_back({batch, context, false});
      if (options.config.synthetic_rows > 0) cases.push_back({batch, context, true});
    }
  }
  return cases;
}

/// @param points of the cases, which get their records.
void trace_cases(ShapeBenchmark& benchmark, const std::vector<ShapeCase>& cases, const ShapeBenchOptions& options,
                 nlohmann::ordered_json& points) {
  if (!options.json) write_output(trace_heading());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (interrupted()) throw Interrupted();
    const auto& [batch, context, speculative] = cases[i];
    const Traced traced = try_trace([&, batch = batch, context = context, speculative = speculative] {
      return benchmark.trace(batch, context, options.trace_steps, speculative);
    });
    points[i]["trace"] = to_json(traced);
    if (!options.json) {
      write_output(trace_lines(batch, context, speculative ? "SYNTHETIC speculation" : "plain", traced));
    }
  }
}

}  // namespace

std::vector<int> parse_lengths(const std::string& option, const std::vector<std::string>& texts) {
  std::vector<int> lengths;
  for (const std::string& text : texts) {
    int value = 0;
    const char* end = text.data() + text.size();
    auto [rest, error] = std::from_chars(text.data(), end, value);
    const bool thousands = error == std::errc() && rest + 1 == end && (*rest == 'K' || *rest == 'k');
    if (error != std::errc() || (rest != end && !thousands) || value < 1 ||
        value > (1 << 24) / (thousands ? 1024 : 1)) {
      throw Error(ErrorCode::kInvalidArgument, option + " " + text + ": expected tokens, such as 128 or 32K");
    }
    lengths.push_back(thousands ? 1024 * value : value);
  }
  return lengths;
}

int run_shape_bench(ShapeBenchOptions options) {
  if (options.config.device.starts_with("cpu")) options.trace_steps = 0;
  const int growth = std::max(options.config.growth(options.steps, options.repetitions),
                              options.config.growth(options.trace_steps, 1));
  const int batch = *std::max_element(options.batches.begin(), options.batches.end());
  const int length = *std::max_element(options.contexts.begin(), options.contexts.end()) + growth;
  options.config.max_batch = batch;
  options.config.max_length = length;
  options.config.max_num_slots = std::int64_t{batch} * length;
  if (options.bytes_per_second <= 0 && options.config.device.starts_with("cpu")) {
    options.bytes_per_second = measure_read_bandwidth(options.config.num_threads);
  }
  ShapeBenchmark benchmark(options.config);
  if (!options.json) print_heading(benchmark.info(), options);
  nlohmann::ordered_json report = {{"shape", options.config.shape},
                                   {"engine", to_json(benchmark.info())},
                                   {"steps", options.steps},
                                   {"repetitions", options.repetitions},
                                   {"synthetic_acceptance", options.config.synthetic_acceptance},
                                   {"roofline_bytes_per_second", options.bytes_per_second},
                                   {"points", nlohmann::ordered_json::array()}};
  const std::vector<ShapeCase> cases = cases_of(options);
  double plain = 0;  // tokens/s of the case before a speculative one
  for (const auto& [sequences, context, speculative] : cases) {
    if (interrupted()) throw Interrupted();
    const ShapePoint point = benchmark.measure(sequences, context, options.steps, options.repetitions, speculative);
    nlohmann::ordered_json& json = report["points"].emplace_back(point_json(point, options.bytes_per_second));
    if (!options.json) print_point(point, options.bytes_per_second);
    if (speculative) {
      const double ratio = point.tokens_per_second() / plain;
      json["over_plain"] = ratio;
      if (!options.json) std::printf("  SYNTHETIC: %.3f x the tokens/s of plain decoding\n", ratio);
    } else {
      plain = point.tokens_per_second();
    }
    std::fflush(stdout);
  }
  if (options.trace_steps > 0) trace_cases(benchmark, cases, options, report["points"]);
  if (options.json) std::printf("%s\n", dump(report).c_str());
  return 0;
}

}  // namespace fastspec::cli
