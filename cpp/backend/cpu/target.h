// Compiles the functions between the two marks for a named instruction set.
#pragma once

#define FASTSPEC_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define FASTSPEC_TARGET_BEGIN(features) \
  FASTSPEC_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define FASTSPEC_TARGET_END _Pragma("clang attribute pop")
#else
#define FASTSPEC_TARGET_BEGIN(features) _Pragma("GCC push_options") FASTSPEC_PRAGMA(GCC target(features))
#define FASTSPEC_TARGET_END _Pragma("GCC pop_options")
#endif

/// Before a loop of fixed length over vectors held in an array: unrolled early enough for the array to live in
/// registers.
#if defined(__clang__)
#define FASTSPEC_UNROLL _Pragma("unroll")
#else
#define FASTSPEC_UNROLL _Pragma("GCC unroll 16")
#endif
