# Steps of a script that go on after one failed; sourced. Each is noted with its time, and summary() tells them all.
passed=() failed=()

# step NAME COMMAND...: runs it, notes how it went and how long it took.
step() {
  local name=$1 started=$SECONDS
  shift
  echo
  echo "=== $name"
  if "$@"; then
    passed+=("$name ($((SECONDS - started)) s)")
  else
    failed+=("$name ($((SECONDS - started)) s)")
    return 1
  fi
}

# False where a step failed.
summary() {
  echo
  echo "=== summary ($((SECONDS / 60)) min $((SECONDS % 60)) s)"
  [ ${#passed[@]} = 0 ] || printf 'passed  %s\n' "${passed[@]}"
  [ ${#failed[@]} = 0 ] || printf 'FAILED  %s\n' "${failed[@]}"
  echo
  echo "${#passed[@]} passed, ${#failed[@]} failed"
  [ ${#failed[@]} = 0 ]
}
