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
  int max_length = 0;              // of one sequence, its decoded tokens included: context and growth()
  std::int64_t max_num_slots = 0;  // KV slots that the largest point needs: batch times length
  /// Speculative steps with a SYNTHETIC acceptance: a chain of this many tokens is proposed for every sequence, and the
  /// weights (a final norm of zeros: all logits are equal, the lowest token wins) make the target accept as many of
  /// them as was asked for. Everything else of the step is real. 0 = plain decoding only.
  int synthetic_rows = 0;
  double synthetic_acceptance = 0;  // proposed tokens accepted a sequence and step, in [0, synthetic_rows]; tau - 1
  /// How often an accepted token's confidence is above a refused one's (AUC), in [0.5, 1); 0 = no confidences. What a
  /// row budget that cuts goes by.
  double synthetic_ranking = 0;
  /// Layers of a DFlash drafter with random weights and blocks of 1 + synthetic_rows, which does all its work before
  /// its proposals give way to the synthetic ones; 0 = no drafter runs.
  int dflash_layers = 0;
  /// A LongSpec drafter with random weights likewise drafts chains of synthetic_rows tokens. One of the two at most.
  bool longspec = false;
  int draft_vocabulary = 0;  // tokens that it may propose; 0 = all of the target's
  /// Sparse passes of speculative steps: "streaming", "history" or "dustin", whose signals are those of up to four
  /// heads of one K/V head, in the target's middle layer and, for half of what dustin chooses, in the LongSpec drafter.
  SparseConfig sparse;

  /// @throws Error(kInvalidArgument).
  void validate() const;
  /// Tokens that a sequence may grow by in measure(), and with one repetition in trace().
  int growth(int steps, int repetitions) const;
};

/// What a point of the grid cost.
struct ShapePoint {
  int batch = 0;
  int context = 0;                   // tokens of a sequence when the first timed step begins, mean over the batch
  int synthetic_rows = 0;            // proposed for every sequence; 0 = plain decoding
  std::vector<double> milliseconds;  // a step, of each run
  EngineStats stats;                 // of the timed steps only
  double weight_bytes = 0;           // read in a step
  double kv_bytes = 0;  // read in a step, mean over the timed ones; those that are read for scores not counted

  double median_milliseconds() const;
  /// Of all sequences together, at the median.
  double tokens_per_second() const;
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
  /// runs of `steps`. @param speculative with the config's synthetic rows and acceptance.
  /// @throws Error(kOutOfMemory, kInvalidArgument) for a point beyond the config.
  ShapePoint measure(int batch, int context, int steps, int repetitions, bool speculative = false);
  /// Where the time of such steps goes, kernel by kernel, in a run of its own: recording slows the host.
  /// @throws Error(kUnsupported) as Engine::start_trace, else as measure().
  StepTrace trace(int batch, int context, int steps, bool speculative = false);
  /// Records the passes of all batches of up to `batch` sequences. @returns what that took: `graphs`, `graph_bytes`,
  /// `graph_capture_seconds`, and `step_seconds` with the first passes that go before each recording.
  EngineStats record_graphs(int batch);
  const EngineInfo& info() const;
  /// Of speculative measurements from now on: as Engine::set_row_budget. Other than off, as many tokens as were asked
  /// for are accepted only where none that would have been is cut.
  void set_row_budget(const std::string& mode);
  /// Steps before the timed ones; sequences grow by them.
  static constexpr int kWarmUpSteps = 5;

 private:
  /// Sequences with room for `growth` more tokens, ready to decode.
  std::vector<RequestId> start_sequences(int batch, int context, int growth, bool speculative);
  void end_sequences(const std::vector<RequestId>& ids);
  /// Milliseconds a step.
  double run_steps(int steps, const ShapePoint& point);

  /// Dense passes read tokens of sparse ones again.
  bool reads_again() const {
    const SparseConfig& sparse = config_.sparse;
    return sparse.enabled() && (sparse.guarantee == Guarantee::kExact || sparse.refresh_interval > 0);
  }

  ShapeBenchmarkConfig config_;
  bool cuts_ = false;  // a row budget may cut drafts
  std::unique_ptr<EngineCore> core_;
};

/// config.json of a shape: qwen2.5-7b, llama-3.1-8b, qwen3-8b, or the text of the file that a path names.
/// @throws Error(kNotFound, kInvalidFile, kUnsupported).
std::string shape_json(const std::string& shape);

}  // namespace fastspec
