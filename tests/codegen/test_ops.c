/* Every case of the operators' list, compiled, against the reference: on the host's vectors, on 256-bit ones, and in
 * the other float types. */
#include "tools/verify/cases.h"
#include "tools/verify/compiled.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

/* KVA_TEST_CASE=name runs the cases of one operator. */
static bool wanted(const kva_case *c) {
  const char *only = getenv("KVA_TEST_CASE");
  return !only || !strcmp(only, kva_ops.ops[c->op]->name);
}

static void check_table(const kva_case_table *table, kva_dtype dtype, kva_target_options *options) {
  int failures = 0;
  for (uint32_t i = 0; i < table->n; i++) {
    const kva_case *c = &table->cases[i];
    if (!wanted(c) || (dtype && (c->dtype || !(kva_ops.ops[c->op]->traits & KVA_FLOAT)))) continue;
    failures += !kva_case_check(c, dtype, kva_run_compiled, options);
  }
  assert_int_equal(failures, 0);
}

static void test_core(void **state) {
  (void)state;
  check_table(&kva_cases_core, KVA_DTYPE_NONE, NULL);
}

static void test_nn(void **state) {
  (void)state;
  check_table(&kva_cases_nn, KVA_DTYPE_NONE, NULL);
}

static void test_avx2(void **state) {
  (void)state;
  kva_target_options options = {.cpu = "x86-64-v3", .opt_level = 2};
  check_table(&kva_cases_core, KVA_DTYPE_NONE, &options);
  check_table(&kva_cases_nn, KVA_DTYPE_NONE, &options);
}

static void test_float_types(void **state) {
  (void)state;
  static const kva_dtype types[] = {KVA_F64, KVA_F16, KVA_BF16};
  for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
    check_table(&kva_cases_core, types[t], NULL);
    check_table(&kva_cases_nn, types[t], NULL);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_core), cmocka_unit_test(test_nn),
                                     cmocka_unit_test(test_avx2), cmocka_unit_test(test_float_types)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
