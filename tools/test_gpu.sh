#!/usr/bin/env bash
# Everything that needs a GPU, of a build directory that has the CUDA backend and the tests: the programs of tests/cuda, the
# lossless matrix under every selector, small cases under compute-sanitizer. What is right comes before what it costs. Each
# has a time limit, for a kernel that hangs, and its log in BUILD_DIR/gpu. Ends with a summary; non-zero if anything failed.
#   bash tools/test_gpu.sh BUILD_DIR [NAME...]     NAME: parts of this only, as the summary names them
# (`ctest -L gpu` runs the programs, too, one entry each.)
set -uo pipefail
build=${1:?usage: bash tools/test_gpu.sh BUILD_DIR [NAME...]}
shift
wanted=("$@")
programs=$build/tests
[ -x "$programs/fastspec_cuda_ops_check" ] || {
  echo "fastspec: $build has no tests with a CUDA backend: configure with FASTSPEC_CUDA=ON and FASTSPEC_BUILD_TESTS=ON" >&2
  exit 3
}
mkdir -p "$build/gpu"
passed=() failed=()

is_wanted() {
  local part
  [ ${#wanted[@]} != 0 ] || return 0
  for part in "${wanted[@]}"; do [ "$part" != "$1" ] || return 0; done
  return 1
}

# step NAME SECONDS COMMAND...: runs it, shows the end of what it said.
step() {
  local name=$1 limit=$2 started=$SECONDS code
  shift 2
  is_wanted "$name" || return 0
  echo
  echo "=== $name: $*"
  timeout "$limit" "$@" > "$build/gpu/$name.log" 2>&1
  code=$?
  tail -n 25 "$build/gpu/$name.log"
  if [ $code = 0 ]; then
    passed+=("$name ($((SECONDS - started)) s)")
  else
    failed+=("$name (exit $code$([ $code != 124 ] || echo ", stopped at its limit"), $((SECONDS - started)) s)")
  fi
}

sanitized() {
  local name=$1 tool=$2
  shift 2
  step "$tool-$name" 300 compute-sanitizer --tool "$tool" --error-exitcode 1 "$@"
}

ops=$programs/fastspec_cuda_ops_check
attention=$programs/fastspec_cuda_attention_check
lossless=$programs/fastspec_lossless_check
step sparse 120 "$ops" --only sparse
step ops 300 "$ops"
step attention 400 "$attention"
step prompt 240 "$programs/fastspec_cuda_prompt_check" --timing 1
step lossless 300 "$lossless" --device cuda:0 --jobs 8
for selector in streaming history quest oracle; do
  step "lossless-$selector" 300 "$lossless" --device cuda:0 --jobs 8 --sparse "$selector"
done
for tool in memcheck racecheck; do
  sanitized sparse "$tool" "$ops" --only sparse --small 1
  sanitized attention "$tool" "$attention" --small --no-timing
done
step sparse-times 180 "$programs/fastspec_cuda_sparse_check"
step graph-times 180 "$programs/fastspec_cuda_graph_check" --shape qwen2.5-7b --batch 64

echo
echo "=== summary ($((SECONDS / 60)) min $((SECONDS % 60)) s)"
printf 'passed  %s\n' "${passed[@]}"
[ ${#failed[@]} = 0 ] || printf 'FAILED  %s\n' "${failed[@]}"
echo
echo "${#passed[@]} passed, ${#failed[@]} failed"
[ ${#failed[@]} = 0 ]
