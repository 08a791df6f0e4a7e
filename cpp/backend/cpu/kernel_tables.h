// The tables that *_kernels.cpp define, for the dispatch in kernels.cpp. Constant data.
#pragma once

#include "backend/cpu/kernels.h"

namespace fastspec::cpu {

#if defined(__x86_64__)
extern const Kernels kAvx512Bf16Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx2Kernels;
#endif
extern const Kernels kPortableKernels;

#if defined(__x86_64__)
/// LinearKernels::bfloat16_dot of AVX-512 BF16.
void linear_bfloat16_dot(const LinearTask& task);
#endif

}  // namespace fastspec::cpu
