// See fastspec/shape_benchmark.h.
#include <fastspec/shape_benchmark.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "base/check.h"
#include "draft/dflash/dflash_model.h"
#include "draft/longspec/longspec_model.h"
#include "engine/engine_core.h"
#include "engine/synthetic_drafter.h"
#include "model/random_weights.h"
#include "model/shapes.h"
#include "sparse/selector_factory.h"

namespace fastspec {
namespace {

constexpr int kMaxSyntheticRows = 255;
constexpr int kMaxDraftLayers = 64;

/// Zeros in place of the final norm: every logit is 0, and of equals the lowest token is drawn. What follows reads and
/// computes as much as before.
void make_draws_known(Weights& weights, Device& device) {
  const std::vector<float> zeros(static_cast<std::size_t>(weights.final_norm.size), 0.0f);
  const std::size_t bytes = zeros.size() * sizeof(float);
  const Buffer& buffer = weights.buffers.emplace_back(device.allocate(bytes, "the final norm"));
  device.copy_to_device(buffer.data(), zeros.data(), bytes);
  weights.final_norm.data = buffer.as<const float>();
}

/// Tokens of a sequence that a dense pass has still to confirm.
int most_provisional(const ShapeBenchmarkConfig& config) {
  return config.sparse.enabled() && config.sparse.guarantee == Guarantee::kExact ? kMaxRefreshInterval : 0;
}

/// Makes the drafter that does its work behind synthetic proposals, if there is one.
void add_drafter(const ShapeBenchmarkConfig& config, EngineParts& parts, SpeculationConfig& speculation) {
  const SyntheticDrafter::Options options{.rows = config.synthetic_rows,
                                          .acceptance = config.synthetic_acceptance,
                                          .ranking_power = config.synthetic_ranking};
  if (config.dflash_layers == 0 && !config.longspec) {
    parts.drafter = std::make_unique<SyntheticDrafter>(options);
    return;
  }
  Device& device = *parts.backend.device;
  speculation.drafter.model = "random weights";
  if (config.longspec) {
    parts.draft_model = random_longspec(config.draft_vocabulary, parts.model, parts.weights, config.dtype, device);
    speculation.drafter.kind = "longspec";
    speculation.drafter.tree_widths.assign(static_cast<std::size_t>(config.synthetic_rows), 1);
  } else {
    parts.draft_model = random_dflash(config.dflash_layers, 1 + config.synthetic_rows, parts.model, parts.weights,
                                      config.dtype, device);
    speculation.drafter.kind = "dflash";
  }
  parts.wrap_drafter = [options](std::unique_ptr<Drafter> inner) {
    return std::make_unique<SyntheticDrafter>(options, std::move(inner));
  };
}

/// What a profile of a large model comes to (Dustin, arXiv 2606.24957): four heads of a layer, half of the choice by
/// lookahead. Which ones is all the same to weights that are noise.
SelectorPlan usual_plan(const SparseConfig& sparse, const ModelConfig& target) {
  constexpr int kNamedHeads = 4;
  SelectorPlan plan{.shape = {.budget = sparse.kv_budget, .sinks = sparse.sinks, .recent = sparse.recent}};
  if (sparse.selector == "streaming") return plan;
  std::vector<int> heads(static_cast<std::size_t>(std::min(kNamedHeads, target.num_heads / target.num_kv_heads)));
  std::iota(heads.begin(), heads.end(), 0);
  plan.history = {{.layer = target.num_layers / 2, .heads = heads}};
  if (sparse.selector != "dustin") return plan;
  plan.lookahead = {{.layer = 0, .heads = heads}};
  plan.shape.lookahead_slots = (sparse.kv_budget - sparse.sinks - sparse.recent) / 2;
  return plan;
}

std::unique_ptr<EngineCore> make_core(const ShapeBenchmarkConfig& config) {
  config.validate();
  EngineParts parts;
  parts.model = shape_config(config.shape);
  parts.dtype = config.dtype;
  parts.backend = make_backend(config.device, config.dtype, config.num_threads);
  parts.weights = random_weights(parts.model, config.dtype, *parts.backend.device);
  EngineConfig engine;
  if (config.synthetic_rows > 0) {
    make_draws_known(parts.weights, *parts.backend.device);
    add_drafter(config, parts, engine.speculation);
  }
  engine.sparse = config.sparse;
  if (config.sparse.enabled()) parts.selector_plan = usual_plan(config.sparse, parts.model);
  if (config.sparse.selector == "dustin") engine.sparse.manifest = "random weights";

  constexpr int kUsualRows = 512;
  const int rows = 1 + config.synthetic_rows + most_provisional(config);
  const int layers = parts.model.num_layers + config.dflash_layers;
  const KvShape kv{layers, parts.model.num_kv_heads, parts.model.head_dim, config.dtype};
  engine.model = config.shape;
  engine.device = config.device;
  engine.dtype = config.dtype;
  engine.max_model_len = config.max_length;
  engine.max_num_seqs = config.max_batch;
  engine.max_batch_rows = std::max(kUsualRows, config.max_batch * rows);
  engine.page_size = config.page_size;
  engine.num_threads = config.num_threads;
  // A page that is not full for every sequence, one for padding, one that scratch does not fill.
  const std::int64_t slots = config.max_num_slots + std::int64_t{config.max_batch} * (rows - 1) +
                             std::int64_t{config.max_batch + 2} * config.page_size;
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

void ShapeBenchmarkConfig::validate() const {
  if (synthetic_rows < 0 || synthetic_rows > kMaxSyntheticRows) {
    fail(ErrorCode::kInvalidArgument, "synthetic_rows is ", synthetic_rows, ", expected 0 to ", kMaxSyntheticRows);
  }
  if (!(synthetic_acceptance >= 0 && synthetic_acceptance <= synthetic_rows)) {
    fail(ErrorCode::kInvalidArgument, "synthetic_acceptance is ", synthetic_acceptance, ", with ", synthetic_rows,
         " synthetic rows it lies in 0 to ", synthetic_rows);
  }
  if (synthetic_ranking != 0 && !(synthetic_ranking >= 0.5 && synthetic_ranking < 1)) {
    fail(ErrorCode::kInvalidArgument, "synthetic_ranking is ", synthetic_ranking,
         ", expected 0 (no confidences) or an AUC of at least 0.5 and less than 1");
  }
  if (dflash_layers < 0 || dflash_layers > kMaxDraftLayers) {
    fail(ErrorCode::kInvalidArgument, "dflash_layers is ", dflash_layers, ", expected 0 to ", kMaxDraftLayers);
  }
  constexpr std::array kSelectors = {"", "streaming", "history", "dustin"};
  if (std::find(kSelectors.begin(), kSelectors.end(), sparse.selector) == kSelectors.end()) {
    fail(ErrorCode::kInvalidArgument, "sparse is \"", sparse.selector,
         "\": of a shape streaming, history and dustin can be measured");
  }
  if (synthetic_rows == 0 && (synthetic_ranking != 0 || dflash_layers != 0 || longspec || sparse.enabled())) {
    fail(ErrorCode::kInvalidArgument,
         "synthetic_ranking, dflash_layers, longspec and sparse have no effect without synthetic_rows");
  }
  if (longspec && dflash_layers > 0) {
    fail(ErrorCode::kInvalidArgument, "longspec and dflash_layers: one drafter works beside synthetic proposals");
  }
  if (draft_vocabulary < 0 || (draft_vocabulary > 0 && !longspec)) {
    fail(ErrorCode::kInvalidArgument, "draft_vocabulary is ", draft_vocabulary,
         ", expected 0 (all tokens) or tokens that longspec may propose");
  }
  if (sparse.selector == "dustin" && !longspec) {
    fail(ErrorCode::kInvalidArgument, "sparse \"dustin\" looks ahead by a drafter's queries and needs longspec");
  }
}

int ShapeBenchmarkConfig::growth(int steps, int repetitions) const {
  const int all_steps = ShapeBenchmark::kWarmUpSteps + steps * repetitions;
  // The last step too has room for everything that it proposes.
  return all_steps * (1 + static_cast<int>(std::ceil(synthetic_acceptance))) + synthetic_rows +
         most_provisional(*this) + 1;
}

double ShapePoint::median_milliseconds() const {
  std::vector<double> sorted = milliseconds;
  std::sort(sorted.begin(), sorted.end());
  return sorted.empty() ? 0 : sorted[sorted.size() / 2];
}

double ShapePoint::tokens_per_second() const {
  if (stats.steps == 0) return 0;
  const double tokens_per_step = static_cast<double>(stats.generated_tokens) / static_cast<double>(stats.steps);
  return 1e3 * tokens_per_step / median_milliseconds();
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

ShapeBenchmark::ShapeBenchmark(const ShapeBenchmarkConfig& config) : config_(config), core_(make_core(config)) {}
ShapeBenchmark::~ShapeBenchmark() = default;

const EngineInfo& ShapeBenchmark::info() const {
  return core_->info();
}

void ShapeBenchmark::set_row_budget(const std::string& mode) {
  core_->set_row_budget(mode);
  cuts_ = mode != "off";
}

EngineStats ShapeBenchmark::record_graphs(int batch) {
  const Clock::time_point start = Clock::now();
  core_->record_graphs(batch);
  EngineStats stats = core_->stats();
  stats.step_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return stats;
}

std::vector<RequestId> ShapeBenchmark::start_sequences(int batch, int context, int growth, bool speculative) {
  if (context < 2 || context + growth > core_->config().max_model_len) {
    fail(ErrorCode::kInvalidArgument, "context ", context, " and up to ", growth,
         " decoded tokens: a sequence has 2 to ", core_->config().max_model_len, " tokens");
  }
  if (speculative && config_.synthetic_rows == 0) {
    fail(ErrorCode::kInvalidArgument, "a speculative measurement needs synthetic_rows");
  }
  Request request;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = growth;
  request.sampling.ignore_eos = true;
  request.speculation.enabled = speculative;
  request.sparse = speculative && config_.sparse.enabled();
  std::vector<RequestId> ids;
  for (int i = 0; i < batch; ++i) {
    request.prompt_token_ids.assign(static_cast<std::size_t>(context), 7 + i);
    ids.push_back(core_->submit(request));
  }
  core_->start_on_noise();
  return ids;
}

void ShapeBenchmark::end_sequences(const std::vector<RequestId>& ids) {
  for (const RequestId id : ids) core_->cancel(id);
  while (core_->has_work()) core_->step();
}

ShapePoint ShapeBenchmark::measure(int batch, int context, int steps, int repetitions, bool speculative) {
  const std::vector<RequestId> ids = start_sequences(batch, context, config_.growth(steps, repetitions), speculative);
  core_->reset_stats();
  for (int i = 0; i < kWarmUpSteps; ++i) core_->step();
  const double warmed = context + static_cast<double>(core_->stats().generated_tokens) / batch;
  core_->reset_stats();

  ShapePoint point{
      .batch = batch, .context = static_cast<int>(warmed), .synthetic_rows = speculative ? config_.synthetic_rows : 0};
  for (int run = 0; run < repetitions; ++run) point.milliseconds.push_back(run_steps(steps, point));
  point.stats = core_->stats();
  if (speculative && !cuts_ && !reads_again()) {
    const double wanted = config_.synthetic_acceptance * static_cast<double>(point.stats.decoding_passes);
    const double off = static_cast<double>(point.stats.accepted_tokens) - wanted;
    FS_CHECK(std::abs(off) <= batch, "of the synthetic drafts ", point.stats.accepted_tokens, " were accepted, not ",
             wanted);
  }
  point.weight_bytes = read_weight_bytes(core_->target());
  const double tokens = static_cast<double>(point.stats.generated_tokens) / batch;
  const double mean_length = warmed + (tokens - tokens / (steps * repetitions)) / 2;
  point.kv_bytes = batch * mean_length * static_cast<double>(core_->info().kv_bytes_per_token);
  const SparseStats& sparse = point.stats.sparse;
  if (sparse.sparse_passes > 0) {
    point.kv_bytes = static_cast<double>(sparse.kv_bytes_read) / static_cast<double>(steps * repetitions);
  }
  end_sequences(ids);
  return point;
}

StepTrace ShapeBenchmark::trace(int batch, int context, int steps, bool speculative) {
  core_->start_trace();
  const std::vector<RequestId> ids = start_sequences(batch, context, config_.growth(steps, 1), speculative);
  for (int i = 0; i < kWarmUpSteps + steps; ++i) core_->step();
  StepTrace trace = core_->stop_trace(steps);
  end_sequences(ids);
  return trace;
}

double ShapeBenchmark::run_steps(int steps, const ShapePoint& point) {
  const int num_rows = point.batch * (1 + point.synthetic_rows);
  // A dense pass has rows of provisional tokens, a refresh those of tokens before it and no drafted ones.
  const bool varies = point.synthetic_rows > 0 && reads_again();
  const int most_rows = num_rows + (varies ? point.batch * kMaxRefreshInterval : 0);
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < steps; ++i) {
    const StepReport report = core_->step();
    const bool is_whole = cuts_ || varies ? report.num_rows <= most_rows : report.num_rows == num_rows;
    FS_CHECK(report.num_sequences == point.batch && is_whole, "a step of ", report.num_rows, " rows of ",
             report.num_sequences, " sequences");
    for (const Output& output : report.outputs) {
      if (!output.finished()) continue;
      fail(ErrorCode::kInternal, "a sequence ended early: ", to_string(output.finish_reason), " ", output.error);
    }
  }
  return 1e3 * std::chrono::duration<double>(Clock::now() - start).count() / steps;
}

}  // namespace fastspec
