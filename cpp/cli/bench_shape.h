// fastspec-cli bench --shape: what decoding of a shape costs, without a model's files.
#pragma once

#include <fastspec/shape_benchmark.h>

#include <string>
#include <vector>

namespace fastspec::cli {

struct ShapeBenchOptions {
  ShapeBenchmarkConfig config;  // its sizes are set to what the grid needs
  std::vector<int> batches;
  std::vector<int> contexts;
  int steps = 20;
  int repetitions = 5;
  int trace_steps = 0;          // recorded kernel by kernel after all timed runs, on a GPU
  double bytes_per_second = 0;  // of the roofline
  bool json = false;
};

/// Measures every point of the grid and prints it. Returns the exit code.
int run_shape_bench(ShapeBenchOptions options);

/// "1K" and "32K" are 1024 and 32768. @throws Error(kInvalidArgument) naming `option`.
std::vector<int> parse_lengths(const std::string& option, const std::vector<std::string>& texts);

}  // namespace fastspec::cli
