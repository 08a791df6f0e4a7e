// See attention.h.
#include "backend/cuda/attention.h"

#include <algorithm>

#include "attention/attention.h"
#include "backend/cuda/cuda_error.h"

namespace fastspec::cuda {
namespace {

constexpr int kMostPlans = 64;                                 // of one pass: list classes, runs, models
constexpr std::size_t kGatheredShare = 32;                     // of the GPU's memory
constexpr std::size_t kTorchRounding = std::size_t{64} << 20;  // what torch's allocator may round up to

bool is_aligned(const Matrix& matrix) {
  return reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 &&
         matrix.stride * static_cast<std::int64_t>(size_of(matrix.dtype)) % 16 == 0;
}

}  // namespace

Attention::Attention(std::shared_ptr<CudaContext> context, DType dtype)
    : context_(std::move(context)), prompt_(context_, dtype) {
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    check_cuda(cudaDeviceGetAttribute(&value, which, context_->ordinal()), "cudaDeviceGetAttribute of shared memory");
    return value;
  };
  limits_ = {.num_sms = context_->num_multiprocessors(),
             .shared_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
             .shared_per_sm = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor),
             .compute_capability = context_->architecture()};
}

AttentionConfig Attention::choose(const AttentionParams& params) const {
  if (!is_aligned(params.query) || !is_aligned(params.output)) return {};  // the plain kernel takes any
  const int rows_each = params.max_rows_per_sequence > 0
                            ? params.max_rows_per_sequence
                            : (params.query.rows + params.num_sequences - 1) / params.num_sequences;
  return choose_attention({.dtype = params.kv.dtype,
                           .head_dim = params.kv.head_dim,
                           .packed_rows = rows_each * (params.num_heads / params.kv.num_kv_heads),
                           .num_sequences = std::min(params.num_sequences, params.query.rows)},
                          limits_);
}

void Attention::grow_workspace(int head_dim) {
  const std::size_t bytes = attention_workspace_bytes(limits_.num_sms, head_dim);
  if (bytes <= workspace_.bytes()) return;
  if (workspace_.bytes() > 0) outgrown_.push_back(std::move(workspace_));
  workspace_ = context_->allocate(bytes, "workspace of attention");
  check_cuda(cudaMemsetAsync(workspace_.data(), 0, bytes, context_->stream()), "cudaMemsetAsync of ", bytes, " bytes");
}

const AttentionPlan& Attention::plan_for(const AttentionParams& params, const AttentionConfig& config) {
  if (uploads_ != context_->num_uploads()) num_valid_plans_ = 0;
  uploads_ = context_->num_uploads();
  const PlanKey key{params.num_sequences, params.num_heads, params.kv.num_kv_heads, params.row_offsets, params.lists,
                    params.masks,         params.positions, params.window,          params.sinks,       config.path,
                    config.padded_dim,    config.tile_rows, config.num_ctas};
  for (std::size_t i = 0; i < num_valid_plans_; ++i) {
    if (plans_[i].key == key) return plans_[i].plan;
  }
  if (num_valid_plans_ == plans_.size()) plans_.emplace_back();
  Plan& plan = plans_[num_valid_plans_];
  const std::size_t bytes = attention_plan_bytes(limits_.num_sms, params.num_sequences);
  if (bytes > plan.memory.bytes()) {
    if (plan.memory.bytes() > 0) outgrown_.push_back(std::move(plan.memory));
    plan.memory = context_->allocate(2 * bytes, "plan of attention");
  }
  plan.plan = attention_plan_at(plan.memory.data(), params.num_sequences);
  plan.key = key;
  check_cuda(launch_attention_plan({.num_sequences = params.num_sequences,
                                    .num_heads = params.num_heads,
                                    .num_kv_heads = params.kv.num_kv_heads,
                                    .row_offsets = params.row_offsets,
                                    .lists = params.lists,
                                    .masks = params.masks,
                                    .positions = params.positions,
                                    .window = params.window,
                                    .sinks = params.sinks,
                                    .config = config,
                                    .plan = plan.plan},
                                   context_->stream()),
             "launch of the attention plan");
  ++num_valid_plans_;
  return plan.plan;
}

