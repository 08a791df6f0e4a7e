// The two matrix products of a tile with warpgroup instructions (compute capability 9.0, target sm_90a): 64 rows a
// warpgroup, the left operand in registers, the right one read from the ring by the matrix unit itself. Accumulators
// have the fragment layout of common/mma.cuh (warp w of the group holds rows 16w to 16w + 15), so that everything
// between the products is shared with the other path. Code for other targets traps: a launch there must end in
// an error, not in wrong numbers.
#pragma once

#include "attention/tile_math.cuh"

namespace fastspec::cuda {

/// Describes a shared-memory operand in the layout of swizzle.h. Bits 0-13: address / 16; 16-29: distance / 16 of
/// blocks along the contiguous dimension (used where it is the operand's N); 32-45: distance / 16 of groups of eight
/// 128-byte rows; 62-63: 1 = 128-byte swizzle.
__device__ __forceinline__ std::uint64_t operand_descriptor(std::uint32_t address, int block_bytes) {
  return static_cast<std::uint64_t>((address & 0x3ffffu) >> 4) | static_cast<std::uint64_t>(block_bytes >> 4) << 16 |
         static_cast<std::uint64_t>((8 * kBlockRowBytes) >> 4) << 32 | std::uint64_t{1} << 62;
}

/// Keeps the compiler from moving accesses of accumulators over this point.
template <int kTiles>
__device__ __forceinline__ void pin_registers(float (&tiles)[kTiles][4]) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(tiles[tile][i])::"memory");
  }
}

#if FS_HOPPER_DEVICE

#define FS_ACC4(tile) "+f"(c[tile][0]), "+f"(c[tile][1]), "+f"(c[tile][2]), "+f"(c[tile][3])
#define FS_ACC32(base)                                                                                          \
  FS_ACC4(base), FS_ACC4(base + 1), FS_ACC4(base + 2), FS_ACC4(base + 3), FS_ACC4(base + 4), FS_ACC4(base + 5), \
      FS_ACC4(base + 6), FS_ACC4(base + 7)
#define FS_WGMMA_N64(type, transposed)                                                                           \
  asm volatile(                                                                                                  \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                                               \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                                \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27," \
      "%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, " transposed ";\n}\n"                                  \
      : FS_ACC32(0)                                                                                              \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))
#define FS_WGMMA_N128(type, transposed)                                                                          \
  asm volatile(                                                                                                  \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"                                                               \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                                               \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27," \
      "%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53," \
      "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, p, 1, 1, " transposed ";\n}\n"          \
      : FS_ACC32(0), FS_ACC32(8)                                                                                 \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))

/// c (+)= a * b, 64 rows a warpgroup; `kTransposed`: b's contiguous dimension is N (values) instead of K (keys).
template <typename T, bool kTransposed>
__device__ __forceinline__ void warpgroup_mma(float (&c)[8][4], const std::uint32_t (&a)[4], std::uint64_t b,
                                              int accumulate) {
  if constexpr (__is_same(T, Bf16)) {
    if constexpr (kTransposed) {
      FS_WGMMA_N64("bf16", "1");
    } else {
      FS_WGMMA_N64("bf16", "0");
    }
  } else {
    if constexpr (kTransposed) {
      FS_WGMMA_N64("f16", "1");
    } else {
      FS_WGMMA_N64("f16", "0");
    }
  }
}

template <typename T, bool kTransposed>
__device__ __forceinline__ void warpgroup_mma(float (&c)[16][4], const std::uint32_t (&a)[4], std::uint64_t b,
                                              int accumulate) {
  if constexpr (__is_same(T, Bf16)) {
    if constexpr (kTransposed) {
      FS_WGMMA_N128("bf16", "1");
    } else {
      FS_WGMMA_N128("bf16", "0");
    }
  } else {
    if constexpr (kTransposed) {
      FS_WGMMA_N128("f16", "1");
    } else {
      FS_WGMMA_N128("f16", "0");
    }
  }
}

#undef FS_WGMMA_N128
#undef FS_WGMMA_N64
#undef FS_ACC32
#undef FS_ACC4

__device__ __forceinline__ void warpgroup_fence() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void warpgroup_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void warpgroup_wait_all() {
  asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
}

/// scores = query * keys^T, unscaled; complete on return.
template <typename Traits>
__device__ __forceinline__ void multiply_keys_hopper(Scores<Traits>& scores, const Query<Traits>& query,
                                                     std::uint32_t keys) {
  constexpr int kBlockBytes = Traits::kGroupKeys * kBlockRowBytes;
  pin_registers(scores);
  warpgroup_fence();
#pragma unroll
  for (int step = 0; step < Traits::kDim / 16; ++step) {
    // Within a block of 64 columns a step of 16 moves the start by 32 bytes; the unit swizzles the sum.
    const std::uint32_t address = keys + step / 4 * kBlockBytes + step % 4 * 32;
    warpgroup_mma<typename Traits::T, false>(scores, query[step], operand_descriptor(address, 16), step > 0);
  }
  warpgroup_commit();
  warpgroup_wait_all();
  pin_registers(scores);
}

/// output += weights * values; complete on return.
template <typename Traits>
__device__ __forceinline__ void add_values_hopper(float (&output)[Traits::kValueTiles][4],
                                                  const Weights<Traits>& weights, std::uint32_t values) {
  constexpr int kBlockBytes = Traits::kGroupKeys * kBlockRowBytes;
  pin_registers(output);
  warpgroup_fence();
#pragma unroll
  for (int step = 0; step < Traits::kScoreTiles / 2; ++step) {
    const std::uint32_t address = values + step * 16 * kBlockRowBytes;
    warpgroup_mma<typename Traits::T, true>(output, weights[step], operand_descriptor(address, kBlockBytes), 1);
  }
  warpgroup_commit();
  warpgroup_wait_all();
  pin_registers(output);
}

#else

template <typename Traits>
__device__ void multiply_keys_hopper(Scores<Traits>&, const Query<Traits>&, std::uint32_t) {
  __trap();
}
template <typename Traits>
__device__ void add_values_hopper(float (&)[Traits::kValueTiles][4], const Weights<Traits>&, std::uint32_t) {
  __trap();
}

#endif

}  // namespace fastspec::cuda
