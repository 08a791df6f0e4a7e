// See cuda_context.h.
#include "backend/cuda/cuda_context.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "backend/cuda/cuda_error.h"

namespace fastspec::cuda {
namespace {

constexpr std::size_t kHalfBytes = std::size_t{4} << 20;
constexpr std::size_t kStagingAlignment = 64;
constexpr int kOldestArchitecture = 80;

/// Tells the processor that this is a loop of polls.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Frees in a destructor, where an error has nowhere to go: after a device failure every free fails too.
template <typename Free>
std::shared_ptr<void> owner_of(void* memory, std::shared_ptr<CudaContext> context, Free free_memory) {
  return std::shared_ptr<void>(memory, [context = std::move(context), free_memory](void* pointer) {
    (void)cudaSetDevice(context->ordinal());
    (void)free_memory(pointer);
  });
}

}  // namespace

std::shared_ptr<CudaContext> CudaContext::make(int ordinal) {
  std::shared_ptr<CudaContext> context(new CudaContext(ordinal));
  context->open();
  return context;
}

void CudaContext::open() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    fail(ErrorCode::kUnsupported, "device \"cuda:", ordinal_,
         "\": no usable GPU: ", status == cudaSuccess ? "the driver reports none" : cudaGetErrorString(status));
  }
  if (ordinal_ < 0 || ordinal_ >= count) {
    fail(ErrorCode::kInvalidArgument, "device \"cuda:", ordinal_, "\": this machine has GPUs 0 to ", count - 1);
  }
  activate();
  const auto attribute = [&](cudaDeviceAttr which, const char* name) {
    int value = 0;
    check_cuda(cudaDeviceGetAttribute(&value, which, ordinal_), "cudaDeviceGetAttribute ", name);
    return value;
  };
  architecture_ = 10 * attribute(cudaDevAttrComputeCapabilityMajor, "major compute capability") +
                  attribute(cudaDevAttrComputeCapabilityMinor, "minor compute capability");
  num_multiprocessors_ = attribute(cudaDevAttrMultiProcessorCount, "multiprocessors");
  if (architecture_ < kOldestArchitecture) {
    fail(ErrorCode::kUnsupported, "device \"cuda:", ordinal_, "\" has compute capability ", architecture_ / 10, ".",
         architecture_ % 10, "; at least 8.0 is needed");
  }
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  for (Half& half : halves_) {
    // Not through allocate_pinned: a buffer that owned its context would keep it alive for ever.
    void* memory = nullptr;
    check_cuda(cudaHostAlloc(&memory, kHalfBytes, cudaHostAllocPortable), "cudaHostAlloc of ", kHalfBytes, " bytes");
    half.memory =
        Buffer(memory, kHalfBytes, std::shared_ptr<void>(memory, [](void* pointer) { (void)cudaFreeHost(pointer); }));
    check_cuda(cudaEventCreateWithFlags(&half.done, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  }
  open_marks();
}

void CudaContext::open_marks() {
  void* memory = nullptr;
  check_cuda(cudaHostAlloc(&memory, sizeof(StepMarks), cudaHostAllocPortable | cudaHostAllocMapped),
             "cudaHostAlloc of the marks of a step");
  marks_ = Buffer(memory, sizeof(StepMarks),
                  std::shared_ptr<void>(memory, [](void* pointer) { (void)cudaFreeHost(pointer); }));
  marks() = {};
  check_cuda(cudaMalloc(&memory, sizeof(int)), "cudaMalloc of a flag");
  begun_ = Buffer(memory, sizeof(int), std::shared_ptr<void>(memory, [](void* pointer) { (void)cudaFree(pointer); }));
  check_cuda(cudaMemsetAsync(begun_.data(), 0, sizeof(int), stream_), "cudaMemsetAsync of a flag");
}

CudaContext::~CudaContext() {
  (void)cudaSetDevice(ordinal_);
  if (stream_ != nullptr) (void)cudaStreamSynchronize(stream_);
  for (Half& half : halves_) {
    if (half.done != nullptr) (void)cudaEventDestroy(half.done);
    half.memory = Buffer();
  }
  marks_ = Buffer();
  begun_ = Buffer();
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
}

void CudaContext::activate() const {
  check_cuda(cudaSetDevice(ordinal_), "cudaSetDevice ", ordinal_);
}

Buffer CudaContext::allocate(std::size_t bytes, const char* what) {
  activate();
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, std::max<std::size_t>(bytes, 1));
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    fail(ErrorCode::kOutOfMemory, what, ": ", bytes, " bytes asked for, ", available_bytes(),
         " bytes of memory of cuda:", ordinal_, " available");
  }
  check_cuda(status, "cudaMalloc of ", bytes, " bytes for ", what);
  return Buffer(memory, bytes, owner_of(memory, shared_from_this(), cudaFree));
}

