#!/usr/bin/env bash
# Shared libraries: they need libc and libm alone, work in a root folder that holds nothing else, give the bits of
# `kvasir run`, allocate nothing once shapes are bound, export their prefix only.
. "$(dirname "$0")/../e2e/support.sh"
. "$(dirname "$0")/support.sh"

root=$work/root
mkdir -p "$root/tmp" "$work/expected"
cc -O1 -I . -o "$root/load" tests/aot/load.c -ldl
cc -O1 -shared -fPIC -o "$work/count.so" tests/aot/count.c
for library in $(ldd "$root/load" /lib/*/libm.so.6 2>/dev/null | grep -oE '/[^ :]+\.so[^ :]*' | sort -u); do
  mkdir -p "$root$(dirname "$library")"
  cp "$library" "$root$library"
done

# Runs the loader where nothing but libc, libm and the model is.
in_root() {
  if [[ $(chroot "$root" /load 2>&1 || true) == *"too few"* ]]; then
    chroot "$root" "$@"
  elif [[ $(unshare -r chroot "$root" /load 2>&1 || true) == *"too few"* ]]; then
    unshare -r chroot "$root" "$@"
  else
    echo "no chroot here: an empty environment instead"
    (cd "$root" && env -i "./$1" "./$2" "${@:3}")
  fi
}

# check MODEL PREFIX OUTPUT RAW BYTES RUN_INPUT BUILD_OPTIONS -- EXTENT...
check() {
  local model=$1 prefix=$2 output=$3 raw=$4 bytes=$5 input=$6
  shift 6
  local options=()
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  expect 0 build "$model" "${options[@]}" --shared -o "$root/$prefix.so"
  ldd "$root/$prefix.so" | grep -vE 'linux-vdso|ld-linux|libc\.so|libm\.so' && fail "$prefix.so needs more than libc and libm"
  cc -std=c99 -Wall -Werror -x c -fsyntax-only "$root/$prefix.h" || fail "the header of $prefix"
  nm -D --defined-only "$root/$prefix.so" | awk '{ print $3 }' | grep -v "^${prefix}_" && fail "$prefix.so exports too much"
  nm -D --undefined-only "$root/$prefix.so" | grep -E ' (_?exit|puts|putchar|printf|stdout)(@|$)' && fail "$prefix.so may end the process or print"
  cp "$raw" "$root/input.raw"
  in_root /load "/$prefix.so" "$prefix" input.raw output.raw "$bytes" "$@" || fail "loading $prefix.so"
  expect 0 run "$model" "${options[@]}" --input "$input" -o "$work/expected"
  raw "$work/expected/$output.npy" "$work/expected.raw"
  same "$root/output.raw" "$work/expected.raw"
  LD_PRELOAD=$work/count.so "$root/load" "$root/$prefix.so" "$prefix" "$raw" "$work/again.raw" "$bytes" "$@" >"$work/out"
  grep -qE '^0 allocations in the last run, [1-9][0-9]* in all' "$work/out" || fail "allocations inside a run"
  same "$work/again.raw" "$work/expected.raw"
}

tokens "$work/tokens" 2 33
check models/lm.kv lm logits "$work/tokens.raw" $((2 * 33 * 8000 * 4)) "$work/tokens.npy" -D preset=small -- 2 33

# Sizes that depend on data come back by a function of the program.
expect 0 build tests/aot/sizes.kv --shared -o "$work/sizes.so"
cc -std=c99 -O1 -Wall -Werror -I "$work" tests/aot/sizes.c "$work/sizes.so" -o "$work/sizes" || fail "linking with sizes.so"
printf '3 2 1: 1 2 3 6 12 1\n1 4 4: 5 5 10 15 20 0 0 0 5\n' >"$work/expected.txt"
LD_LIBRARY_PATH=$work "$work/sizes" >"$work/out" || fail "running sizes.so"
same "$work/out" "$work/expected.txt"

# Without memory for a message there is another one.
cat >"$work/pick.kv" <<'KV'
model pick (float[N] x, int32[M] y) => (float[M] z) {
  limits = kv.constant <value = int64[2] {0, 3}> ()
  z = kv.gather (x, kv.check_indices <axis = 0, user = "gather"> (y, limits))
}
KV
cat >"$work/host.c" <<'C'
#include "pick.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool full;
void *realloc(void *old, size_t size) {
  void *memory = full ? NULL : malloc(size);
  if (memory && old) abort();
  return memory;
}

int main(void) {
  const float x[3] = {1, 2, 3};
  const int32_t y[3] = {0, 1, 9};
  pick_context *c;
  char message[256];
  if (pick_create(NULL, &c, message, sizeof message)) return 1;
  full = true;
  if (!pick_forward(c, &(pick_forward_in){x, y}, &(pick_forward_out){NULL}, &(pick_dims){.N = 3, .M = 3})) return 1;
  printf("%s\n", pick_error(c));
  pick_destroy(c);
  return 0;
}
C
expect 0 build "$work/pick.kv" --shared -o "$work/pick.so"
cc -std=c99 -O1 -Wall -Werror -I "$work" "$work/host.c" "$work/pick.so" -o "$work/host" || fail "linking with pick.so"
LD_LIBRARY_PATH=$work "$work/host" >"$work/out" || fail "running pick.so"
says "(no memory for the text)"

find_suite
if [ -n "$suite" ]; then
  head -c $((3 * 224 * 224 * 4)) /dev/zero | tr '\0' '>' >"$work/image.raw"
  check "$suite/light/light_resnet50.onnx" light_resnet50 gpu_0_softmax_1 "$work/image.raw" 4000 "$work/image.raw" --
else
  echo "no ONNX suite: light ResNet-50 is left out"
fi
