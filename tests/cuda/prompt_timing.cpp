// Times of prompt chunks, one layer: flash attention over gathered keys (gathering and the copy of the output
// included) beside our own kernels, and which of the two the backend would take. The rates in the last columns are what
// cuda/attention/prompt_runs.h estimates with.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <functional>

#include "attention/prompt_runs.h"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_ops.h"
#include "cuda/prompt_cases.h"

namespace fastspec::gpu_check {
namespace {

constexpr int kRuns = 9;

struct Shape {
  int num_sequences, rows, cached, num_heads, num_kv_heads, head_dim;
};

double microseconds(cudaStream_t stream, const std::function<void()>& work) {
  cudaEvent_t begin = nullptr, end = nullptr;
  cuda::check_cuda(cudaEventCreate(&begin), "cudaEventCreate");
  cuda::check_cuda(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> times;
  for (int run = -2; run < kRuns; ++run) {
    cuda::check_cuda(cudaEventRecord(begin, stream), "cudaEventRecord");
    for (int repeat = 0; repeat < 4; ++repeat) work();
    cuda::check_cuda(cudaEventRecord(end, stream), "cudaEventRecord");
    cuda::check_cuda(cudaEventSynchronize(end), "cudaEventSynchronize");
    float milliseconds = 0;
    cuda::check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    if (run >= 0) times.push_back(milliseconds * 1e3f / 4);
  }
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return times[kRuns / 2];
}

void time_shape(Sides& sides, const Shape& shape) {
  Random random(3);
  PromptCase pass{{}, shape.num_heads, shape.num_kv_heads, shape.head_dim, 16};
  pass.sequences.assign(static_cast<std::size_t>(shape.num_sequences), {shape.rows, shape.cached});
  const PromptArrays arrays = make_prompt_arrays(pass, random);
  const int rows = arrays.num_rows(), width = shape.num_heads * shape.head_dim;
  auto& ops = dynamic_cast<cuda::CudaOps&>(*sides.gpu.ops);
  ops.reserve({.max_rows = rows,
               .max_sequences = shape.num_sequences,
               .max_keys = std::int64_t{shape.num_sequences} * (shape.rows + shape.cached),
               .num_heads = shape.num_heads,
               .num_kv_heads = shape.num_kv_heads,
               .head_dim = shape.head_dim,
               .hidden_size = width});
  // A block of noise, repeated: contents matter little, zeros would.
  const std::vector<std::byte> noise = to_bytes(normal(std::size_t{1} << 20, 1, random), sides.dtype);
  const auto filled = [&](std::size_t elements) {
    Buffer buffer = sides.gpu.device->allocate(elements * size_of(sides.dtype), "numbers");
    for (std::size_t at = 0; at < buffer.bytes(); at += noise.size()) {
      sides.gpu.device->copy_to_device(buffer.as<std::byte>() + at, noise.data(),
                                       std::min(noise.size(), buffer.bytes() - at));
    }
    return buffer;
  };
  const Buffer pool = filled(prompt_pool_elements(pass, arrays));
  const Buffer query = filled(std::size_t(rows) * width), output = filled(std::size_t(rows) * width);
  const PromptOnDevice on_device(sides, pass, arrays);
  AttentionParams params = on_device.params();
  params.query = {query.data(), sides.dtype, rows, width, width};
  params.output = {output.data(), sides.dtype, rows, width, width};
  params.kv = prompt_view(pass, pool.data(), sides.dtype);
  params.max_rows_per_sequence = shape.rows;

  const auto time = [&](cuda::FlashUse use) {
    ops.set_flash_use(use);
    return microseconds(ops.context().stream(), [&] { ops.attention(params); });
  };
  const double flash = time(cuda::FlashUse::kAlways), own = time(cuda::FlashUse::kNever);
  const std::int64_t runs = ops.prompt().num_runs();
  (void)time(cuda::FlashUse::kWhereFaster);
  const bool takes_flash = ops.prompt().num_runs() > runs;
  const double per_key = 4.0 * width * shape.rows * shape.num_sequences;
  const double seen = per_key * (shape.cached + 0.5 * shape.rows), all = per_key * (shape.cached + shape.rows);
  std::printf(
      "prompt %d x %5d rows over %5d cached, heads %d/%d x %d: flash %9.1f us %5.0f TFLOP/s, own %9.1f us %5.0f "
      "TFLOP/s; "
      "takes %s%s; rates: flash %.0fe12 (seen keys), own %.0fe12 (all keys)\n",
      shape.num_sequences, shape.rows, shape.cached, shape.num_heads, shape.num_kv_heads, shape.head_dim, flash,
      seen / flash * 1e-6, own, seen / own * 1e-6, takes_flash ? "flash" : "own",
      takes_flash == (flash < own) ? "" : " (THE SLOWER ONE)", seen / flash * 1e-6, all / own * 1e-6);
  std::fflush(stdout);
}

}  // namespace

void time_prompts(const std::string& device) {
  Sides sides(device, DType::kBFloat16);
  for (const Shape& shape :
       {Shape{1, 2048, 32768, 28, 4, 128}, Shape{1, 8192, 0, 28, 4, 128}, Shape{1, 8192, 24576, 28, 4, 128},
        Shape{1, 2048, 0, 28, 4, 128}, Shape{1, 512, 0, 28, 4, 128}, Shape{1, 512, 8192, 28, 4, 128},
        Shape{1, 128, 2048, 28, 4, 128}, Shape{4, 512, 0, 28, 4, 128}, Shape{1, 8192, 0, 32, 8, 128},
        Shape{1, 2048, 32768, 32, 8, 128}, Shape{1, 2048, 2048, 9, 3, 64}, Shape{1, 4096, 0, 16, 8, 256},
        Shape{1, 2048, 16384, 16, 8, 256}}) {
    time_shape(sides, shape);
  }
}

}  // namespace fastspec::gpu_check
