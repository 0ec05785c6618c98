#!/usr/bin/env bash
# A program that calls setlocale before it uses libkvasir: models and rules are read with points, and the program's own
# numbers have its commas afterwards.
. "$(dirname "$0")/../e2e/support.sh"
: "${KVASIR_LIBRARY:?libkvasir.so}"
mkdir "$work/locales"
localedef -i de_DE -f UTF-8 "$work/locales/de_DE.UTF-8" >"$work/out" 2>&1 || true
export LOCPATH=$work/locales
cat >"$work/host.c" <<'C'
#include "tools/library/kvasir.h"

#include <locale.h>
#include <stdio.h>
#include <string.h>

static int fail(const char *what, const kvasir_messages *m) {
  fprintf(stderr, "%s: %s\n", what, m ? kvasir_messages_text(m) : "");
  return 1;
}

int main(void) {
  static const char text[] = "model half (float[N] x) => (float[N] y) {\n  param float[1] w ~ constant(1.5)\n"
                             "  y = kv.exp(0.5 * x) * w - kv.exp(0.5 * x) * 0.5\n}\n";
  if (!setlocale(LC_ALL, "de_DE.UTF-8")) return 77;
  kvasir_model *model;
  kvasir_program *program;
  kvasir_session *session;
  kvasir_messages *m;
  float x[] = {0, 0};
  const kvasir_tensor in = {.type = KVASIR_FLOAT, .rank = 1, .dims = {2}, .data = x};
  kvasir_tensor out = {0};
  kvasir_compile_options options = {.cache = "off"};
  if (kvasir_model_open_bytes(text, strlen(text), NULL, NULL, &model, &m)) return fail("open", m);
  if (kvasir_compile(model, &options, &program, &m)) return fail("compile", m);
  if (kvasir_session_create(program, NULL, &session, &m)) return fail("session", m);
  if (kvasir_session_run(session, &in, 1, &out, 1, &m)) return fail("run", m);
  printf("%g %.1f\n", (double)((float *)out.data)[0], 0.5);
  kvasir_session_destroy(session);
  kvasir_program_destroy(program);
  kvasir_model_destroy(model);
  return 0;
}
C
sanitize=
[ -z "${KVASIR_SANITIZED:-}" ] || sanitize=-fsanitize=address,undefined
library=$(realpath "$KVASIR_LIBRARY")
cc -std=gnu17 -Wall -Werror $sanitize -I. "$work/host.c" -o "$work/host" "$library" -Wl,-rpath,"${library%/*}" ||
  fail "the host does not compile"
code=0
ASAN_OPTIONS=detect_leaks=0 "$work/host" >"$work/out" 2>&1 || code=$?
if [ "$code" -eq 77 ]; then
  echo "SKIP: localedef makes no locale de_DE.UTF-8 here"
  exit 77
fi
[ "$code" -eq 0 ] || fail "exit code $code: $(cat "$work/out")"
[ "$(cat "$work/out")" = "1 0,5" ] || fail "expected '1 0,5', found '$(cat "$work/out")'"
