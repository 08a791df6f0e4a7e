#!/usr/bin/env bash
# Compiles every kernel of cuda/ for the tuned architecture (9.0a) and one instance of each kind for the others, without a GPU
# and without the rest of the build, and looks over the sources that call libtorch's CUDA side and CUPTI. Brings nvcc where there is none
# (tools/cuda_toolkit.sh). Needs what tools/bootstrap.sh makes.
#   bash tools/compile_kernels.sh [OUT_DIR]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-build/kernels}
nvcc=$(bash tools/cuda_toolkit.sh install)/bin/nvcc
mkdir -p "$out"

compile() {
  local source=$1 architectures=90a
  case $source in
    */instances/bf16_128.cu | cuda/layers/* | cuda/sampling/* | cuda/sparse/* | cuda/attention/[gp]*.cu) architectures="80 86 89 90a 100a 120a" ;;
  esac
  local flags=() a
  for a in $architectures; do flags+=(-gencode "arch=compute_$a,code=sm_$a"); done
  "$nvcc" -std=c++20 -O3 --expt-relaxed-constexpr -Xcompiler -Wall,-Wextra --Werror all-warnings -Icuda -Icpp -Icpp/include "${flags[@]}" \
    -c "$source" -o "$out/$(echo "$source" | tr / _).o" || { echo "compile_kernels: $source failed for $architectures"; exit 1; }
}
export -f compile
export nvcc out

# A torch without CUDA has the headers of its CUDA side, but for one that its build would have written.
check_flash_attention() {
  local torch
  torch=$(.venv/bin/python -I tools/locate_torch.py | cut -d';' -f2)
  mkdir -p "$out/include/c10/cuda/impl"
  local written=include/c10/cuda/impl/cuda_cmake_macros.h toolkit=${nvcc%/bin/nvcc}
  [ -e "$torch/$written" ] || echo "#define C10_CUDA_BUILD_SHARED_LIBS" > "$out/$written"
  "${CXX:-g++}" -std=c++20 -fsyntax-only -Wall -Wextra -Werror -Icpp -Icpp/include -isystem "$out/include" -isystem "$torch/include" \
    -isystem "$torch/include/torch/csrc/api/include" -isystem "$toolkit/include" cpp/backend/torch/flash_attention.cpp
}

check_kernel_recorder() {
  local toolkit=${nvcc%/bin/nvcc}
  "${CXX:-g++}" -std=c++20 -fsyntax-only -Wall -Wextra -Werror -Icuda -Icpp -Icpp/include -isystem "$toolkit/include" \
    cpp/backend/cuda/kernel_recorder.cpp
}

git ls-files -co --exclude-standard -- 'cuda/*.cu' | xargs -P "$(nproc)" -I{} bash -c 'set -euo pipefail; compile {}'
check_flash_attention
check_kernel_recorder
echo "compiled $(ls "$out"/*.o | wc -l) files with $("$nvcc" --version | grep -o 'release [0-9.]*')"
