#!/usr/bin/env bash
# Allocations that fail, one a run: `run`, `train`, `check` and built programs end with a message and exit code 1 or 3, or
# give what they give with memory. A selection; KVASIR_MEMORY_RUNS=all takes every allocation.
. "$(dirname "$0")/support.sh"
: "${KVASIR_FAILING:?the library that fails allocations}"
# The compiler's allocations are LLVM's, for the most part: with its code in the cache there are a tenth of them.
export KVASIR_CACHE=$work/cache ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}allocator_may_return_null=1
# What the loader keeps is no leak; the sanitizer does not see whose it is behind another malloc.
echo 'leak:ld-linux' >"$work/kept"
export LSAN_OPTIONS=suppressions=$work/kept:print_suppressions=0
small="-D d=16 -D hidden=32 -D vocab=64"
shapes="--pin B=2 --pin T=5"
train="--steps 2 --metrics m --checkpoint c --report r.html"
root=$PWD

each() { # each RUNS PROGRAM...
  python3 tests/failing/each.py "$KVASIR_FAILING" "${KVASIR_MEMORY_RUNS:-$1}" "$work/run" "${@:2}" >"$work/out" 2>&1 || fail "${*:2}"
  cat "$work/out"
}
fewer=$([ -z "${KVASIR_SANITIZED:-}" ] && echo 1 || echo 4)
# shellcheck disable=SC2086
{
  "$KVASIR" run models/mlp.kv $small $shapes >"$work/out"
  "$KVASIR" train models/mlp.kv $small --steps 1 >"$work/out"
  each all "$KVASIR" check "$root/models/mlp.kv"
  each 60 "$KVASIR" check "$root/tests/data/shift_conv.onnx"
  each $((80 / fewer)) "$KVASIR" run "$root/models/mlp.kv" $small $shapes -o .
  each $((40 / fewer)) "$KVASIR" train "$root/models/mlp.kv" $small $train
  (export KVASIR_CACHE=off; each $((20 / fewer)) "$KVASIR" run "$root/models/mlp.kv" $small $shapes -o .)
  if command -v cc >/dev/null; then
    link=
    if [ -n "${KVASIR_SANITIZED_RUNTIME:-}" ]; then
      printf '%s\n' '#!/bin/sh' 'exec cc -fsanitize=address,undefined "$@"' >"$work/cc"
      chmod +x "$work/cc"
      link="--runtime $KVASIR_SANITIZED_RUNTIME --cc $work/cc"
    fi
    expect 0 build models/mlp.kv $small --exe -o "$work/model" $link
    expect 0 build models/mlp.kv $small --train --exe -o "$work/trainer" $link
    each all "$work/model" $shapes -o .
    each 120 "$work/trainer" $train
  fi
}
