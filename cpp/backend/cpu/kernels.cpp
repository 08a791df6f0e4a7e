// Chooses a kernel table by what the processor reports.
#include "backend/cpu/kernels.h"

#include <array>

#include "backend/cpu/kernel_tables.h"

namespace fastspec::cpu {
namespace {

using TableList = std::array<const Kernels*, 5>;  // null-terminated

TableList detect() {
  TableList tables{};
  std::size_t count = 0;
#if defined(__x86_64__)
  const bool base = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (base && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    if (__builtin_cpu_supports("avx512bf16")) tables[count++] = &kAvx512Bf16Kernels;
    tables[count++] = &kAvx512Kernels;
  }
  if (base) tables[count++] = &kAvx2Kernels;
#endif
  tables[count] = &kPortableKernels;
  return tables;
}

}  // namespace

const Kernels* const* runnable_kernels() {
  static const TableList tables = detect();
  return tables.data();
}

const Kernels& best_kernels() {
  return *runnable_kernels()[0];
}

}  // namespace fastspec::cpu
