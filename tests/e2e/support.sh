#!/usr/bin/env bash
# Sourced by the scripts of this folder: the tool in $KVASIR, a folder $work of the test's own, checks.
set -euo pipefail
: "${KVASIR:?the tool to test}"
work=$(mktemp -d)
# Nothing of the user's is read or written. What runs again is compiled once, by all scripts of one tools/check: an entry
# is found by all of its code.
export KVASIR_CACHE=${KVASIR_TEST_CACHE:-$work/compiled}
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  [ ! -s "$work/out" ] || head -40 "$work/out" >&2
  exit 1
}

# expect CODE ARGUMENTS...: runs the tool; its output (both streams) is in $work/out afterwards.
expect() {
  local expected=$1 code=0
  shift
  "$KVASIR" "$@" >"$work/out" 2>&1 </dev/null || code=$?
  [ "$code" -eq "$expected" ] || fail "kvasir $*: exit code $code, expected $expected"
}

# in_part INDEX: whether this run's share holds it, by $KVASIR_PART, as in tests/support/part.h.
in_part() {
  local part=${KVASIR_PART:-1/1}
  [ $(($1 % ${part#*/} + 1)) -eq "${part%/*}" ]
}

# says TEXT: the last output has it.
says() { grep -qF -- "$1" "$work/out" || fail "the output does not say: $1"; }
