// Element types of activations, weights and K/V on the device: conversion to and from float, singly and in pairs.
// No arithmetic of its own.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace fastspec::cuda {

using Bf16 = __nv_bfloat16;
using Fp16 = __half;

__device__ __forceinline__ float to_float(float value) {
  return value;
}
__device__ __forceinline__ float to_float(Bf16 value) {
  return __bfloat162float(value);
}
__device__ __forceinline__ float to_float(Fp16 value) {
  return __half2float(value);
}

/// Nearest element, ties to even.
template <typename T>
__device__ __forceinline__ T from_float(float value) {
  if constexpr (sizeof(T) == 4) {
    return value;
  } else if constexpr (__is_same(T, Bf16)) {
    return __float2bfloat16_rn(value);
  } else {
    return __float2half_rn(value);
  }
}

/// Two 16-bit elements in one register, `low` at the lower address.
template <typename T>
__device__ __forceinline__ std::uint32_t pack_pair(float low, float high) {
  if constexpr (__is_same(T, Bf16)) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
}

/// Reverse of pack_pair.
template <typename T>
__device__ __forceinline__ float2 unpack_pair(std::uint32_t pair) {
  if constexpr (__is_same(T, Bf16)) {
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
  } else {
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  }
}

}  // namespace fastspec::cuda
