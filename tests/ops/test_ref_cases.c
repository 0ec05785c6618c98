/* Every case of the list on the reference: it builds, verifies and runs, and where the operator has a gradient rule
 * that rule agrees with finite differences. Also: the list is complete. */
#include "tools/verify/cases.h"
#include "ops/ids.h"

#include <setjmp.h>
#include <cmocka.h>

static bool print_wrong(kva_check *check, bool ok) {
  if (check->message.len) print_error("%s", check->message.data);
  kva_text_free(&check->message);
  return ok;
}

static bool agrees(const kva_case *c, kva_executor run, void *user) {
  kva_check check = {0};
  bool ok = kva_case_check(c, KVA_DTYPE_NONE, run, user, &check);
  return print_wrong(&check, ok);
}

static bool gradient_agrees(const kva_case *c) {
  kva_check check = {0};
  bool ok = !kva_case_has_gradient(c) || kva_case_check_gradient(c, &check);
  return print_wrong(&check, ok);
}

static void check_gradients(const kva_case_table *table) {
  int failures = 0;
  for (uint32_t i = 0; i < table->n; i++) failures += !gradient_agrees(&table->cases[i]);
  assert_int_equal(failures, 0);
}

static void check_runs(const kva_case_table *table) {
  int failures = 0;
  for (uint32_t i = 0; i < table->n; i++) failures += !agrees(&table->cases[i], kva_run_reference, NULL);
  assert_int_equal(failures, 0);
}

static void test_core_runs(void **state) {
  (void)state;
  check_runs(&kva_cases_core);
}

static void test_core_gradients(void **state) {
  (void)state;
  check_gradients(&kva_cases_core);
}

static void test_nn_runs(void **state) {
  (void)state;
  check_runs(&kva_cases_nn);
}

static void test_nn_gradients(void **state) {
  (void)state;
  check_gradients(&kva_cases_nn);
}

/* Three cases an operator; a gradient rule is checked by at least one. */
static void test_complete(void **state) {
  (void)state;
  int found[KVA_OP_COUNT] = {0}, differentiated[KVA_OP_COUNT] = {0}, failures = 0;
  const kva_case_table *tables[2] = {&kva_cases_core, &kva_cases_nn};
  for (int t = 0; t < 2; t++) {
    for (uint32_t i = 0; i < tables[t]->n; i++) {
      const kva_case *c = &tables[t]->cases[i];
      found[c->op]++;
      differentiated[c->op] += kva_case_has_gradient(c);
    }
  }
  for (uint32_t op = 0; op < kva_ops.n; op++) {
    const kva_op_info *info = kva_ops.ops[op];
    bool enough = found[op] >= 3 && (info->vjp_kind != KVA_VJP_RULE || differentiated[op]);
    if (!kva_op_has_code(info) || enough) continue;
    print_error("kv.%s: %d cases, %d with a gradient\n", info->name, found[op], differentiated[op]);
    failures++;
  }
  assert_int_equal(failures, 0);
}

static kva_status run_wrongly(void *user, kva_module *m, kva_function *f, const kva_ref_tensor *const *inputs,
                              kva_ref_tensor **outputs, kva_diag *diag) {
  KVA_TRY(kva_run_reference(NULL, m, f, inputs, outputs, diag));
  outputs[0]->f[outputs[0]->n - 1] += *(const double *)user;
  return KVA_OK;
}

/* The harness itself: an error above the tolerance is found, one below is not. add allows one unit. */
static void test_harness_sees_errors(void **state) {
  (void)state;
  kva_case c = {.op = KVA_OP_add, .in = {{"3", 1, 1}, {"3", 0.5, 0.5}}};
  double large = 4 * kva_case_epsilon(KVA_F32), small = kva_case_epsilon(KVA_F32);
  assert_false(agrees(&c, run_wrongly, &large));
  assert_true(agrees(&c, run_wrongly, &small));
  kva_case kink = {.op = KVA_OP_abs, .in = {{"1", 0, 0, 0, "0.000015"}}};
  assert_false(gradient_agrees(&kink)); /* the differences reach across the kink, the rule does not */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_core_runs), cmocka_unit_test(test_core_gradients),
      cmocka_unit_test(test_nn_runs),   cmocka_unit_test(test_nn_gradients),
      cmocka_unit_test(test_complete),  cmocka_unit_test(test_harness_sees_errors),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
