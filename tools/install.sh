#!/usr/bin/env bash
# Builds the wheel in BUILD_DIR and installs it into .venv, unless nothing changed since that was last done: with the CUDA
# backend, for this machine's GPU alone, where it has one (FASTSPEC_BACKEND=cpu: without).
#   bash tools/install.sh BUILD_DIR [-DOPTION=VALUE...]
# Needs what tools/bootstrap.sh makes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build_dir=$1
shift

source tools/gpu.sh
find_gpus
if [[ " $* " == *" -DFASTSPEC_CUDA="* ]]; then
  echo "backend: as the options say"
elif [ -n "$gpu_architectures" ]; then
  toolkit=$(bash tools/cuda_toolkit.sh install)
  export CUDACXX=$toolkit/bin/nvcc
  set -- "$@" -DFASTSPEC_CUDA=ON "-DFASTSPEC_CUDA_ARCHITECTURES=$gpu_architectures" "-DCUDAToolkit_ROOT=$toolkit"
  echo "backend: CUDA for $gpu_names ($gpu_architectures, nvcc of $toolkit), and CPU"
else
  set -- "$@" -DFASTSPEC_CUDA=OFF
  echo "backend: CPU"
fi

state() {
  find CMakeLists.txt pyproject.toml cpp cuda python third_party tools/build_backend.py tools/locate_torch.py tools/requirements.txt \
    -type f ! -name '*.pyc' -printf '%p %s %T@\n' | sort
  cat .venv/.stamp-build
  echo "$@"
}

stamp=.venv/.stamp-installed
key=$(state "$@" | sha256sum)
if [ "$(cat "$stamp" 2> /dev/null)" = "$key" ] && [ -d "$build_dir" ]; then
  exit 0
fi
rm -f "$stamp"

mkdir -p "$build_dir"
log=$build_dir/install.log
options=()
for define in "$@"; do
  define=${define#-D}
  options+=("--config-settings=cmake.define.${define}")
done
echo "building in $build_dir (log: $log)"
PATH="$PWD/.venv/bin:$PATH" .venv/bin/python -m pip install -v --disable-pip-version-check --no-build-isolation --no-deps \
  --force-reinstall --config-settings=build-dir="$build_dir" "${options[@]}" . > "$log" 2>&1 &
pid=$!
trap 'kill "$pid" 2> /dev/null || true' EXIT
if [ -t 1 ]; then
  while kill -0 "$pid" 2> /dev/null; do
    printf '\r%s ' "$(grep -oE '\[[0-9]+/[0-9]+\]' "$log" | tail -n 1)"
    sleep 1
  done
  printf '\r'
fi
if ! wait "$pid"; then
  trap - EXIT
  grep -E '(error:|Error:|undefined reference|fastspec:) ' "$log" | head -n 20 >&2 || true
  echo "fastspec: the build failed; all of it is in $log" >&2
  exit 1
fi
trap - EXIT
echo "$key" > "$stamp"
