// The copy that begins a step and the signal that ends it. Host memory is read past the caches: it changes between
// replays of a recorded copy.
#include "host/host_link.h"

namespace fastspec::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 32;  // reads of host memory in flight decide the speed
constexpr std::size_t kBlockBytes = std::size_t{kThreads} * sizeof(int4);

__device__ __forceinline__ std::int64_t global_time() {
  std::int64_t nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
}

__global__ void __launch_bounds__(kThreads) staged_copy_kernel(StagedCopy copy, StepMarks* marks, int* begun) {
  const std::size_t thread = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::size_t num_threads = std::size_t{gridDim.x} * kThreads;
  if (thread == 0 && marks != nullptr && *begun == 0) {
    *begun = 1;
    marks->begin = global_time();
  }
  const std::size_t num_packs = copy.bytes / sizeof(int4);
  for (std::size_t i = thread; i < num_packs; i += num_threads) {
    static_cast<int4*>(copy.destination)[i] = __ldcv(static_cast<const int4*>(copy.source) + i);
  }
  for (std::size_t i = num_packs * sizeof(int4) + thread; i < copy.bytes; i += num_threads) {
    static_cast<char*>(copy.destination)[i] = __ldcv(static_cast<const char*>(copy.source) + i);
  }
  if (copy.num_updates == nullptr) return;
  const auto num_updates = static_cast<std::size_t>(__ldcv(reinterpret_cast<const long long*>(copy.num_updates)));
  for (std::size_t i = thread; i < num_updates; i += num_threads) {
    const longlong2 update = __ldcv(reinterpret_cast<const longlong2*>(copy.updates) + i);
    copy.entries[update.x] = update.y;
  }
}

__device__ __forceinline__ void signal(StepMarks* marks, std::uint64_t value) {
  __threadfence_system();
  *static_cast<volatile std::uint64_t*>(&marks->signal) = value;
}

__global__ void signal_kernel(StepMarks* marks, std::uint64_t value) {
  signal(marks, value);
}

// By its name, kStepEndKernel, a record of kernels is cut into steps.
__global__ void step_end_kernel(StepMarks* marks, std::uint64_t value, int* begun) {
  *begun = 0;
  marks->end = global_time();
  signal(marks, value);
}

}  // namespace

void launch_staged_copy(const StagedCopy& copy, StepMarks* marks, int* begun, cudaStream_t stream) {
  const std::size_t wanted = (copy.bytes + kBlockBytes - 1) / kBlockBytes;
  const int blocks = wanted < 1 ? 1 : wanted > kMaxBlocks ? kMaxBlocks : static_cast<int>(wanted);
  staged_copy_kernel<<<blocks, kThreads, 0, stream>>>(copy, marks, begun);
}

void launch_signal(StepMarks* marks, std::uint64_t value, bool ends_step, int* begun, cudaStream_t stream) {
  if (ends_step) {
    step_end_kernel<<<1, 1, 0, stream>>>(marks, value, begun);
  } else {
    signal_kernel<<<1, 1, 0, stream>>>(marks, value);
  }
}

}  // namespace fastspec::cuda
