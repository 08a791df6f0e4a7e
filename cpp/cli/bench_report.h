// What the benchmark prints.
#pragma once

#include <fastspec/engine.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/bench_measure.h"

namespace fastspec::cli {

struct BenchMachine {
  std::string processor;
  int threads = 0;
  double read_bytes_per_second = 0;  // of the device's memory; 0 = not known
};

/// Plain decoding and, where a drafter is configured, speculation, each by its median run.
struct BenchCase {
  int batch = 0;
  int context = 0;
  const BenchRun* plain = nullptr;
  const BenchRun* speculative = nullptr;  // or null
};

/// Name of the processor and the number of threads, and the read rate of the device: as given, or else, on the CPU,
/// measured.
BenchMachine describe_machine(int threads, const std::string& device, double read_bytes_per_second);

std::string bench_heading(const BenchMachine& machine, const EngineInfo& info, const std::string& prompt_source,
                          int max_tokens, int repetitions);
/// The lines of one case, for people.
std::string bench_lines(const BenchCase& result, const BenchMachine& machine, const EngineInfo& info);
nlohmann::ordered_json bench_json(const BenchCase& result, const BenchMachine& machine, const EngineInfo& info);

}  // namespace fastspec::cli
