// The kernel table in plain C++.
#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/kernel_tables.h"
#include "backend/cpu/linear_kernels.h"
#include "backend/cpu/row_kernels.h"
#include "backend/cpu/simd_portable.h"
#include "backend/cpu/vocab_kernels.h"

namespace fastspec::cpu {

const Kernels kPortableKernels = {"portable", VocabLoops<Portable>::table(), linear_kernels<Portable>(),
                                  RowLoops<Portable>::table(), attention_kernels<Portable>()};

}  // namespace fastspec::cpu
