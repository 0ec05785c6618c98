/* The cases of every operator cover what they must: odd sizes, size 1, size 0 and broadcasting; and they are the same
 * on every machine. The report counts what fails. */
#include "tools/verify/verify.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

typedef struct coverage {
  int cases;
  bool odd, one, zero, broadcast;
} coverage;

static void see_shapes(coverage *seen, const kva_case *c) {
  kva_case_built built;
  assert_int_equal(kva_case_build(c, KVA_DTYPE_NONE, &built), KVA_OK);
  const kva_type *result = built.node->results[0].type;
  for (uint32_t i = 0; i < built.node->n_operands; i++) {
    const kva_value *v = kva_operand(built.node, i);
    if (v) seen->broadcast |= kva_type_with_dtype(built.m, v->type, result->dtype) != result;
  }
  for (uint32_t i = 0; i < built.n_inputs; i++) {
    const kva_ref_tensor *w = built.inputs[i];
    for (uint32_t d = 0; d < w->rank; d++) {
      seen->odd |= w->dims[d] > 1 && w->dims[d] % 2;
      seen->one |= w->dims[d] == 1;
      seen->zero |= w->dims[d] == 0;
    }
  }
  seen->cases++;
  kva_case_free(&built);
}

static void see_listed(coverage *seen, kva_op_id op) {
  const kva_case_table *tables[] = {&kva_cases_core, &kva_cases_nn};
  for (int t = 0; t < 2; t++)
    for (uint32_t i = 0; i < tables[t]->n; i++)
      if (tables[t]->cases[i].op == op) see_shapes(seen, &tables[t]->cases[i]);
}

static void see_random(coverage *seen, kva_op_id op) {
  kva_arena *arena = kva_arena_create();
  kva_dtype_set set = kva_case_op_dtypes(op);
  kva_case c;
  for (int t = 1; t < KVA_DTYPE_COUNT; t++)
    for (uint32_t i = 0; kva_dtype_in(set, (kva_dtype)t) && i < 4; i++)
      if (kva_case_random(arena, op, (kva_dtype)t, i, &c)) see_shapes(seen, &c);
  kva_arena_destroy(arena);
}

/* From nothing, or of scalars alone. */
static bool takes_no_shapes(kva_op_id op) {
  return kva_case_op_dtypes(op) == 0;
}

static void test_shapes(void **state) {
  (void)state;
  int failures = 0;
  for (uint32_t op = 0; op < kva_ops.n; op++) {
    const kva_op_info *info = kva_ops.ops[op];
    if (!kva_op_has_code(info) || takes_no_shapes((kva_op_id)op)) continue;
    coverage seen = {0};
    see_listed(&seen, (kva_op_id)op);
    see_random(&seen, (kva_op_id)op);
    bool broadcasts = (info->traits & KVA_ELEMENTWISE) && info->max_operands > 1;
    if (seen.odd && seen.one && seen.zero && (seen.broadcast || !broadcasts)) continue;
    print_error("kv.%s: of %d cases, odd sizes %d, size 1 %d, size 0 %d, broadcasting %d\n", info->name, seen.cases,
                seen.odd, seen.one, seen.zero, seen.broadcast);
    failures++;
  }
  assert_int_equal(failures, 0);
}

/* Without values and ranges a case is for all dtypes; with a range for the class it names; with values for its own. */
static void test_dtypes(void **state) {
  (void)state;
  kva_case any = {.op = KVA_OP_add, .in = {{"3"}, {"3"}}}, range = {.op = KVA_OP_add, .in = {{"3", 1, 2}, {"3"}}};
  kva_case ints = {.op = KVA_OP_add, .dtype = KVA_I8, .in = {{"3", 1, 2}, {"3"}}};
  kva_case values = {.op = KVA_OP_add, .dtype = KVA_I8, .in = {{"3", .values = "1"}, {"3"}}};
  assert_int_equal(kva_case_dtypes(&any), kva_case_op_dtypes(KVA_OP_add));
  assert_int_equal(__builtin_popcount(kva_case_dtypes(&range)), 4);
  assert_int_equal(__builtin_popcount(kva_case_dtypes(&ints)), 8);
  assert_int_equal(kva_case_dtypes(&values), 1u << KVA_I8);
  assert_int_equal(__builtin_popcount(kva_case_op_dtypes(KVA_OP_where)), 13);
}

