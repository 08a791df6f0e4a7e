// Logits between the kernel that computes them and the one that pools them: eight at a time, base 2, less the largest
// of their group, so that fp16 is exact to 2^-11 of a distance that counts for less the larger it is.
#pragma once

#include "common/element.cuh"

namespace fastspec::cuda {

/// Type of the logits of keys of type T.
template <typename T>
struct StoredLogit {
  using Type = Fp16;
};
template <>
struct StoredLogit<float> {
  using Type = float;
};

__device__ __forceinline__ void store_eight(Fp16* place, const float (&values)[8]) {
  uint4 packed;
  packed.x = pack_pair<Fp16>(values[0], values[1]);
  packed.y = pack_pair<Fp16>(values[2], values[3]);
  packed.z = pack_pair<Fp16>(values[4], values[5]);
  packed.w = pack_pair<Fp16>(values[6], values[7]);
  *reinterpret_cast<uint4*>(place) = packed;
}

__device__ __forceinline__ void load_eight(const Fp16* place, float (&values)[8]) {
  const uint4 packed = *reinterpret_cast<const uint4*>(place);
  const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack_pair<Fp16>(words[i]);
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}

__device__ __forceinline__ void load_eight(const float* place, float (&values)[8]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 four = reinterpret_cast<const float4*>(place)[i];
    values[4 * i] = four.x;
    values[4 * i + 1] = four.y;
    values[4 * i + 2] = four.z;
    values[4 * i + 3] = four.w;
  }
}

}  // namespace fastspec::cuda
