/* Which exponentials of a sum GPUs approximate (codegen/legalize_near.c). */
#include "codegen/codegen.h"
#include "ir/kernel.h"

#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

/* The kernel as scheduled for sm_80; the caller frees the text. */
static kva_text scheduled(const char *source) {
  kva_arena *arena = kva_arena_create();
  kva_diag *diag = kva_diag_create();
  kva_kernel *k = kva_kernel_parse(arena, kva_expr_ctx_create(arena), source, "source", diag);
  if (!k) kva_diag_print(diag, stderr);
  assert_non_null(k);
  kva_codegen *cg;
  assert_int_equal(kva_codegen_create(&(kva_target_options){.arch = "sm_80"}, diag, &cg), KVA_OK);
  kva_codegen_schedule(k, kva_codegen_target(cg));
  assert_int_equal(kva_kernel_verify(k, diag), KVA_OK);
  kva_text text = {0};
  kva_kernel_print(k, &text);
  kva_codegen_destroy(cg);
  kva_diag_destroy(diag);
  kva_arena_destroy(arena);
  return text;
}

/* A row's sum of e^(x - m), a float. */
static void check_sum(const char *dtype, const char *combine, bool near) {
  kva_text source = {0};
  kva_text_add(&source,
               "kernel \"sum\" (read %s x[64*B], write float s[B]) {\n"
               "  parallel b < B {\n"
               "    serial i < 64 carry (%s float 0.0) {\n"
               "      %%0 = load x[64*b + i]\n"
               "      yield %%0\n"
               "    }\n"
               "    %%1 = reduce i[0]\n"
               "    serial j < 64 carry (add float 0.0) {\n"
               "      %%2 = load x[64*b + j]\n"
               "      %%3 = sub %%2, %%1 : float\n"
               "      %%4 = exp %%3 : float\n"
               "      yield %%4\n"
               "    }\n"
               "    %%5 = reduce j[0]\n"
               "    store s[b], %%5\n"
               "  }\n"
               "}\n",
               dtype, combine);
  kva_text text = scheduled(source.data);
  assert_int_equal(strstr(text.data, "near_exp2") != NULL, near);
  kva_text_free(&text);
  kva_text_free(&source);
}

static void test_short_elements(void **state) {
  (void)state;
  check_sum("bfloat16", "max", true);
  check_sum("float16", "max", true);
}

/* The rounding of float elements does not hide the error. */
static void test_float_elements(void **state) {
  (void)state;
  check_sum("float", "max", false);
}

/* What is subtracted may be far from every element, and so the error large. */
static void test_no_maximum(void **state) {
  (void)state;
  check_sum("bfloat16", "add", false);
  check_sum("bfloat16", "min", false);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_short_elements), cmocka_unit_test(test_float_elements),
                                     cmocka_unit_test(test_no_maximum)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
