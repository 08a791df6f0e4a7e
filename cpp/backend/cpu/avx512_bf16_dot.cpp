// Linear layers by AVX-512's own products of bfloat16 pairs: half the instructions of widening, for passes where
// arithmetic and not the reading of weights takes the time. Standard headers come before the pragma: see
// avx512_kernels.cpp.
#include "backend/cpu/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "backend/cpu/kernel_tables.h"
#include "backend/cpu/target.h"

// The compiler's own intrinsics leave a masked-off operand undefined on purpose; GCC 12 takes that for a mistake.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

FASTSPEC_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")

#include "backend/cpu/linear_kernels.h"

namespace fastspec::cpu {
namespace {

struct BFloat16Dot {
  using Sum = __m512;
  using Input = BFloat16;
  using Weight = BFloat16;
  static constexpr int kStep = 32;
  static constexpr int kRegisters = 32;
  static __m512bh load_input(const BFloat16* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }
  static __m512bh load_weight(const BFloat16* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }
  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum fma(__m512bh a, __m512bh b, Sum sum) { return _mm512_dpbf16_ps(sum, a, b); }
  static float total(Sum sum) { return _mm512_reduce_add_ps(sum); }
};

}  // namespace

void linear_bfloat16_dot(const LinearTask& task) {
  LinearLoops<BFloat16Dot>::run(task);
}

}  // namespace fastspec::cpu

FASTSPEC_TARGET_END
#endif
