#!/usr/bin/env bash
# Everything that needs no GPU: builds (optimised and with sanitizers), C++ and Python tests, an installed copy used from a
# C++ program, kernels compiled, layers, formatting, linting, types. Where there is a GPU the optimised build has the CUDA
# backend, and ctest runs tests/cuda too. Prepares .venv itself. Ends with a summary; non-zero if anything failed.
#   bash tools/test.sh
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
release=build/test-release
debug=build/cpu-debug
prefix=$PWD/build/test-prefix
source tools/steps.sh

# Without these nothing else can run.
must() { step "$@" || { summary; exit 1; }; }

build_sanitizers() { cmake --preset cpu-debug > "$debug.log" 2>&1 && cmake --build --preset cpu-debug >> "$debug.log" 2>&1 || { tail -n 40 "$debug.log"; false; }; }

consumer() {
  rm -rf "$prefix" build/test-package
  cmake --install "$release" --prefix "$prefix" --component cpp > /dev/null &&
    cmake -S tests/package -B build/test-package -G Ninja -DCMAKE_PREFIX_PATH="$prefix" > /dev/null &&
    cmake --build build/test-package &&
    build/test-package/two_requests "$model"
}

compile_kernels() {
  bash tools/compile_kernels.sh > build/kernels.log 2>&1 || { tail -n 40 build/kernels.log; return 1; }
  tail -n 1 build/kernels.log
}

sources() { git ls-files -co --exclude-standard -- 'cpp/*.cpp' 'cpp/*.h' 'python/bindings/*' 'tests/*.cpp' 'tests/*.h'; }
format_cpp() { sources | xargs clang-format --dry-run --Werror; }
python_sources=(python tests tools)

must "bootstrap" bash tools/bootstrap.sh test
export PATH="$PWD/.venv/bin:$PATH"
mkdir -p build
step "layers" python tools/check_layers.py
step "C++ formatting" format_cpp
step "Python formatting" ruff format --check "${python_sources[@]}"
step "Python lint" ruff check "${python_sources[@]}"
step "types" mypy
must "optimised build" bash tools/install.sh "$release" -DFASTSPEC_BUILD_TESTS=ON -DFASTSPEC_WERROR=ON
must "optimised build of tests" cmake --build "$release"
model=$(python tools/fetch_demo_model.py | tail -n 1) && export FASTSPEC_TEST_MODEL=$model
step "demo model" test -f "$model/model.safetensors"
step "ctest, optimised" ctest --test-dir "$release" --output-on-failure -j "$(nproc)"
step "package" consumer
step "pytest" python -m pytest -q --dist loadgroup -n "$(( $(nproc) < 4 ? $(nproc) : 4 ))"
step "GPU kernels compile" compile_kernels
step "build with sanitizers" build_sanitizers && step "ctest, sanitizers" ctest --preset cpu-debug -j "$(nproc)"
summary
