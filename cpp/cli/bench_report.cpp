// Figures to text and JSON.
#include "cli/bench_report.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <thread>

#include "cli/bandwidth.h"
#include "cli/format.h"
#include "cli/options.h"
#include "cli/output_json.h"

namespace fastspec::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Part of the device's read rate that reading the weights once a step comes to; none where the rate is not known.
std::optional<double> read_share(const BenchRun& run, const BenchMachine& machine, const EngineInfo& info) {
  if (machine.read_bytes_per_second <= 0) return std::nullopt;
  const double bytes = static_cast<double>(info.weight_bytes) * static_cast<double>(run.decode.steps);
  return bytes / std::max(run.decode_seconds, 1e-9) / machine.read_bytes_per_second;
}

struct Verb {
  const char* name;
  double seconds;
};

std::vector<Verb> verbs(const EngineStats& stats) {
  return {{"plan", stats.plan_seconds},     {"draft", stats.draft_seconds},   {"budget", stats.budget_seconds},
          {"select", stats.select_seconds}, {"verify", stats.verify_seconds}, {"accept", stats.accept_seconds},
          {"commit", stats.commit_seconds}, {"emit", stats.emit_seconds}};
}

/// Of a device that runs behind the host; empty for others.
std::string device_line(const EngineStats& stats) {
  if (stats.steps_ahead == 0) return {};
  std::string text = format("               host, from tokens to the next launch: %.1f us",
                            1e6 * stats.turnaround_seconds / static_cast<double>(stats.steps_ahead));
  if (stats.timed_steps > 0) {
    text += format("; device idles %.1f us between steps",
                   1e6 * stats.device_idle_seconds / static_cast<double>(stats.timed_steps));
  }
  return text + format("; passes replayed %lld, captured %lld, eager %lld; %lld graphs, %.1f MB, %.2f s\n",
                       static_cast<long long>(stats.graph_replays), static_cast<long long>(stats.graph_captures),
                       static_cast<long long>(stats.graph_eager_passes), static_cast<long long>(stats.graphs),
                       static_cast<double>(stats.graph_bytes) / 1e6, stats.graph_capture_seconds);
}

/// Of speculation under a row budget; empty where none cut anything.
std::string budget_line(const EngineStats& stats) {
  const BudgetStats& budget = stats.budget;
  if (budget.ratios.empty() && budget.steps_undrafted == 0) return {};
  const auto number = [](std::int64_t value) { return static_cast<long long>(value); };
  std::string text = format("               row budget: offered %lld, kept %lld, accepted %lld; steps by share kept",
                            number(stats.drafted_tokens), number(stats.verified_tokens), number(stats.accepted_tokens));
  for (const RatioCount& count : budget.ratios) text += format(" %g: %lld", count.ratio, number(count.steps));
  text += format("; undrafted %lld, probes %lld\n", number(budget.steps_undrafted), number(budget.probe_steps));
  if (budget.predicted_steps > 0 && budget.measured_seconds > 0) {
    const auto steps = static_cast<double>(budget.predicted_steps);
    text += format("               cost model: %.2f ms/step predicted, %.2f measured, off by %.1f %% in the mean",
                   1e3 * budget.predicted_seconds / steps, 1e3 * budget.measured_seconds / steps,
                   100 * budget.error_seconds / budget.measured_seconds);
    text += format("; calibration error %.1f %% (raw %.1f %%)\n", 100 * budget.calibration_error,
                   100 * budget.raw_calibration_error);
  }
  return text;
}

/// Of sparse passes; empty where there were none.
std::string sparse_line(const EngineStats& stats) {
  return stats.sparse.sparse_passes == 0 ? "" : "               " + stats.sparse.to_string() + "\n";
}

std::string run_lines(const char* mode, const BenchRun& run, const BenchMachine& machine, const EngineInfo& info) {
  const double steps = static_cast<double>(std::max<std::int64_t>(run.decode.steps, 1));
  std::string text = format("  %-11s  prompt %8.1f tokens/s   decoding %8.1f tokens/s   %8.2f ms/step   tau %5.2f",
                            mode, run.prompt_tokens_per_second(), run.decode_tokens_per_second(),
                            run.milliseconds_per_step(), run.decode.acceptance_length());
  if (const auto share = read_share(run, machine, info)) text += format("   reads %3.0f %%", 100 * *share);
  text += format("   overhead %4.1f %%\n", 100 * run.overhead());
  text += "               ms/step:";
  for (const Verb& verb : verbs(run.decode)) text += format("  %s %.2f", verb.name, 1e3 * verb.seconds / steps);
  return text + "\n" + sparse_line(run.decode) + budget_line(run.decode) + device_line(run.decode);
}

