#!/usr/bin/env bash
# Prints the folder of a CUDA toolkit to compile with (bin/nvcc of CUDA >= 12.8). Exit code 77 where there is none.
#   bash tools/cuda_toolkit.sh [install]     install: brings one from Python packages into .deps/cuda where there is none
# CUDACXX: the nvcc to use. FASTSPEC_CUDA_PACKAGES=1: the Python packages' even where the system has a toolkit. Installing needs
# what tools/bootstrap.sh makes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
packages=$PWD/.deps/cuda

# is_new_enough NVCC
is_new_enough() {
  local release
  release=$("$1" --version 2> /dev/null | grep -oE 'release [0-9]+\.[0-9]+' | cut -d' ' -f2) || return 1
  [ -n "$release" ] && [ "$(printf '%s\n' 12.8 "$release" | sort -V | head -n 1)" = 12.8 ]
}

system_nvcc() {
  local candidate
  for candidate in "${CUDACXX:-}" /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc "$(command -v nvcc || true)"; do
    [ -n "$candidate" ] && [ -x "$candidate" ] && is_new_enough "$candidate" && { echo "$candidate"; return; }
  done
  return 1
}

install_packages() {
  local stamp=$packages/.stamp key
  key=$(sha256sum < tools/requirements-cuda.txt)
  [ "$(cat "$stamp" 2> /dev/null)" != "$key" ] || return 0
  echo "installing nvcc from Python packages into .deps/cuda" >&2
  rm -rf "$packages"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --target "$packages" \
    -r tools/requirements-cuda.txt >&2 || { echo "fastspec: pip could not install tools/requirements-cuda.txt" >&2; exit 3; }
  # CMake looks for a toolkit's names.
  ln -sfn lib "$packages/nvidia/cu13/lib64"
  ln -sf libcudart.so.13 "$packages/nvidia/cu13/lib/libcudart.so"
  echo "$key" > "$stamp"
}

if [ "${FASTSPEC_CUDA_PACKAGES:-0}" != 1 ] && nvcc=$(system_nvcc); then
  dirname "$(dirname "$(realpath "$nvcc")")"
elif [ "${1:-}" = install ]; then
  install_packages
  echo "$packages/nvidia/cu13"
elif [ -e "$packages/.stamp" ]; then
  echo "$packages/nvidia/cu13"
else
  echo "fastspec: no nvcc of CUDA >= 12.8 here; CUDACXX names one, tools/cuda_toolkit.sh install brings one" >&2
  exit 77
fi
