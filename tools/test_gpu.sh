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
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

is_wanted() {
  local part
  [ ${#wanted[@]} != 0 ] || return 0
  for part in "${wanted[@]}"; do [ "$part" != "$1" ] || return 0; done
  return 1
}

# check NAME SECONDS COMMAND...: a step with a limit.
check() {
  ! is_wanted "$1" || step "$1" logged "$@"
}

# Shows the end of what a command says; all of it is in the log.
logged() {
  local log=$build/gpu/$1.log limit=$2 code=0
  shift 2
  echo "$*"
  timeout "$limit" "$@" > "$log" 2>&1 || code=$?
  tail -n 25 "$log"
  case $code in
    0) ;;
    124) echo "stopped after $limit s" ;;
    *) echo "exit code $code" ;;
  esac
  return $code
}

sanitized() {
  local name=$1 tool=$2
  shift 2
  check "$tool-$name" 300 compute-sanitizer --tool "$tool" --error-exitcode 1 "$@"
}

ops=$programs/fastspec_cuda_ops_check
attention=$programs/fastspec_cuda_attention_check
lossless=$programs/fastspec_lossless_check
check sparse 120 "$ops" --only sparse
check ops 300 "$ops"
check attention 400 "$attention"
check prompt 240 "$programs/fastspec_cuda_prompt_check" --timing 1
check lossless 300 "$lossless" --device cuda:0 --jobs 8
for selector in streaming history quest oracle; do
  check "lossless-$selector" 300 "$lossless" --device cuda:0 --jobs 8 --sparse "$selector"
done
for tool in memcheck racecheck; do
  sanitized sparse "$tool" "$ops" --only sparse --small 1
  sanitized attention "$tool" "$attention" --small --no-timing
done
check sparse-times 180 "$programs/fastspec_cuda_sparse_check"
check graph-times 180 "$programs/fastspec_cuda_graph_check" --shape qwen2.5-7b --batch 64
summary
