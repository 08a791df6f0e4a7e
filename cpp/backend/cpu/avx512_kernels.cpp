// The kernel table for AVX-512. Standard headers come before the pragma, so that no shared inline function is compiled
// for an instruction set that the processor may lack.
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

FASTSPEC_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")

#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/linear_kernels.h"
#include "backend/cpu/row_kernels.h"
#include "backend/cpu/simd_avx512.h"
#include "backend/cpu/vocab_kernels.h"

namespace fastspec::cpu {

// Faster than libtorch at every number of rows (measured to 512).
constexpr int kNever = 1 << 30;

const Kernels kAvx512Kernels = {"avx512",
                                kNever,
                                VocabLoops<Avx512>::table(),
                                linear_kernels<Avx512>(),
                                RowLoops<Avx512>::table(),
                                attention_kernels<Avx512>()};
const Kernels kAvx512Bf16Kernels = {"avx512_bf16",
                                    kNever,
                                    VocabLoops<Avx512>::table(),
                                    linear_kernels<Avx512>(linear_bfloat16_dot),
                                    RowLoops<Avx512>::table(),
                                    attention_kernels<Avx512>()};

}  // namespace fastspec::cpu

FASTSPEC_TARGET_END
#endif
