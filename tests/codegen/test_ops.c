/* Compiled code against the reference, for every operator in every dtype: on the host's vectors and on 256-bit ones.
 * Gradients: tests/ops/test_ref_cases.c; all at once: kvasir ops --verify. */
#include "codegen/codegen.h"
#include "tests/support/target.h"
#include "tests/support/part.h"
#include "tools/verify/verify.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static void check_complete(const kva_verify_row *row) {
  if (kva_op_has_code(row->op) && (row->missing || !row->compiled))
    fail_msg("kv.%s: no case in some dtype (set 0x%x)", row->op->name, row->missing);
}

/* Returns how many cases passed. */
static uint32_t check_operator(kva_verify_options options, const char *name, bool complete) {
  kva_verify_report report;
  kva_diag *diag = kva_diag_create();
  options.op = name;
  assert_int_equal(kva_verify(&options, diag, &report), KVA_OK);
  if (report.messages.len) print_error("%s", report.messages.data);
  assert_int_equal(report.failed, 0);
  assert_int_equal(report.n, 1);
  if (complete) check_complete(&report.rows[0]);
  kva_verify_free(&report);
  kva_diag_destroy(diag);
  return report.passed;
}

/* KVA_TEST_CASE=name runs the cases of one operator. In each run an operator falls to another part: LLVM takes long for
 * a few. */
static void check(kva_verify_options options, bool complete, uint32_t run) {
  const char *only = getenv("KVA_TEST_CASE");
  uint32_t passed = 0;
  for (uint32_t op = 0; op < KVA_OP_COUNT; op++) {
    const char *name = kva_ops.ops[op]->name;
    if (only ? !strcmp(only, name) : in_part(op + run)) passed += check_operator(options, name, complete);
  }
  assert_true(passed > 0);
}

static void test_host(void **state) {
  (void)state;
  kva_target_options target = test_target(2, NULL);
  const uint32_t every = sanitized() ? 3 : 0; /* the compiler runs the same lines for most of an operator's cases */
  check((kva_verify_options){.run_user = &target, .n_random = 2, .every = every, .no_gradients = true}, true, 0);
}

static void test_avx2(void **state) {
  (void)state;
  if (sanitized()) {
    print_message("SKIP: sanitizers see the same code for every width of vectors\n");
    skip();
  }
  kva_target_options target = test_target(2, NULL);
  target.cpu = "x86-64-v3";
  check((kva_verify_options){.run_user = &target, .no_gradients = true}, false, 1);
}

static void test_unknown_operator(void **state) {
  (void)state;
  kva_verify_report report;
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_verify(&(kva_verify_options){.op = "nothing"}, diag, &report), KVA_INVALID);
  assert_int_equal(kva_diag_errors(diag), 1);
  kva_diag_destroy(diag);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_host), cmocka_unit_test(test_avx2),
                                     cmocka_unit_test(test_unknown_operator)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
