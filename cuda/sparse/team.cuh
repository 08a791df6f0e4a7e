// The blocks that work on one sequence: a cluster, whose blocks read one another's shared memory, on compute capability
// 9.0 and above; elsewhere one block.
#pragma once

#include <cuda_runtime.h>

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#include <cooperative_groups.h>
#endif

namespace fastspec::cuda {

constexpr int kMostTeamBlocks = 8;  // what every GPU with clusters can place

struct Team {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __device__ __forceinline__ static int rank() {
    return static_cast<int>(cooperative_groups::this_cluster().block_rank());
  }
  __device__ __forceinline__ static int size() {
    return static_cast<int>(cooperative_groups::this_cluster().num_blocks());
  }
  /// What blocks wrote to their shared memory before can be read by all of them after.
  __device__ __forceinline__ static void sync() { cooperative_groups::this_cluster().sync(); }
  template <typename T>
  __device__ __forceinline__ static const T* of_block(const T* own, int rank) {
    return cooperative_groups::this_cluster().map_shared_rank(own, static_cast<unsigned>(rank));
  }
#else
  __device__ __forceinline__ static int rank() { return 0; }
  __device__ __forceinline__ static int size() { return 1; }
  __device__ __forceinline__ static void sync() { __syncthreads(); }
  template <typename T>
  __device__ __forceinline__ static const T* of_block(const T* own, int) {
    return own;
  }
#endif
};

}  // namespace fastspec::cuda