Buffer CudaContext::allocate_pinned(std::size_t bytes, const char* what) {
  activate();
  void* memory = nullptr;
  const cudaError_t status =
      cudaHostAlloc(&memory, std::max<std::size_t>(bytes, 1), cudaHostAllocPortable | cudaHostAllocMapped);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    fail(ErrorCode::kOutOfMemory, what, ": ", bytes, " bytes of pinned host memory asked for and refused");
  }
  check_cuda(status, "cudaHostAlloc of ", bytes, " bytes for ", what);
  return Buffer(memory, bytes, owner_of(memory, shared_from_this(), cudaFreeHost));
}

void CudaContext::next_half() {
  Half& full = halves_[static_cast<std::size_t>(half_)];
  check_cuda(cudaEventRecord(full.done, stream_), "cudaEventRecord");
  full.in_flight = true;
  half_ = 1 - half_;
  used_ = 0;
  Half& next = halves_[static_cast<std::size_t>(half_)];
  if (next.in_flight) check_cuda(cudaEventSynchronize(next.done), "cudaEventSynchronize");
  next.in_flight = false;
}

void CudaContext::upload(void* destination, const void* source, std::size_t bytes) {
  activate();
  ++num_uploads_;
  auto* to = static_cast<std::byte*>(destination);
  const auto* from = static_cast<const std::byte*>(source);
  while (bytes > 0) {
    const std::size_t part = std::min(bytes, kHalfBytes);
    if (used_ + part > kHalfBytes) next_half();
    std::byte* staged = halves_[static_cast<std::size_t>(half_)].memory.as<std::byte>() + used_;
    std::memcpy(staged, from, part);
    check_cuda(cudaMemcpyAsync(to, staged, part, cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync of ", part,
               " bytes to the device");
    used_ = std::min(kHalfBytes, (used_ + part + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment);
    to += part;
    from += part;
    bytes -= part;
  }
}

void CudaContext::synchronize() {
  activate();
  check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

void CudaContext::copy_staged(const StagedCopy& copy, bool begins_step) {
  activate();
  ++num_uploads_;
  launch_staged_copy(copy, begins_step ? &marks() : nullptr, begun_.as<int>(), stream_);
  check_launch("staged copy");
}

std::uint64_t CudaContext::signal(bool ends_step) {
  activate();
  launch_signal(&marks(), ++num_signals_, ends_step, begun_.as<int>(), stream_);
  check_launch("signal");
  return num_signals_;
}

void CudaContext::wait(std::uint64_t signal) const {
  constexpr unsigned kPollsBetweenQueries = 1 << 16;  // a millisecond or so
  std::atomic_ref<std::uint64_t> seen(marks().signal);
  for (unsigned polls = 1; seen.load(std::memory_order_acquire) < signal; ++polls) {
    pause();
    if (polls % kPollsBetweenQueries != 0) continue;
    // A device that failed sends no signal.
    activate();
    const cudaError_t status = cudaStreamQuery(stream_);
    if (status == cudaErrorNotReady) continue;
    check_cuda(status, "wait for the draws of a step");
    if (seen.load(std::memory_order_acquire) < signal) {
      fail(ErrorCode::kDeviceFailure, "the device is done, but signal ", signal, " of a step did not come");
    }
  }
}

std::size_t CudaContext::available_bytes() const {
  activate();
  std::size_t available = 0, total = 0;
  check_cuda(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  return available;
}

std::size_t CudaContext::total_bytes() const {
  activate();
  std::size_t available = 0, total = 0;
  check_cuda(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  return total;
}

}  // namespace fastspec::cuda