static void test_random_is_deterministic(void **state) {
  (void)state;
  kva_arena *arena = kva_arena_create();
  kva_case a, b, c;
  assert_true(kva_case_random(arena, KVA_OP_slice, KVA_F32, 3, &a));
  assert_true(kva_case_random(arena, KVA_OP_slice, KVA_F32, 3, &b));
  assert_true(kva_case_random(arena, KVA_OP_slice, KVA_F32, 4, &c));
  assert_string_equal(a.in[0].shape, b.in[0].shape);
  assert_string_equal(a.attrs, b.attrs);
  assert_string_not_equal(a.attrs, c.attrs);
  assert_false(kva_case_random(arena, KVA_OP_return, KVA_F32, 0, &c));
  kva_arena_destroy(arena);
}

static kva_status run_wrongly(void *user, kva_module *m, kva_function *f, const kva_ref_tensor *const *inputs,
                              kva_ref_tensor **outputs, kva_diag *diag) {
  KVA_TRY(kva_run_reference(user, m, f, inputs, outputs, diag));
  if (outputs[0]->i && outputs[0]->n) outputs[0]->i[0]++;
  return KVA_OK;
}

/* An executor that is wrong in integers: the report says which cases fail, and how badly. */
static void test_report_counts_failures(void **state) {
  (void)state;
  kva_verify_report report;
  kva_diag *diag = kva_diag_create();
  kva_verify_options options = {.op = "add", .run = run_wrongly, .n_random = 1, .threads = 1};
  assert_int_equal(kva_verify(&options, diag, &report), KVA_OK);
  assert_int_equal(report.n, 1);
  const kva_verify_row *row = &report.rows[0];
  assert_true(row->compiled_passed > 16 && row->compiled - row->compiled_passed > 24);
  assert_true(row->gradients && row->gradients == row->gradients_passed && row->error > 1);
  assert_int_equal(report.failed, row->compiled - row->compiled_passed);
  assert_non_null(strstr(report.messages.data, "kv.add <> int8["));
  kva_verify_free(&report);
  options.run = kva_run_reference;
  assert_int_equal(kva_verify(&options, diag, &report), KVA_OK);
  assert_true(!report.failed && !report.skipped && !report.messages.len);
  kva_verify_free(&report);
  kva_diag_destroy(diag);
}

static kva_status run_with_wrong_floats(void *user, kva_module *m, kva_function *f, const kva_ref_tensor *const *inputs,
                                        kva_ref_tensor **outputs, kva_diag *diag) {
  KVA_TRY(kva_run_reference(user, m, f, inputs, outputs, diag));
  if (outputs[0]->f && outputs[0]->n) outputs[0]->f[0] += 1;
  return KVA_OK;
}

static kva_status run_nothing(void *user, kva_module *m, kva_function *f, const kva_ref_tensor *const *inputs,
                              kva_ref_tensor **outputs, kva_diag *diag) {
  (void)user, (void)m, (void)f, (void)inputs, (void)outputs;
  return kva_fail(diag, KVA_UNSUPPORTED, NULL, "there is no code");
}

/* Gradients go through the executor, too; what it has no code for fails and is counted. */
static void test_report_counts_gradients(void **state) {
  (void)state;
  kva_verify_report report;
  kva_diag *diag = kva_diag_create();
  kva_verify_options options = {.op = "mul", .run = run_with_wrong_floats, .threads = 1};
  assert_int_equal(kva_verify(&options, diag, &report), KVA_OK);
  const kva_verify_row *row = &report.rows[0];
  assert_true(row->backward && row->backward == row->gradients && row->backward_error > 1);
  assert_int_equal(row->backward_passed, 1); /* the one without elements */
  assert_true(row->gradients == row->gradients_passed && !report.unsupported);
  kva_verify_free(&report);
  options.run = run_nothing;
  assert_int_equal(kva_verify(&options, diag, &report), KVA_OK);
  assert_true(!row->compiled_passed && !row->backward_passed && row->gradients == row->gradients_passed);
  assert_int_equal(report.unsupported, row->compiled + row->backward);
  assert_int_equal(report.failed, report.unsupported);
  assert_non_null(strstr(report.messages.data, "there is no code"));
  kva_verify_free(&report);
  kva_diag_destroy(diag);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_shapes), cmocka_unit_test(test_dtypes), cmocka_unit_test(test_random_is_deterministic),
      cmocka_unit_test(test_report_counts_failures), cmocka_unit_test(test_report_counts_gradients)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