std::int64_t Attention::gathered_keys(const WorkspaceLimits& limits) const {
  if (!prompt_.is_available()) return 0;
  const std::size_t key_bytes = PromptAttention::bytes(1, 0, limits.num_kv_heads, limits.head_dim);
  return std::min(limits.max_keys, static_cast<std::int64_t>(context_->total_bytes() / kGatheredShare / key_bytes));
}

std::size_t Attention::workspace_bytes(const WorkspaceLimits& limits) const {
  std::size_t bytes = attention_workspace_bytes(limits_.num_sms, limits.head_dim) +
                      kMostPlans * attention_plan_bytes(limits_.num_sms, limits.max_sequences);
  if (!prompt_.is_available()) return bytes;
  const auto row_bytes = static_cast<std::size_t>(limits.num_heads) *
                         (static_cast<std::size_t>(limits.head_dim) * size_of(DType::kBFloat16) + sizeof(float));
  bytes += PromptAttention::bytes(gathered_keys(limits), limits.max_sequences, limits.num_kv_heads, limits.head_dim);
  return bytes + static_cast<std::size_t>(limits.max_rows) * row_bytes + kTorchRounding;
}

void Attention::reserve(const WorkspaceLimits& limits) {
  grow_workspace(limits.head_dim);
  const std::int64_t keys = gathered_keys(limits);
  if (keys > 0) prompt_.reserve(keys, limits.max_sequences, limits.num_kv_heads, limits.head_dim);
}

std::vector<PromptRun> Attention::prompt_runs(const AttentionParams& params) const {
  const KvView& kv = params.kv;
  const std::int64_t capacity = prompt_.capacity(kv.num_kv_heads, kv.head_dim);
  if (flash_use_ == FlashUse::kNever || capacity == 0 || params.host.lists == nullptr || context_->is_capturing() ||
      params.window > 0 || padded_head_dim(kv.head_dim) == 0 || !is_aligned(params.query) ||
      !is_aligned(params.output)) {
    return {};
  }
  const bool hopper =
      choose_attention({.dtype = kv.dtype, .head_dim = kv.head_dim, .packed_rows = 128}, limits_).path ==
      AttentionPath::kHopper;
  std::vector<PromptRun> runs =
      cut_into_runs(params.host, params.num_sequences, capacity, [&](int num_rows, int num_cached) {
        return flash_use_ == FlashUse::kAlways || flash_is_faster({.num_rows = num_rows,
                                                                   .num_cached = num_cached,
                                                                   .num_heads = params.num_heads,
                                                                   .num_kv_heads = kv.num_kv_heads,
                                                                   .head_dim = kv.head_dim,
                                                                   .hopper = hopper});
      });
  const bool any = std::any_of(runs.begin(), runs.end(), [](const PromptRun& run) { return run.gathered; });
  return any ? runs : std::vector<PromptRun>();
}

void Attention::run(const AttentionParams& params) {
  if (params.query.rows == 0) return;
  const std::vector<PromptRun> runs = prompt_runs(params);
  if (runs.empty()) return run_own(params);
  for (const PromptRun& run : runs) {
    if (run.gathered && prompt_.is_available() && prompt_.run(params, run)) continue;
    AttentionParams part = params;
    part.num_sequences = run.end - run.begin;
    part.max_rows_per_sequence = run.max_rows;
    part.row_offsets += run.begin;
    part.lists += run.begin;
    part.masks += run.begin;
    run_own(part);
  }
}

void Attention::run_own(const AttentionParams& params) {
  const AttentionConfig config = choose(params);
  AttentionPlan plan;
  if (config.path != AttentionPath::kPlain) {
    grow_workspace(params.kv.head_dim);
    plan = plan_for(params, config);
  }
  check_cuda(launch_attention(params, config, plan, workspace_.data(), context_->stream()),
             "launch of attention: ", params.query.rows, " rows, head_dim ", params.kv.head_dim);
}

}  // namespace fastspec::cuda
