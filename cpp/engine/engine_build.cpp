// The part of EngineCore that divides the device's memory and builds what lives in it.
#include <algorithm>
#include <utility>

#include "backend/graph_cache.h"
#include "base/check.h"
#include "base/log.h"
#include "engine/engine_core.h"
#include "sparse/selector_factory.h"

namespace fastspec {

namespace {

/// What graphs may take: the driver's bookkeeping for a kernel, estimated with room, and a layer's kernels.
constexpr std::size_t kBytesPerKernel = 16 << 10;
constexpr int kKernelsPerLayer = 11;

GraphLimits graph_limits(int num_layers) {
  GraphLimits limits;
  limits.bytes = limits.count * static_cast<std::size_t>(num_layers + 1) * kKernelsPerLayer * kBytesPerKernel;
  return limits;
}

}  // namespace

EngineCore::RowLimits EngineCore::row_limits() const {
  const bool drafts = config_.speculation.enabled() || parts_.drafter != nullptr;
  const auto max_nodes = [&] {
    return parts_.drafter != nullptr ? parts_.drafter->shape().max_nodes
                                     : draft_shape(config_.speculation, parts_.draft_model).max_nodes;
  };
  RowLimits limits;
  const int nodes = drafts ? max_nodes() : 0;
  limits.provisional = SparseSteps::longest_run(config_, nodes);
  limits.draft_rows = config_.max_num_seqs * (nodes + limits.provisional);
  limits.logit_rows = std::min(config_.max_batch_rows, config_.max_num_seqs + limits.draft_rows);
  const int pages = (config_.max_model_len + config_.page_size - 1) / config_.page_size;
  limits.pass = {.max_rows = config_.max_batch_rows,
                 .max_sequences = config_.max_num_seqs,
                 .max_list_entries = std::int64_t{config_.max_num_seqs} * pages};
  if (config_.sparse.enabled()) {
    limits.pass.slot_entries =
        std::int64_t{config_.max_num_seqs} * std::min(config_.sparse.kv_budget, config_.max_model_len);
  }
  return limits;
}

WorkspaceLimits EngineCore::workspace_limits(const ModelConfig& model) const {
  return {.max_rows = config_.max_batch_rows,
          .max_sequences = config_.max_num_seqs,
          .max_keys = config_.max_model_len,
          .num_heads = model.num_heads,
          .num_kv_heads = model.num_kv_heads,
          .head_dim = model.head_dim,
          .hidden_size = model.hidden_size,
          .max_scored_rows = selector_needs(row_limits()).max_scored_rows};
}

DraftNeeds EngineCore::draft_needs(const RowLimits& rows) const {
  return fastspec::draft_needs(config_.speculation, parts_.draft_model, parts_.model, parts_.backend, parts_.dtype,
                               draft_limits(rows));
}

DrafterLimits EngineCore::draft_limits(const RowLimits& rows) const {
  DrafterLimits limits{.pass = rows.pass, .page_size = config_.page_size};
  if (selector_plan_) limits.lookahead_layers = selector_plan_->draft_layers();
  return limits;
}

PassTaps EngineCore::pass_taps() const {
  PassTaps taps;
  if (selector_plan_) taps.query_layers = selector_plan_->target_layers();
  if (parts_.drafter != nullptr) {
    taps.hidden_layers = parts_.drafter->needs().hidden_layers;
  } else if (parts_.draft_model) {
    taps.hidden_layers = draft_needs(row_limits()).hidden_layers;
  }
  return taps;
}

SelectorModels EngineCore::selector_models() const {
  SelectorModels models{.target = parts_.model, .fingerprint = parts_.fingerprint};
  models.draft_kind = parts_.drafter != nullptr ? parts_.drafter->name() : config_.speculation.drafter.kind;
  if (!parts_.draft_model) return models;
  // A drafter of one block that has the target's heads, unless it is a transformer of its own.
  const ModelConfig* own = transformer_of(*parts_.draft_model);
  models.drafter = {.fingerprint = parts_.draft_fingerprint,
                    .num_layers = own == nullptr ? 1 : own->num_layers,
                    .num_heads = own == nullptr ? parts_.model.num_heads : own->num_heads};
  return models;
}

SelectorLimits EngineCore::selector_limits(const RowLimits& rows) const {
  return {.max_sequences = config_.max_num_seqs,
          .max_keys = config_.max_model_len,
          .page_size = config_.page_size,
          .pass_rows = 1 + rows.draft_rows / config_.max_num_seqs,
          .lookahead_rows = parts_.draft_model ? draft_needs(rows).lookahead_rows : 0};
}

SelectorNeeds EngineCore::selector_needs(const RowLimits& rows) const {
  if (!selector_plan_) return {};
  return fastspec::selector_needs(config_.sparse, *selector_plan_, parts_.model,
                                  size_of(parts_.backend.ops->activation_dtype()), parts_.dtype, selector_limits(rows));
}

MemoryRequest EngineCore::memory_request(const RowLimits& rows) const {
  const Device& device = *parts_.backend.device;
  const std::size_t element = size_of(parts_.backend.ops->activation_dtype());
  MemoryNeeds needs{.weights = parts_.weights.bytes()};
  needs.activations =
      Transformer::activation_bytes(parts_.model, element, rows.pass.max_rows, rows.logit_rows, pass_taps()) +
      PassBuffers::device_bytes(rows.pass) + selector_needs(rows).memory;
  needs.workspaces = parts_.backend.ops->workspace_bytes(workspace_limits(parts_.model));
  if (device.has_graphs()) needs.graphs = graph_limits(parts_.model.num_layers).bytes;
  std::size_t draft_kv_bytes_per_token = 0;
  if (parts_.draft_model) {
    const DraftNeeds draft = draft_needs(rows);
    draft_kv_bytes_per_token = draft.shared_kv_bytes_per_token;
    needs.draft_weights = draft.weights;
    needs.draft_own_kv = draft.own_kv;
    needs.activations += draft.activations;
    if (device.has_graphs()) needs.graphs += graph_limits(draft.num_layers).bytes;
    if (const ModelConfig* small = transformer_of(*parts_.draft_model)) {
      needs.workspaces =
          std::max(needs.workspaces, parts_.backend.ops->workspace_bytes(workspace_limits(*small)));  // shared
    }
  }
  // One slot takes the K/V of the rows that fill recorded passes up.
  const int num_padding_slots = device.has_graphs() ? 1 : 0;
  return {.kv_bytes_per_token = kv_shape(parts_.model).bytes_per_token(),
          .draft_kv_bytes_per_token = draft_kv_bytes_per_token,
          .selector_bytes_per_page = selector_needs(rows).bytes_per_page,
          .page_size = config_.page_size,
          .max_model_len = config_.max_model_len,
          .max_num_seqs = config_.max_num_seqs,
          .num_scratch_slots = rows.draft_rows + num_padding_slots,
          .kv_cache_bytes = static_cast<std::size_t>(config_.kv_cache_bytes),
          .needs = needs,
          .available_bytes = device.available_bytes(),
          .total_bytes = device.total_bytes(),
          .utilization = config_.gpu_memory_utilization};
}

void EngineCore::plan_memory_and_build() {
  const int model_limit = parts_.model.max_position_embeddings;
  if (config_.max_model_len > model_limit) {
    fail(ErrorCode::kInvalidArgument, "max_model_len is ", config_.max_model_len, ", the model was made for ",
         model_limit, " positions");
  }
  if (config_.max_model_len == 0) config_.max_model_len = model_limit;
  const ModelConfig* small = parts_.draft_model ? transformer_of(*parts_.draft_model) : nullptr;
  if (small != nullptr && small->max_position_embeddings < config_.max_model_len) {
    log(LogLevel::kWarning, "the draft model was made for ", small->max_position_embeddings,
        " positions, sequences may reach ", config_.max_model_len, ": drafts beyond are rarely accepted");
  }

  if (parts_.selector_plan) {
    selector_plan_ = std::move(parts_.selector_plan);
  } else if (parts_.selector == nullptr) {
    selector_plan_ = plan_selector(config_.sparse, selector_models());
  }
  const MemoryRequest request = memory_request(row_limits());
  const MemoryPlan plan = plan_memory(request);
  if (plan.num_pages < (config_.max_model_len + config_.page_size - 1) / config_.page_size) {
    log(LogLevel::kInfo, "the KV cache holds ", plan.num_pages * config_.page_size,
        " tokens: max_model_len is lowered from ", config_.max_model_len);
    config_.max_model_len = plan.num_pages * config_.page_size;
  }
  fill_info(request, plan);
  log(LogLevel::kInfo, "memory\n", info_.memory_text());
  build(row_limits(), plan);
}

void EngineCore::build(const RowLimits& rows, const MemoryPlan& plan) {
  Backend& backend = parts_.backend;
  const SelectorLimits selector_limits = this->selector_limits(rows);  // while the draft model is here
  backend.ops->reserve(workspace_limits(parts_.model));
  if (const ModelConfig* small = parts_.draft_model ? transformer_of(*parts_.draft_model) : nullptr) {
    backend.ops->reserve(workspace_limits(*small));
  }
  target_ = std::make_unique<Transformer>(parts_.model, std::move(parts_.weights), backend, rows.pass.max_rows,
                                          rows.logit_rows, pass_taps());
  const int all_pages = plan.num_pages + plan.num_scratch_pages;
  target_kv_ = std::make_unique<KvPool>(*backend.device, kv_shape(parts_.model), all_pages, config_.page_size);
  kv_ = std::make_unique<PagedKvCache>(plan.num_pages, plan.num_scratch_pages, config_.page_size);
  const GraphLimits draft_graphs = parts_.draft_model ? graph_limits(draft_needs(rows).num_layers) : GraphLimits{};
  if (parts_.drafter == nullptr) {
    DrafterLimits limits = draft_limits(rows);
    limits.num_pages = all_pages;
    limits.graphs = draft_graphs;
    parts_.drafter = make_drafter(config_.speculation, std::move(parts_.draft_model),
                                  {parts_.model, target_->weights(), *target_kv_, target_->kept_hidden()}, backend,
                                  parts_.dtype, limits);
  }
  if (selector_plan_) {
    const Lookahead* lookahead = parts_.drafter == nullptr ? nullptr : parts_.drafter->lookahead();
    parts_.selector = make_selector(config_.sparse, *selector_plan_, backend,
                                    {*target_, *target_kv_, all_pages, lookahead}, selector_limits);
  }
  warn_of_sparse(rows);
  info_.selector = parts_.selector == nullptr ? "none" : parts_.selector->name();
  if (parts_.selector != nullptr) {
    info_.kv_budget = config_.sparse.kv_budget;
    info_.guarantee = config_.sparse.guarantee;
  }
  // Behind the selector, which reads on what the drafter itself drafts.
  if (parts_.wrap_drafter) parts_.drafter = parts_.wrap_drafter(std::move(parts_.drafter));
  info_.drafter = parts_.drafter == nullptr ? "none" : parts_.drafter->name();

  SchedulerLimits limits{.max_num_seqs = config_.max_num_seqs,
                         .max_batch_rows = config_.max_batch_rows,
                         .kv_budget = config_.sparse.kv_budget,
                         .max_provisional = rows.provisional};
  if (parts_.drafter != nullptr) {
    limits.max_tree_nodes = parts_.drafter->shape().max_nodes;
    limits.max_tree_depth = parts_.drafter->shape().max_depth;
  }
  scheduler_ = std::make_unique<Scheduler>(limits, *kv_);
  runner_ = std::make_unique<StepRunner>(backend, *target_, *target_kv_, *kv_, *scheduler_, parts_.drafter.get(),
                                         parts_.selector.get(),
                                         StepRunner::Options{.budget = config_.speculation.budget,
                                                             .sparse = config_.sparse,
                                                             .max_provisional = rows.provisional,
                                                             .pass = rows.pass,
                                                             .graphs = graph_limits(parts_.model.num_layers)});
}

void EngineCore::warn_of_sparse(const RowLimits& rows) const {
  if (parts_.selector == nullptr) return;
  if (config_.sparse.guarantee == Guarantee::kExact && rows.provisional == 0) {
    log(LogLevel::kWarning,
        "no sparse pass will come: a dense pass needs rows for what it confirms, and max_batch_rows ",
        config_.max_batch_rows, " are one for each of max_num_seqs ", config_.max_num_seqs);
  } else if (config_.max_model_len <= config_.sparse.kv_budget) {
    log(LogLevel::kWarning, "no sparse pass will come: max_model_len is ", config_.max_model_len, ", which fits the ",
        config_.sparse.kv_budget, " keys of kv_budget");
  }
}

void EngineCore::fill_info(const MemoryRequest& request, const MemoryPlan& plan) {
  info_.architecture = parts_.model.architecture;
  info_.device = config_.device;
  info_.dtype = parts_.dtype;
  info_.prompt_attention = parts_.backend.ops->prompt_attention();
  info_.weight_bytes = request.needs.weights;
  info_.num_parameters = static_cast<std::int64_t>(info_.weight_bytes / size_of(parts_.dtype));
  info_.draft_weight_bytes = request.needs.draft_weights;
  info_.kv_bytes_per_token = request.kv_bytes_per_token + request.draft_kv_bytes_per_token;
  info_.kv_cache_bytes = plan.bytes;
  info_.draft_kv_cache_bytes = plan.draft_bytes;
  info_.draft_own_kv_bytes = request.needs.draft_own_kv;
  info_.scratch_bytes = plan.scratch_bytes;
  info_.activation_bytes = request.needs.activations;
  info_.workspace_bytes = request.needs.workspaces;
  info_.graph_bytes = request.needs.graphs;
  info_.device_bytes = request.total_bytes;
  info_.memory_limit_bytes = plan.limit_bytes;
  info_.num_pages = plan.num_pages;
  info_.page_size = config_.page_size;
  info_.max_model_len = config_.max_model_len;
  info_.vocab_size = parts_.model.vocab_size;
  info_.eos_token_ids = parts_.model.eos_token_ids;
}

}  // namespace fastspec