Json run_json(const BenchRun& run, const BenchMachine& machine, const EngineInfo& info) {
  const double steps = static_cast<double>(std::max<std::int64_t>(run.decode.steps, 1));
  Json by_verb;
  for (const Verb& verb : verbs(run.decode)) by_verb[verb.name] = 1e3 * verb.seconds / steps;
  const auto share = read_share(run, machine, info);
  return {{"prompt_tokens_per_second", run.prompt_tokens_per_second()},
          {"decode_tokens_per_second", run.decode_tokens_per_second()},
          {"ms_per_step", run.milliseconds_per_step()},
          {"ms_per_step_by_verb", by_verb},
          {"acceptance_length", run.decode.acceptance_length()},
          {"drafted_tokens", run.decode.drafted_tokens},
          {"accepted_tokens", run.decode.accepted_tokens},
          {"sparse", to_json(run.decode.sparse)},
          {"read_share", share ? Json(*share) : Json()},
          {"overhead", run.overhead()}};
}

std::string equality(const BenchCase& result) {
  const BenchDifference difference = compare(*result.plain, *result.speculative);
  if (difference.sequences == 0) return "outputs equal";
  return format("%d of %d outputs differ, first at token %d (smallest margin of that sequence %.2g)",
                difference.sequences, result.batch, difference.first_position, static_cast<double>(difference.margin));
}

double ratio(const BenchCase& result) {
  return result.speculative->decode_tokens_per_second() / result.plain->decode_tokens_per_second();
}

}  // namespace

BenchMachine describe_machine(int threads, const std::string& device, double read_bytes_per_second) {
  BenchMachine machine;
  machine.read_bytes_per_second = read_bytes_per_second;
  machine.threads = threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    machine.processor = line.substr(std::min(line.find(':') + 2, line.size()));
    break;
  }
  if (read_bytes_per_second <= 0 && device.starts_with("cpu")) {
    machine.read_bytes_per_second = measure_read_bandwidth(machine.threads);
  }
  return machine;
}

std::string bench_heading(const BenchMachine& machine, const EngineInfo& info, const std::string& prompt_source,
                          int max_tokens, int repetitions) {
  std::string text = info.architecture + ", " + to_string(info.dtype) + " on " + info.device + ", drafter " +
                     (info.drafter.empty() ? "none" : info.drafter) + ", sparse passes " + info.sparse_text() +
                     ", weights " + format_bytes(static_cast<double>(info.weight_bytes)) + "\n";
  text += machine.processor + format(", %d threads", machine.threads);
  text += machine.read_bytes_per_second > 0
              ? "; " + info.device + " reads memory at " + format_bytes(machine.read_bytes_per_second) + "/s\n"
              : "; how fast " + info.device + " reads memory is not measured here: --rate says it\n";
  text += format("greedy, %d tokens a sequence, median of %d interleaved runs, prompts: ", max_tokens, repetitions) +
          prompt_source + "\n";
  text +=
      "tau: committed tokens per sequence and decoding pass, bonus included; reads: weight bytes x steps/s over the "
      "rate; overhead: time of a step outside operations\n";
  return text;
}

std::string bench_lines(const BenchCase& result, const BenchMachine& machine, const EngineInfo& info) {
  std::string text = format("\nbatch %d, context %d\n", result.batch, result.context);
  text += run_lines("plain", *result.plain, machine, info);
  if (result.speculative != nullptr) {
    text += run_lines("speculative", *result.speculative, machine, info);
    text += format("  speculation is %.2f x plain; ", ratio(result)) + equality(result) + "\n";
  }
  return text;
}

Json bench_json(const BenchCase& result, const BenchMachine& machine, const EngineInfo& info) {
  Json json = {{"batch", result.batch}, {"context", result.context}, {"plain", run_json(*result.plain, machine, info)}};
  if (result.speculative == nullptr) return json;
  const BenchDifference difference = compare(*result.plain, *result.speculative);
  json["speculative"] = run_json(*result.speculative, machine, info);
  json["speculative"]["row_budget"] = row_budget_json(result.speculative->decode);
  json["ratio"] = ratio(result);
  json["equal"] = difference.sequences == 0;
  if (difference.sequences > 0) {
    json["difference"] = {{"sequences", difference.sequences},
                          {"first_position", difference.first_position},
                          {"smallest_margin", difference.margin}};
  }
  return json;
}

}  // namespace fastspec::cli
