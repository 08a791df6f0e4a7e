// See fastspec/shape_benchmark.h.
#include <fastspec/shape_benchmark.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/engine_core.h"
#include "model/random_weights.h"
#include "model/shapes.h"

namespace fastspec {
namespace {

std::unique_ptr<EngineCore> make_core(const ShapeBenchmarkConfig& config) {
  EngineParts parts;
  parts.model = shape_config(config.shape);
  parts.dtype = config.dtype;
  parts.backend = make_backend(config.device, config.dtype, config.num_threads);
  parts.weights = random_weights(parts.model, config.dtype, *parts.backend.device);

  constexpr int kUsualRows = 512;
  const KvShape kv{parts.model.num_layers, parts.model.num_kv_heads, parts.model.head_dim, config.dtype};
  EngineConfig engine;
  engine.model = config.shape;
  engine.device = config.device;
  engine.dtype = config.dtype;
  engine.max_model_len = config.max_length;
  engine.max_num_seqs = config.max_batch;
  engine.max_batch_rows = std::max(kUsualRows, config.max_batch);
  engine.page_size = config.page_size;
  engine.num_threads = config.num_threads;
  // A page that is not full for every sequence, and one for padding.
  const std::int64_t slots = config.max_num_slots + std::int64_t{config.max_batch + 1} * config.page_size;
  engine.kv_cache_bytes = slots * static_cast<std::int64_t>(kv.bytes_per_token());
  return std::make_unique<EngineCore>(engine, std::move(parts));
}

double mean_milliseconds(double seconds, std::int64_t count) {
  return count == 0 ? 0 : 1e3 * seconds / static_cast<double>(count);
}

double read_weight_bytes(const Transformer& model) {
  double bytes = static_cast<double>(model.weights().bytes());
  const Weight& embedding = model.weights().embedding;
  if (model.config().tie_word_embeddings) return bytes;  // read as the LM head
  return bytes - static_cast<double>(embedding.out_features) * embedding.in_features *
                     static_cast<double>(size_of(embedding.dtype));
}

}  // namespace

double ShapePoint::median_milliseconds() const {
  std::vector<double> sorted = milliseconds;
  std::sort(sorted.begin(), sorted.end());
  return sorted.empty() ? 0 : sorted[sorted.size() / 2];
}

double ShapePoint::roofline_milliseconds(double bytes_per_second) const {
  return 1e3 * (weight_bytes + kv_bytes) / bytes_per_second;
}

double ShapePoint::host_gap_milliseconds() const {
  if (stats.steps_ahead > 0) return mean_milliseconds(stats.turnaround_seconds, stats.steps_ahead);
  return mean_milliseconds(stats.step_seconds - stats.accept_seconds, stats.steps);
}

double ShapePoint::device_idle_milliseconds() const {
  return mean_milliseconds(stats.device_idle_seconds, stats.timed_steps);
}

double ShapePoint::device_busy_milliseconds() const {
  return mean_milliseconds(stats.device_busy_seconds, stats.timed_steps);
}

ShapeBenchmark::ShapeBenchmark(const ShapeBenchmarkConfig& config) : core_(make_core(config)) {}
ShapeBenchmark::~ShapeBenchmark() = default;

const EngineInfo& ShapeBenchmark::info() const {
  return core_->info();
}

EngineStats ShapeBenchmark::record_graphs(int batch) {
  const Clock::time_point start = Clock::now();
  core_->record_graphs(batch);
  EngineStats stats = core_->stats();
  stats.step_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return stats;
}

ShapePoint ShapeBenchmark::measure(int batch, int context, int steps, int repetitions) {
  const int decoded = kWarmUpSteps + steps * repetitions;
  if (context < 2 || context + decoded > core_->config().max_model_len) {
    fail(ErrorCode::kInvalidArgument, "context ", context, " and ", decoded, " decoded tokens: a sequence has 2 to ",
         core_->config().max_model_len, " tokens");
  }
  Request request;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = decoded + 1;
  request.sampling.ignore_eos = true;
  std::vector<RequestId> ids;
  for (int i = 0; i < batch; ++i) {
    request.prompt_token_ids.assign(static_cast<std::size_t>(context), 7 + i);
    ids.push_back(core_->submit(request));
  }
  core_->start_on_noise();
  for (int i = 0; i < kWarmUpSteps; ++i) core_->step();
  core_->reset_stats();

  ShapePoint point{.batch = batch, .context = context + kWarmUpSteps};
  for (int run = 0; run < repetitions; ++run) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < steps; ++i) {
      const StepReport report = core_->step();
      FS_CHECK(report.num_sequences == batch && report.num_rows == batch, "a step of ", report.num_rows, " rows of ",
               report.num_sequences, " sequences");
      for (const Output& output : report.outputs) {
        if (!output.finished()) continue;
        fail(ErrorCode::kInternal, "a sequence ended early: ", to_string(output.finish_reason), " ", output.error);
      }
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    point.milliseconds.push_back(1e3 * seconds / steps);
  }
  point.stats = core_->stats();
  point.weight_bytes = read_weight_bytes(core_->target());
  const double mean_length = point.context + (steps * repetitions - 1) / 2.0;
  point.kv_bytes = batch * mean_length * static_cast<double>(core_->info().kv_bytes_per_token);
  for (const RequestId id : ids) core_->cancel(id);
  while (core_->has_work()) core_->step();
  return point;
}

}  // namespace fastspec
