#include "tests/support/kernel_fixture.h"

#include <stdlib.h>

int kernel_fixture_create(void **state) {
  kernel_fixture *f = calloc(1, sizeof *f);
  if (!f) return -1;
  f->arena = kva_arena_create();
  f->exprs = kva_expr_ctx_create(f->arena);
  f->diag = kva_diag_create();
  *state = f;
  return 0;
}

int kernel_fixture_destroy(void **state) {
  kernel_fixture *f = *state;
  kva_diag_destroy(f->diag);
  kva_arena_destroy(f->arena);
  free(f);
  return 0;
}

char *kernel_text(const kva_kernel *k) {
  kva_text text = {0};
  kva_kernel_print(k, &text);
  return text.data;
}

uint64_t kernel_code_hash(const kva_kernel *k) {
  kva_text code = {0};
  kva_kernel_encode(k, 0, NULL, &code);
  uint64_t hash = kva_hash(0, code.data, code.len);
  kva_text_free(&code);
  return hash;
}
