// How every kernel is launched: it may start before the one in front of it in the stream has ended (programmatic
// dependent launch, compute capability >= 9.0), in recorded graphs too, so that a launch and the set-up of blocks hide
// behind the end of the work before. What keeps the results right:
// - All threads of all blocks call await_predecessors() before they touch memory that any other kernel touches, and
//   before any return. Behind it everything launched earlier is complete and visible. So kernels are written as if
//   nothing overlapped: memory that is used again, counters that are left at zero for the next launch and flags for the
//   host need nothing more.
// - The wait is for the kernel in front alone. It stands for all before because that kernel ends only after a wait of
//   its own: one that returned without would let those behind it pass those in front of it.
// - What other kernels write is never read as if it were constant (__ldg, ld.global.nc, const and __restrict__): that
//   promise is for the life of a kernel, which now begins before theirs ends.
// Matrix products, copies and zeroing are not ours: they start when all before them has ended, and are waited for too.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

namespace fastspec::cuda {

/// Lets the next kernel start, then waits until everything launched before is complete. Before it there may be work on
/// shared memory, registers and the kernel's own arguments only.
__device__ __forceinline__ void await_predecessors() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  // besides what the kernel declares
  int cluster_blocks = 1;        // neighbours along x that make a cluster; more than one from 9.0 on only
};

/// Whether await_predecessors() waits in the code that the current device runs. Asked of the code, not of the device: a
/// GPU may run what was translated from an older target. All kernels are compiled for the same targets, so the first
/// one that a thread launches on a device answers for all of them.
inline bool code_awaits_predecessors(const void* kernel) {
  thread_local int known_device = -1;
  thread_local bool known = false;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  if (device != known_device) {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) return false;  // the launch will say why
    known = attributes.ptxVersion >= 90;
    known_device = device;
  }
  return known;
}

/// Launches a kernel that calls await_predecessors(). Returns what the launch says; cudaGetLastError() says it too.
template <typename... Parameters>
cudaError_t launch_kernel(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
                          const std::type_identity_t<Parameters>&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (code_awaits_predecessors(reinterpret_cast<const void*>(kernel))) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster_blocks > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(shape.cluster_blocks);
    cluster.val.clusterDim.y = 1;
    cluster.val.clusterDim.z = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace fastspec::cuda
