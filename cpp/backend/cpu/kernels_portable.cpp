// The kernel table in plain C++.
#include "backend/cpu/kernel_tables.h"
#include "backend/cpu/simd_portable.h"
#include "backend/cpu/vocab_kernels.h"

namespace fastspec::cpu {

const Kernels kPortableKernels = {"portable", VocabLoops<Portable>::table()};

}  // namespace fastspec::cpu
