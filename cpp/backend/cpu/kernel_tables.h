// The tables that *_kernels.cpp define, for the dispatch in kernels.cpp. Constant data.
#pragma once

#include "backend/cpu/kernels.h"

namespace fastspec::cpu {

#if defined(__x86_64__)
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx2Kernels;
#endif
extern const Kernels kPortableKernels;

}  // namespace fastspec::cpu
