// Barriers in shared memory that count arrivals and end phases (mbarrier, compute capability >= 9.0 as used here),
// named by their shared-memory addresses. Phases alternate parity; a new barrier counts as having ended parity 1.
#pragma once

#include <cstdint>

namespace fastspec::cuda {

/// By one thread, with a CTA barrier behind.
__device__ __forceinline__ void barrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Waits for the end of the phase of this parity.
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nretry:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra retry;\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// One arrival for a warp, after all its lanes have come here.
__device__ __forceinline__ void barrier_arrive_warp(std::uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}\n" ::"r"(barrier) : "memory");
  }
}

/// One arrival of this thread, once all its copies so far (cp.async) have landed; does not wait for them.
__device__ __forceinline__ void barrier_arrive_after_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
}

}  // namespace fastspec::cuda
