// The kernel table in plain C++.
#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/kernel_tables.h"
#include "backend/cpu/linear_kernels.h"
#include "backend/cpu/row_kernels.h"
#include "backend/cpu/simd_portable.h"
#include "backend/cpu/vocab_kernels.h"

namespace fastspec::cpu {

// Up to here a pass reads weights rather than computes; above, libtorch has the processor's instructions and this has
// not.
constexpr int kTorchRows = 17;

const Kernels kPortableKernels = {"portable",
                                  kTorchRows,
                                  VocabLoops<Portable>::table(),
                                  linear_kernels<Portable>(),
                                  RowLoops<Portable>::table(),
                                  attention_kernels<Portable>()};

}  // namespace fastspec::cpu
