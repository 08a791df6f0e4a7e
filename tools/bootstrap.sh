#!/usr/bin/env bash
# Prepares this clone for building, with or without root: .venv (build tools, torch, transformers) and .deps (C++ headers
# that the system lacks). Touches nothing outside the clone, except that root without a compiler gets one. Idempotent.
#   bash tools/bootstrap.sh [test]      test: also what tools/test.sh needs
# FASTSPEC_TORCH: the torch release to use. PYTHON: the interpreter that .venv is made from. Exit code 3: something is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

DEFAULT_TORCH=2.13.0

missing() {
  echo "fastspec: $*" >&2
  exit 3
}

# need_command COMMAND PACKAGE: the system's own tools, the only ones that need root.
need_command() {
  command -v "$1" > /dev/null && return
  if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    echo "installing $2"
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install "$2"; } > /dev/null ||
      missing "$1 is missing and apt-get install $2 failed"
  else
    missing "$1 is missing: let an administrator run 'apt-get install $2', then start again"
  fi
}

# unpack PACKAGE...: unpacks distribution packages into .deps without installing them.
unpack() {
  command -v apt-get > /dev/null && command -v dpkg > /dev/null ||
    missing "no apt-get here to download $* with: install their like with this system's package manager"
  echo "unpacking into .deps: $*"
  mkdir -p .deps/apt/lists/partial .deps/apt/cache/archives/partial .deps/apt/debs
  local options=(-qq -o "Dir::State::Lists=$PWD/.deps/apt/lists" -o "Dir::Cache=$PWD/.deps/apt/cache")
  [ "$(id -u)" != 0 ] || options+=(-o APT::Sandbox::User=root)
  apt-get "${options[@]}" update || missing "apt-get update failed; without it $* cannot be downloaded"
  (cd .deps/apt/debs && apt-get "${options[@]}" download "$@") || missing "apt-get download $* failed"
  local deb
  for deb in .deps/apt/debs/*.deb; do dpkg -x "$deb" .deps; done
  rm -rf .deps/apt
}

has_header() { echo "#include <$1>" | CPATH="$PWD/.deps/usr/include" "${CXX:-g++}" -DPCRE2_CODE_UNIT_WIDTH=8 -E -x c++ - > /dev/null 2>&1; }

make_venv() {
  local python=${PYTHON:-python3}
  need_command "$python" python3
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    missing "$("$python" --version) is too old: fastspec needs Python >= 3.10 (PYTHON=/path/to/python3 chooses another)"
  if "$python" -c 'import ensurepip, venv' 2> /dev/null; then
    "$python" -m venv --clear .venv
  else
    # Debian keeps pip's wheel in a package of its own.
    "$python" -m venv --clear --without-pip .venv || missing "$python has no venv module: apt-get install python3-venv"
    unpack python3-pip-whl
    .venv/bin/python "$(echo .deps/usr/share/python-wheels/pip-*.whl)/pip" install --quiet pip
  fi
}

# install_python STAMP REQUIREMENTS...: installs what the stamp of an earlier run does not vouch for.
install_python() {
  local stamp=.venv/$1 key
  shift
  key=$(cat "$@" <(echo "$torch") | sha256sum)
  [ "$(cat "$stamp" 2> /dev/null)" != "$key" ] || return 0
  echo "installing Python packages of $* (the first time this takes minutes)"
  local options=() file
  for file in "$@"; do options+=(-r "$file"); done
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "$torch" "${options[@]}" ||
    missing "pip could not install $torch and $*"
  echo "$key" > "$stamp"
}

need_command "${CXX:-g++}" g++
[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || missing "this is $(uname -s) on $(uname -m); fastspec needs Linux on x86_64"

.venv/bin/python -m pip --version > /dev/null 2>&1 || make_venv
if [ -n "${FASTSPEC_TORCH:-}" ]; then
  torch=torch==$FASTSPEC_TORCH
elif command -v nvidia-smi > /dev/null && nvidia-smi -L > /dev/null 2>&1; then
  torch=torch
else
  torch=torch==$DEFAULT_TORCH
fi
install_python .stamp-build tools/requirements.txt
[ "${1:-}" != test ] || install_python .stamp-test tools/requirements.txt tools/requirements-test.txt

packages=()
has_header nlohmann/json.hpp || packages+=(nlohmann-json3-dev)
has_header pcre2.h || packages+=(libpcre2-dev)
has_header CLI/CLI.hpp || packages+=(libcli11-dev)
has_header gtest/gtest.h || packages+=(libgtest-dev)
python_version=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_python_version())')
python_include=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("include"))')
[ -e "$python_include/Python.h" ] || [ -e ".deps/usr/include/python$python_version/Python.h" ] ||
  packages+=("libpython$python_version-dev")
[ ${#packages[@]} = 0 ] || unpack "${packages[@]}"
