#include "tests/support/jit.h"
#include "tests/support/target.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

jit jit_create_for(const char *name, const kva_target_options *options) {
  jit j = {.arena = kva_arena_create(), .diag = kva_diag_create()};
  j.exprs = kva_expr_ctx_create(j.arena);
  j.kernel = kva_kernel_create(j.arena, j.exprs, name);
  j.kb = kva_kb_create(j.kernel);
  kva_target_options target = options ? *options : test_target(2, NULL);
  target.cache = test_cache();
  assert_int_equal(kva_codegen_create(&target, j.diag, &j.cg), KVA_OK);
  return j;
}

jit jit_create(const char *name) {
  return jit_create_for(name, NULL);
}

static void require(const jit *j, kva_status status, const char *what) {
  if (status == KVA_OK) return;
  kva_text text = {0};
  kva_kernel_print(j->kernel, &text);
  kva_diag_print(j->diag, stderr);
  fail_msg("%s: %s\n%s", what, kva_status_name(status), text.data);
}

void jit_compile(jit *j, bool as_is, uint32_t n_symbols, const kva_expr *const *symbols) {
  require(j, kva_kernel_verify(j->kernel, j->diag), "as built");
  if (!as_is) kva_codegen_schedule(j->kernel, kva_codegen_target(j->cg));
  require(j, kva_kernel_verify(j->kernel, j->diag), "as scheduled");
  if (getenv("KVA_TEST_PRINT")) {
    kva_text text = {0};
    kva_kernel_print(j->kernel, &text);
    fputs(text.data, stderr);
    kva_text_free(&text);
  }
  int32_t number;
  require(j, kva_codegen_add(j->cg, j->kernel, n_symbols, symbols, &number), "emit");
  require(j, kva_codegen_jit(j->cg), "compile");
  j->fn = kva_codegen_function(j->cg, number);
  kva_expr_is_const(kva_codegen_grid(j->kernel), &j->grid);
}

/* In two calls where there are two items: a range must not depend on where it starts. */
void jit_run(const jit *j, void *const *buffers, const int64_t *symbols, int64_t grid) {
  int64_t middle = grid / 2;
  j->fn(buffers, symbols, middle, grid);
  j->fn(buffers, symbols, 0, middle);
}

bool jit_emits(const jit *j, const char *word) {
  char *text;
  size_t size;
  kva_text copy = {0};
  require(j, kva_codegen_emit(j->cg, "llvm", &text, &size), "emit");
  kva_text_add(&copy, "%.*s", (int)size, text);
  bool found = strstr(copy.data, word);
  kva_text_free(&copy);
  free(text);
  return found;
}

void jit_destroy(jit *j) {
  kva_codegen_destroy(j->cg);
  kva_diag_destroy(j->diag);
  kva_arena_destroy(j->arena);
}
