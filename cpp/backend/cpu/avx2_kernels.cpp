// The kernel table for AVX2. Standard headers come before the pragma, so that no shared inline function is compiled for
// an instruction set that the processor may lack.
#include "backend/cpu/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <bit>
#include <cstdint>

#include "backend/cpu/kernel_tables.h"
#include "backend/cpu/target.h"

// The compiler's own intrinsics leave a masked-off operand undefined on purpose; GCC 12 takes that for a mistake.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

FASTSPEC_TARGET_BEGIN("avx2,fma,f16c")

#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/linear_kernels.h"
#include "backend/cpu/row_kernels.h"
#include "backend/cpu/simd_avx2.h"
#include "backend/cpu/vocab_kernels.h"

namespace fastspec::cpu {

// libtorch draws level near this many rows (measured: ours is ahead by half at 64 rows, by a tenth at 128).
constexpr int kTorchRows = 256;

const Kernels kAvx2Kernels = {"avx2",
                              kTorchRows,
                              VocabLoops<Avx2>::table(),
                              linear_kernels<Avx2>(),
                              RowLoops<Avx2>::table(),
                              attention_kernels<Avx2>()};

}  // namespace fastspec::cpu

FASTSPEC_TARGET_END
#endif
