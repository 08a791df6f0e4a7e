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
