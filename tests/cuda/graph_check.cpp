// What recorded passes cost, and the device's idle time between steps that they leave, for a shape with random weights.
//   fastspec_cuda_graph_check [--device cuda:0] [--shape qwen2.5-7b] [--batch 64]
// Records the passes of every batch up to --batch: at most 15 s and 2 GB. Then decodes a few points whose passes must
// all be replays, and whose gaps must be under 50 us; gaps are taken from the device's clock. Exit code 1 where a limit
// is passed, 77 where there is no GPU.
#include <fastspec/error.h>
#include <fastspec/shape_benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

namespace fastspec::gpu_check {
namespace {

constexpr double kMostSeconds = 15, kMostBytes = 2e9, kMostIdleMilliseconds = 0.050;
constexpr int kSteps = 40, kRuns = 3;

bool check(bool holds, const char* what) {
  if (!holds) std::printf("FAILED: %s\n", what);
  return holds;
}

bool check_recording(ShapeBenchmark& benchmark, int batch) {
  const EngineStats stats = benchmark.record_graphs(batch);
  std::printf(
      "batch <= %d: %lld graphs, recorded in %.2f s (with their first passes %.2f s), %.1f MB of device memory\n",
      batch, static_cast<long long>(stats.graphs), stats.graph_capture_seconds, stats.step_seconds,
      static_cast<double>(stats.graph_bytes) / 1e6);
  std::fflush(stdout);
  const bool in_time = check(stats.step_seconds < kMostSeconds, "recording takes 15 s or more");
  return check(static_cast<double>(stats.graph_bytes) < kMostBytes, "graphs take 2 GB or more") && in_time;
}

bool check_point(ShapeBenchmark& benchmark, int batch, int context) {
  const ShapePoint point = benchmark.measure(batch, context, kSteps, kRuns);
  const EngineStats& stats = point.stats;
  std::printf(
      "batch %2d context %5d: %7.3f ms/step, device busy %7.3f ms, idle %5.1f us; host %5.1f us from tokens to launch"
      " (plan %.1f, commit %.1f, verify %.1f); report %.1f us behind it\n",
      batch, context, point.median_milliseconds(), point.device_busy_milliseconds(),
      1e3 * point.device_idle_milliseconds(), 1e3 * point.host_gap_milliseconds(),
      1e6 * stats.plan_seconds / static_cast<double>(stats.steps),
      1e6 * stats.commit_seconds / static_cast<double>(stats.steps),
      1e6 * stats.verify_seconds / static_cast<double>(stats.steps),
      1e6 * stats.emit_seconds / static_cast<double>(stats.steps));
  std::fflush(stdout);
  const bool replayed = check(stats.graph_captures == 0 && stats.graph_eager_passes == 0, "a pass was not a replay");
  const bool timed = check(stats.timed_steps > stats.steps / 2, "the device's clock was not read");
  return check(point.device_idle_milliseconds() < kMostIdleMilliseconds, "the device idles 50 us or more") &&
         replayed && timed;
}

int run(ShapeBenchmarkConfig config) {
  constexpr std::pair<int, int> kPoints[] = {{1, 1 << 10}, {1, 32 << 10}, {16, 8 << 10}, {16, 32 << 10}, {64, 2 << 10}};
  const int growth = config.growth(kSteps, kRuns);
  for (const auto& [batch, context] : kPoints) {
    if (batch > config.max_batch) continue;
    config.max_length = std::max(config.max_length, context + growth);
    config.max_num_slots = std::max(config.max_num_slots, std::int64_t{batch} * (context + growth));
  }
  ShapeBenchmark benchmark(config);
  std::printf("%s on %s\n%s", config.shape.c_str(), config.device.c_str(), benchmark.info().to_string().c_str());
  bool holds = check_recording(benchmark, config.max_batch);
  for (const auto& [batch, context] : kPoints) {
    if (batch <= config.max_batch) holds = check_point(benchmark, batch, context) && holds;
  }
  std::printf(holds ? "all limits hold\n" : "limits were passed\n");
  return holds ? 0 : 1;
}

}  // namespace
}  // namespace fastspec::gpu_check

int main(int count, char** arguments) {
  fastspec::ShapeBenchmarkConfig config{.device = "cuda:0", .max_batch = 64};
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string option = arguments[i];
    if (option == "--device") config.device = arguments[i + 1];
    if (option == "--shape") config.shape = arguments[i + 1];
    if (option == "--batch") config.max_batch = std::atoi(arguments[i + 1]);
  }
  try {
    return fastspec::gpu_check::run(config);
  } catch (const fastspec::Error& error) {
    std::printf("%s\n", error.what());
    return error.code() == fastspec::ErrorCode::kUnsupported ? 77 : 1;
  }
}
