#!/usr/bin/env bash
# The tool, the runtime and what `kvasir build` links are position independent, resolve all symbols at start into memory that
# is read-only afterwards, have no executable stack; the first two check their stacks and, optimised, their buffers.
. "$(dirname "$0")/../e2e/support.sh"
. "$(dirname "$0")/support.sh"

command -v readelf >/dev/null || { echo "SKIP: no readelf"; exit 77; }
hardened() { # hardened FILE
  readelf -hldW "$1" >"$work/out"
  grep -q 'Type: *DYN' "$work/out" || fail "$1 is not position independent"
  grep -qE 'BIND_NOW|Flags:.* NOW' "$work/out" || fail "$1 binds lazily"
  grep -q GNU_RELRO "$work/out" || fail "$1 has no read-only relocations"
  grep -qE 'GNU_STACK .* RW +0x' "$work/out" || fail "$1 has an executable stack"
}
calls() { # calls FILE PATTERN: a function of that name is taken from libc
  nm -D --undefined-only "$1" | awk '{ print $2 }' >"$work/out"
  grep -qE "$2" "$work/out" || fail "$1 does not call $2"
}

runtime=$(dirname "$KVASIR")/libkvasir-rt.so
expect 0 build models/mlp.kv --exe -o "$work/program"
expect 0 build models/mlp.kv --shared -o "$work/mlp.so"
for file in "$KVASIR" "$runtime" "$work/program" "$work/mlp.so"; do hardened "$file"; done
readelf -dW "$KVASIR" >"$work/out"
grep -q 'Flags:.* PIE' "$work/out" || fail "the tool is not a PIE"
for file in "$KVASIR" "$runtime" "$work/program"; do calls "$file" '^__stack_chk_fail'; done
if grep -q '^CMAKE_BUILD_TYPE:[A-Z]*=Release$' "$(dirname "$KVASIR")/CMakeCache.txt"; then
  for file in "$KVASIR" "$runtime"; do calls "$file" '^__[a-z]*_chk'; done
fi
