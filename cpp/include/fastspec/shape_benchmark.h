// Cost of decoding a model of a given shape without its files: random weights, and a KV cache that holds noise.
#pragma once

#include <fastspec/engine.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fastspec {

struct ShapeBenchmarkConfig {
  std::string shape = "qwen2.5-7b";  // or llama-3.1-8b, qwen3-8b, or the path of a config.json
  std::string device = "cpu";
  DType dtype = DType::kBFloat16;
  int page_size = 16;
  int num_threads = 0;
  int max_batch = 1;               // of all points
  int max_length = 0;              // of one sequence, its decoded tokens included
  std::int64_t max_num_slots = 0;  // KV slots that the largest point needs: batch times length
};

/// What a point of the grid cost.
struct ShapePoint {
  int batch = 0;
  int context = 0;                   // tokens of every sequence when the first timed step begins
  std::vector<double> milliseconds;  // a step, of each run
  EngineStats stats;                 // of the timed steps only
  double weight_bytes = 0;           // read in a step
  double kv_bytes = 0;               // read in a step, mean over the timed ones

  double median_milliseconds() const;
  /// Milliseconds that memory alone takes at `bytes_per_second`.
  double roofline_milliseconds(double bytes_per_second) const;
  /// Milliseconds from a step's tokens to the launch of the next pass, by the host's clock; on a device that runs with
  /// the host, those of a step outside operations' wait: all but accept.
  double host_gap_milliseconds() const;
  /// Milliseconds that the device idles between two steps, and that it takes for one, by its own clock; 0 where it has
  /// none.
  double device_idle_milliseconds() const;
  double device_busy_milliseconds() const;
};

class ShapeBenchmark {
 public:
  /// Makes weights and engine. @throws Error as Engine::create.
  explicit ShapeBenchmark(const ShapeBenchmarkConfig& config);
  ~ShapeBenchmark();
  ShapeBenchmark(const ShapeBenchmark&) = delete;
  ShapeBenchmark& operator=(const ShapeBenchmark&) = delete;

  /// Decodes `batch` sequences greedily from `context` tokens on: a few steps that are not timed, then `repetitions`
  /// runs of `steps`. @throws Error(kOutOfMemory, kInvalidArgument) for a point beyond the config.
  ShapePoint measure(int batch, int context, int steps, int repetitions);
  /// Records the passes of all batches of up to `batch` sequences. @returns what that took: `graphs`, `graph_bytes`,
  /// `graph_capture_seconds`, and `step_seconds` with the first passes that go before each recording.
  EngineStats record_graphs(int batch);
  const EngineInfo& info() const;
  /// Steps before the timed ones; sequences grow by them.
  static constexpr int kWarmUpSteps = 5;

 private:
  std::unique_ptr<EngineCore> core_;
};

}  // namespace fastspec
