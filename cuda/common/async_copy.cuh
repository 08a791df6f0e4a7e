// Copies from global to shared memory that do not wait (cp.async, compute capability >= 8.0), and barriers of a part of
// a CTA. Addresses of shared memory are 32-bit, as the instructions take them.
#pragma once

#include <cstdint>

namespace fastspec::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// 16 bytes past L1; with `valid` false zeros are written and `source` is not read (it must still be a global address).
__device__ __forceinline__ void copy_async_16(std::uint32_t target, const void* source, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(target), "l"(source), "r"(bytes)
               : "memory");
}

/// Ends a group of this thread's copies; an empty group is allowed and keeps counts regular.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}

/// Waits until at most `kPending` of this thread's latest groups are unfinished. Other threads see the data after a
/// barrier only.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

/// Barrier of `threads` (a multiple of 32) threads that name the same `id`, 1 to 15; 0 is __syncthreads.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace fastspec::cuda
