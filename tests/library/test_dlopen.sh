#!/usr/bin/env bash
# libkvasir as a plug-in: loaded by dlopen, with names of its own, into a program that has no libm. Compiled code still
# finds the functions that it calls, also those of libgcc that convert 16-bit floats where a CPU does not.
. "$(dirname "$0")/../e2e/support.sh"
: "${KVASIR_LIBRARY:?libkvasir.so}"
cat >"$work/host.c" <<'C'
#include "tools/library/kvasir.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define FUNCTION(name) __typeof__(name) *name##_at = (__typeof__(name) *)dlsym(library, #name)

int main(int argc, char **argv) {
  static const char text[] = "model m (double[N] x) => (double[N] y) {\n"
                             "  y = kv.tanh(kv.exp(x)) + kv.sin(x) + kv.cast <to = double> (kv.cast <to = float16> (x))\n}\n";
  const kvasir_compile_options baseline = {.target = "x86_64-linux-gnu"};
  void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
  FUNCTION(kvasir_model_open_bytes);
  FUNCTION(kvasir_compile);
  FUNCTION(kvasir_session_create);
  FUNCTION(kvasir_session_run);
  FUNCTION(kvasir_messages_text);
  kvasir_model *model;
  kvasir_program *program;
  kvasir_session *session;
  kvasir_messages *messages;
  double x[] = {0.5, 1};
  const kvasir_tensor in = {.type = KVASIR_DOUBLE, .rank = 1, .dims = {2}, .data = x};
  kvasir_tensor out = {0};
  if (kvasir_model_open_bytes_at(text, strlen(text), NULL, NULL, &model, &messages) ||
      kvasir_compile_at(model, argc > 2 ? &baseline : NULL, &program, &messages) || kvasir_session_create_at(program, NULL, &session, &messages) ||
      kvasir_session_run_at(session, &in, 1, &out, 1, &messages))
    return fprintf(stderr, "%s", kvasir_messages_text_at(messages)), 1;
  printf("%.12f\n", ((const double *)out.data)[1]);
  return 0;
}
C
sanitize=
[ -z "${KVASIR_SANITIZED:-}" ] || sanitize=-fsanitize=address,undefined
cc -std=gnu17 -Wall -Werror $sanitize -I. "$work/host.c" -o "$work/host" -ldl || fail "the host does not compile"
[ -n "$sanitize" ] || ! readelf -d "$work/host" | grep -q libm || fail "the host has libm"
expected=$(python3 -c 'import math; print("%.12f" % (math.tanh(math.exp(1)) + math.sin(1) + 1))')
for target in "" $([ "$(uname -m)" != x86_64 ] || echo baseline); do
  ASAN_OPTIONS=detect_leaks=0 "$work/host" "$(realpath "$KVASIR_LIBRARY")" $target >"$work/out" 2>&1 || fail "the host"
  says "$expected"
done
