// See prompt_attention.h.
#include "backend/cuda/prompt_attention.h"

#include <dlfcn.h>

#include <algorithm>

#include "attention/gather.h"
#include "backend/cuda/cuda_error.h"
#include "base/log.h"

namespace fastspec::cuda {
namespace {

constexpr std::size_t kElementBytes = 2;  // bfloat16 and float16 alike
constexpr const char* kOwnKernels = "own kernels";

struct Module {
  FlashAttentionFunction* function = nullptr;
  std::string description = kOwnKernels;
};

/// libfastspec_flash lies beside libfastspec where libtorch is a CUDA build. It stays loaded: torch cannot be unloaded.
Module load_module() {
  Module module;
  if (void* library = dlopen("libfastspec_flash.so", RTLD_NOW | RTLD_LOCAL); library != nullptr) {
    module.function = reinterpret_cast<FlashAttentionFunction*>(dlsym(library, kFlashAttentionSymbol));
    module.description = "libtorch's flash attention, own kernels for short chunks";
  } else {
    const std::string fault = dlerror();
    const bool not_built = fault.find("libfastspec_flash.so: cannot open") != std::string::npos;
    module.description += not_built ? " (built against a libtorch without CUDA)" : " (" + fault + ")";
  }
  log(LogLevel::kInfo, "long prompt chunks: ", module.description);
  return module;
}

const Module& module() {
  static const Module loaded = load_module();
  return loaded;
}

}  // namespace

PromptAttention::PromptAttention(std::shared_ptr<CudaContext> context, DType dtype)
    : context_(std::move(context)), description_(kOwnKernels) {
  if (dtype == DType::kFloat32) return;  // flash attention is 16-bit
  function_ = module().function;
  description_ = module().description;
}

std::size_t PromptAttention::bytes(std::int64_t num_keys, int max_sequences, int num_kv_heads, int head_dim) {
  return 2 * kElementBytes * static_cast<std::size_t>(num_keys * num_kv_heads * head_dim) +
         (static_cast<std::size_t>(max_sequences) + 1) * sizeof(std::int32_t);
}

void PromptAttention::reserve(std::int64_t num_keys, int max_sequences, int num_kv_heads, int head_dim) {
  const std::size_t wanted = kElementBytes * static_cast<std::size_t>(num_keys * num_kv_heads * head_dim);
  if (wanted > keys_.bytes()) {
    keys_ = context_->allocate(wanted, "gathered keys of prompts");
    values_ = context_->allocate(wanted, "gathered values of prompts");
  }
  const std::size_t offsets = (static_cast<std::size_t>(max_sequences) + 1) * sizeof(std::int32_t);
  if (offsets > key_offsets_.bytes()) key_offsets_ = context_->allocate(offsets, "offsets of gathered keys");
}

std::int64_t PromptAttention::capacity(int num_kv_heads, int head_dim) const {
  const std::size_t key_bytes =
      kElementBytes * static_cast<std::size_t>(num_kv_heads) * static_cast<std::size_t>(head_dim);
  return function_ == nullptr ? 0 : static_cast<std::int64_t>(keys_.bytes() / key_bytes);
}

bool PromptAttention::run(const AttentionParams& params, const PromptRun& run) {
  const int num_sequences = run.end - run.begin;
  const KvView& kv = params.kv;
  check_cuda(launch_gather_kv({.kv = kv,
                               .num_sequences = num_sequences,
                               .row_offsets = params.row_offsets + run.begin,
                               .lists = params.lists + run.begin,
                               .entries = params.entries,
                               .slots = params.slots,
                               .max_keys = run.max_keys,
                               .keys = keys_.data(),
                               .values = values_.data(),
                               .key_offsets = key_offsets_.as<std::int32_t>()},
                              context_->stream()),
             "launch of gather_kv: ", run.num_keys, " keys");
  const char* fault = function_({.query = params.query,
                                 .num_heads = params.num_heads,
                                 .num_kv_heads = kv.num_kv_heads,
                                 .head_dim = kv.head_dim,
                                 .scale = params.scale,
                                 .keys = keys_.data(),
                                 .values = values_.data(),
                                 .num_keys = run.num_keys,
                                 .num_sequences = num_sequences,
                                 .row_offsets = params.row_offsets + run.begin,
                                 .key_offsets = key_offsets_.as<std::int32_t>(),
                                 .first_row = run.first_row,
                                 .num_rows = run.num_rows,
                                 .max_rows = run.max_rows,
                                 .max_keys = run.max_keys,
                                 .output = params.output,
                                 .lse = params.lse,
                                 .device = context_->ordinal(),
                                 .stream = context_->stream()});
  if (fault == nullptr) {
    ++num_runs_;
    return true;
  }
  function_ = nullptr;
  description_ = std::string(kOwnKernels) + " (libtorch: " + fault + ")";
  log(LogLevel::kWarning, "libtorch's flash attention failed, own kernels answer prompts from now on: ", fault);
  return false;
}

}  // namespace fastspec::cuda
