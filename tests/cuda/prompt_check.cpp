// Prompt chunks through libtorch's flash attention against the reference: ragged chunks, empty and shuffled prefixes,
// decoding sequences between chunks, runs that the gathering memory cuts; then times of both ways.
//   fastspec_cuda_prompt_check [--device cuda:0] [--only PART_OF_A_NAME] [--timing 0] [--small 1]
// --small 1: few and small cases of every kind, fit for compute-sanitizer.
// Exit code 1 where a case fails, 77 where there is no GPU or libtorch is a build without CUDA.
#include <cstdio>
#include <string>

#include "backend/cuda/cuda_ops.h"
#include "base/check.h"
#include "cuda/ops_report.h"
#include "cuda/prompt_cases.h"
#include "support/engine_harness.h"

namespace fastspec::gpu_check {
namespace {

constexpr int kMaxRows = 4096;

cuda::CudaOps& cuda_ops(Sides& sides) {
  return dynamic_cast<cuda::CudaOps&>(*sides.gpu.ops);
}

void reserve(Sides& sides, const PromptCase& shape, std::int64_t max_keys) {
  sides.gpu.ops->reserve({.max_rows = kMaxRows,
                          .max_sequences = 64,
                          .max_keys = max_keys,
                          .num_heads = shape.num_heads,
                          .num_kv_heads = shape.num_kv_heads,
                          .head_dim = shape.head_dim,
                          .hidden_size = 64});
}

/// Both sides once; on the GPU causal chunks of more than a row go to flash attention, `expected_runs` launches of it.
Outcome compare_case(Sides& sides, const PromptCase& shape, int expected_runs, Random& random) {
  const PromptArrays arrays = make_prompt_arrays(shape, random);
  const int rows = arrays.num_rows(), width = shape.num_heads * shape.head_dim;
  std::vector<float> pool = rounded(normal(prompt_pool_elements(shape, arrays), 1, random), sides.dtype);
  const Buffer device_pool = sides.put(pool, sides.dtype);
  PairedMatrix query(sides, rows, width, 0, 1, random, sides.dtype);
  PairedMatrix output(sides, rows, width, 0, sides.dtype);
  std::vector<float> lse(static_cast<std::size_t>(rows * shape.num_heads));
  const Buffer device_lse = sides.poisoned(lse.size(), DType::kFloat32);

  const PromptOnDevice on_device(sides, shape, arrays);
  AttentionParams params = on_device.params();
  params.query = query.device();
  params.output = output.device();
  params.kv = prompt_view(shape, device_pool.data(), sides.dtype);
  params.lse = device_lse.as<float>();
  AttentionParams reference = params;
  reference.query = query.host();
  reference.output = output.host();
  reference.row_offsets = arrays.row_offsets.data();
  reference.lists = arrays.lists.data();
  reference.entries = arrays.entries.data();
  reference.masks = arrays.masks.data();
  reference.mask_bits = arrays.mask_bits.data();
  reference.positions = arrays.positions.data();
  reference.slots = arrays.slots.data();
  reference.kv = prompt_view(shape, pool.data(), DType::kFloat32);
  reference.lse = lse.data();

  const std::int64_t runs_before = cuda_ops(sides).prompt().num_runs();
  sides.gpu.ops->attention(params);
  const auto runs = static_cast<int>(cuda_ops(sides).prompt().num_runs() - runs_before);
  sides.cpu.ops->attention(reference);
  Outcome outcome;
  compare(output.seen(sides), output.expected(), 2 * tolerance(sides.dtype), "output", outcome);
  compare(sides.get(device_lse, lse.size(), DType::kFloat32), lse, 1e-2, "lse", outcome);
  if (outcome.failure.empty() && runs != expected_runs) {
    outcome.failure = text(runs, " launches of flash attention, expected ", expected_runs, "; it is ",
                           cuda_ops(sides).prompt_attention());
  }
  return outcome;
}

void check_shapes(Sides& sides, Report& report) {
  Random random(707);
  const std::vector<std::pair<const char*, std::vector<PromptSequence>>> passes = {
      {"no prefix", {{150, 0}}},         {"after a prefix", {{70, 333}}},
      {"prefix of one key", {{65, 1}}},  {"ragged chunks", {{64, 0}, {3, 77}, {200, 20}, {2, 0}, {129, 128}}},
      {"chunk of two rows", {{2, 511}}},
  };
  const decltype(passes) small_passes = {{"small ragged chunks", {{33, 0}, {3, 40}, {2, 0}}}};
  for (const int head_dim : {64, 96, 128, 256, 40}) {
    for (const int page_size : report.small() ? std::vector{16} : std::vector{1, 16, 64}) {
      for (const auto& [name, sequences] : report.small() ? small_passes : passes) {
        const int kv_heads = pick(random, 1, 4), group = pick(random, 1, 7);
        const PromptCase shape{sequences, kv_heads * group, kv_heads, head_dim, page_size};
        reserve(sides, shape, 1024);
        report.run(text("prompt ", to_string(sides.dtype), " heads ", shape.num_heads, "/", kv_heads, " x ", head_dim,
                        " page ", page_size, " ", name),
                   [&] { return compare_case(sides, shape, 1, random); });
      }
    }
  }
}

void check_mixed_passes(Sides& sides, Report& report) {
  Random random(808);
  const char* dtype = to_string(sides.dtype);
  const NewMask tree = NewMask::kAncestor;
  PromptCase shape{{}, 14, 2, 128, 16};
  reserve(sides, shape, 1024);
  shape.sequences = {{1, 300}, {9, 40, tree}, {180, 90}, {1, 60}, {64, 0}, {5, 33, NewMask::kNone}};
  report.run(text("mixed ", dtype, " decoding rows and a tree between chunks"),
             [&] { return compare_case(sides, shape, 2, random); });
  shape.sequences = {{1, 300, NewMask::kCausal, false}, {180, 90, NewMask::kCausal, false}, {33, 7}};
  report.run(text("mixed ", dtype, " slot lists"), [&] { return compare_case(sides, shape, 1, random); });
}

/// A backend that has seen no larger shape: its memory holds 256 keys of this one.
void check_small_memory(const std::string& device, DType dtype, Report& report) {
  Random random(909);
  Sides sides(device, dtype);
  cuda_ops(sides).set_flash_use(cuda::FlashUse::kAlways);
  PromptCase shape{{{100, 20}, {90, 100}, {60, 0}, {90, 300}, {40, 10}}, 8, 4, 64, 16};
  reserve(sides, shape, 256);
  report.run(text("small memory ", to_string(dtype), " runs are cut, the longest sequence stays with own kernels"),
             [&] { return compare_case(sides, shape, 3, random); });
}

/// Whole engines of the tiny model in bfloat16, prompts through flash attention or not: most outputs are equal.
Outcome compare_engines(const std::string& device, bool small) {
  const auto outputs_with = [&](cuda::FlashUse use) {
    testing::HarnessOptions options;
    options.device = device;
    options.dtype = DType::kBFloat16;
    options.wrap_ops = [use](std::unique_ptr<Ops> ops) {
      dynamic_cast<cuda::CudaOps&>(*ops).set_flash_use(use);
      return ops;
    };
    Random random(11);
    std::vector<Request> requests(small ? 4 : 24);
    for (Request& request : requests) {
      for (int t = pick(random, 2, 90); t > 0; --t) request.prompt_token_ids.push_back(pick(random, 0, 59));
      request.sampling.temperature = 0;
      request.sampling.max_tokens = 12;
    }
    return testing::run(*testing::make_engine(std::move(options)), requests, 5);
  };
  const testing::Outputs seen = outputs_with(cuda::FlashUse::kAlways), own = outputs_with(cuda::FlashUse::kNever);
  Outcome outcome;
  for (std::size_t i = 0; i < own.size(); ++i) {
    ++outcome.compared;
    if (!seen[i].error.empty()) outcome.failure = text("output ", i, ": ", seen[i].error);
    if (seen[i].tokens != own[i].tokens) ++outcome.near_ties;
  }
  if (outcome.failure.empty() && 2 * outcome.near_ties > outcome.compared) outcome.failure = "most outputs differ";
  return outcome;
}

int run(const std::string& device, const std::string& only, bool timing, bool small) {
  Report report(only, small);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    Sides sides(device, dtype);
    if (!cuda_ops(sides).prompt().is_available()) {
      std::printf("prompts: %s\n", sides.gpu.ops->prompt_attention().c_str());
      return 77;
    }
    cuda_ops(sides).set_flash_use(cuda::FlashUse::kAlways);
    check_shapes(sides, report);
    check_mixed_passes(sides, report);
    check_small_memory(device, dtype, report);
  }
  report.run("engine bfloat16, flash attention or own kernels", [&] { return compare_engines(device, small); });
  const int code = report.finish();
  if (timing) time_prompts(device);
  return code;
}

}  // namespace
}  // namespace fastspec::gpu_check

int main(int argc, char** argv) {
  std::string device = "cuda:0", only;
  bool timing = true, small = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--device") device = argv[i + 1];
    if (option == "--only") only = argv[i + 1];
    if (option == "--timing") timing = std::string(argv[i + 1]) != "0";
    if (option == "--small") small = std::string(argv[i + 1]) != "0";
  }
  try {
    return fastspec::gpu_check::run(device, only, timing, small);
  } catch (const fastspec::Error& error) {
    std::printf("stopped: %s\n", error.what());
    return error.code() == fastspec::ErrorCode::kUnsupported ? 77 : 1;
  }
}
