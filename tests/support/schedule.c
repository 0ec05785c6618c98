#include "tests/support/schedule.h"
#include "codegen/codegen.h"

#include <setjmp.h>
#include <cmocka.h>

kva_text scheduled_text(const char *arch, const char *source) {
  kva_arena *arena = kva_arena_create();
  kva_diag *diag = kva_diag_create();
  kva_kernel *k = kva_kernel_parse(arena, kva_expr_ctx_create(arena), source, "source", diag);
  if (!k) kva_diag_print(diag, stderr);
  assert_non_null(k);
  kva_codegen *cg;
  assert_int_equal(kva_codegen_create(&(kva_target_options){.arch = arch}, diag, &cg), KVA_OK);
  kva_codegen_schedule(k, kva_codegen_target(cg));
  assert_int_equal(kva_kernel_verify(k, diag), KVA_OK);
  kva_text text = {0};
  kva_kernel_print(k, &text);
  kva_codegen_destroy(cg);
  kva_diag_destroy(diag);
  kva_arena_destroy(arena);
  return text;
}
