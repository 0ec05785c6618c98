/* The evaluator: binding of symbols, state, constants, fused groups, traces, and errors that only values can show. */
#include "tools/verify/cases.h"
#include "ops/ids.h"

#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

KVA_OP_FUNCTIONS(kernel)

typedef struct fixture {
  kva_diag *diag;
  kva_module *m;
  kva_function *f;
  kva_builder b;
} fixture;

static fixture setup(void) {
  fixture t = {.diag = kva_diag_create()};
  t.m = kva_module_create(t.diag);
  t.f = kva_function_create(t.m, "main");
  t.b = (kva_builder){.m = t.m, .graph = t.f->graph};
  return t;
}

static void teardown(fixture *t) {
  kva_module_destroy(t->m);
  kva_diag_destroy(t->diag);
}

static kva_value *input(fixture *t, const char *name, kva_dim dim) {
  return kva_graph_add_input(t->f->graph, kva_type_tensor(t->m, KVA_F32, 1, &dim), name);
}

static kva_ref_tensor *vector(int64_t n, double first) {
  kva_ref_tensor *w = kva_ref_tensor_create(KVA_F32, 1, &n);
  for (int64_t i = 0; i < n; i++) w->f[i] = first + (double)i;
  return w;
}

static void finish(fixture *t, kva_value *v) {
  kva_build_node(&t->b, KVA_OP_return, 1, &v, 0, NULL);
  assert_false(t->b.failed);
  assert_int_equal(kva_module_verify(t->m), KVA_OK);
}

static kva_status run2(fixture *t, int64_t n0, int64_t n1, kva_ref_tensor **out) {
  kva_ref_tensor *x = vector(n0, 1), *y = vector(n1, 10);
  kva_status status = kva_run_reference(NULL, t->m, t->f, (const kva_ref_tensor *const[]){x, y}, out, t->diag);
  kva_ref_tensor_free(x);
  kva_ref_tensor_free(y);
  return status;
}

/* x: [P + T], y: [P]: T follows from both. */
static void test_symbols_are_solved(void **state) {
  (void)state;
  fixture t = setup();
  kva_dim p = kva_expr_symbol(t.m->exprs, "P"), time = kva_expr_symbol(t.m->exprs, "T");
  kva_value *x = input(&t, "x", kva_expr_add(t.m->exprs, p, time));
  input(&t, "y", p);
  kva_dims_attrs attrs = {.values = {1, &time}, .scalar = true};
  (void)x;
  finish(&t, kva_build(&t.b, KVA_OP_dims, 0, NULL, &attrs));
  kva_ref_tensor *out[1];
  assert_int_equal(run2(&t, 7, 3, out), KVA_OK);
  assert_int_equal(out[0]->i[0], 4);
  kva_ref_tensor_free(out[0]);
  assert_int_equal(run2(&t, 2, 3, out), KVA_INVALID); /* T would be negative */
  teardown(&t);
}

static void test_contradicting_shapes(void **state) {
  (void)state;
  fixture t = setup();
  kva_dim n = kva_expr_symbol(t.m->exprs, "N");
  kva_value *x = input(&t, "x", n), *y = input(&t, "y", n);
  finish(&t, kva_add(&t.b, x, y));
  kva_ref_tensor *out[1];
  assert_int_equal(run2(&t, 3, 4, out), KVA_INVALID);
  assert_null(out[0]);
  assert_non_null(strstr(kva_diag_message(t.diag, 0, NULL, NULL), "input y: axis 0: expected extent 3, found 4"));
  assert_int_equal(run2(&t, 3, 3, out), KVA_OK);
  assert_true(out[0]->f[2] == 15);
  kva_ref_tensor_free(out[0]);
  teardown(&t);
}

static void test_wrong_input_dtype(void **state) {
  (void)state;
  fixture t = setup();
  kva_value *x = input(&t, "x", kva_expr_const(t.m->exprs, 2));
  finish(&t, kva_neg(&t.b, x));
  int64_t two = 2;
  kva_ref_tensor *w = kva_ref_tensor_create(KVA_I32, 1, &two), *out[1];
  assert_int_equal(kva_run_reference(NULL, t.m, t.f, (const kva_ref_tensor *const[]){w}, out, t.diag), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(t.diag, 0, NULL, NULL), "expected float[2], found int32[2]"));
  kva_ref_tensor_free(w);
  teardown(&t);
}

static kva_ref_tensor *live_state(void *user, kva_state *s) {
  (void)s;
  return user;
}

/* y = counter; counter = counter + x */
static void test_state(void **state) {
  (void)state;
  fixture t = setup();
  kva_value *x = input(&t, "x", kva_expr_const(t.m->exprs, 2));
  kva_state *s = kva_state_create(t.m, "counter", x->type, KVA_STATE_BUFFER);
  kva_value *old = kva_build(&t.b, KVA_OP_state_read, 0, NULL, &(kva_state_read_attrs){.state = s});
  kva_value *sum = kva_add(&t.b, old, x);
  kva_build_node(&t.b, KVA_OP_state_write, 1, &sum, 0, &(kva_state_write_attrs){.state = s});
  finish(&t, old);
  kva_ref_tensor *live = vector(2, 5), *in = vector(2, 1), *out[1];
  const kva_ref_tensor *inputs[1] = {in};
  for (int step = 0; step < 2; step++) {
    assert_int_equal(kva_ref_run(t.m, t.f, inputs, out, live_state, live, NULL, NULL, t.diag), KVA_OK);
    assert_true(out[0]->f[1] == 6 + 2 * step);
    kva_ref_tensor_free(out[0]);
  }
  assert_true(live->f[0] == 7 && live->f[1] == 10);
  assert_int_equal(kva_ref_run(t.m, t.f, inputs, out, NULL, NULL, NULL, NULL, t.diag), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(t.diag, 0, NULL, NULL), "state counter has no value"));
  kva_ref_tensor_free(live);
  kva_ref_tensor_free(in);
  teardown(&t);
}

static void count_values(void *user, const kva_value *v, const kva_ref_tensor *w) {
  (void)v;
  assert_non_null(w);
  ++*(int *)user;
}

/* y = kernel { -(x * x) }(x) + 2 */
static void test_group_constant_trace(void **state) {
  (void)state;
  fixture t = setup();
  kva_value *x = input(&t, "x", kva_expr_symbol(t.m->exprs, "N"));
  kva_kernel_attrs *attrs = kva_attrs_default(t.m->arena, KVA_OP(kernel)->attrs);
  kva_node *group = kva_node_create(t.f->graph, NULL, KVA_OP(kernel), 1, &x, 1, attrs, (kva_loc){0});
  kva_builder inner = {.m = t.m, .graph = kva_graph_create(t.m, group)};
  kva_value *a = kva_graph_add_input(inner.graph, x->type, "a");
  kva_value *r = kva_neg(&inner, kva_mul(&inner, a, a));
  kva_build_node(&inner, KVA_OP_return, 1, &r, 0, NULL);
  const kva_type *types[1];
  assert_int_equal(kva_kernel_infer(t.m, group, types), KVA_OK);
  kva_result(group, 0)->type = types[0];
  finish(&t, kva_add(&t.b, kva_result(group, 0), kva_const_scalar(&t.b, KVA_F32, 2)));
  kva_ref_tensor *in = vector(3, 1), *out[1];
  int n = 0;
  assert_int_equal(
      kva_ref_run(t.m, t.f, (const kva_ref_tensor *const[]){in}, out, NULL, NULL, count_values, &n, t.diag), KVA_OK);
  assert_true(out[0]->f[0] == 1 && out[0]->f[2] == -7);
  assert_int_equal(n, 6); /* input, square, negation, group, constant, sum */
  kva_ref_tensor_free(in);
  kva_ref_tensor_free(out[0]);
  teardown(&t);
}

/* Results are rounded to their dtype node by node. */
static void test_rounding(void **state) {
  (void)state;
  kva_case c = {.op = KVA_OP_add, .dtype = KVA_BF16, .in = {{"1", 0, 0, 0, "256"}, {"1", 0, 0, 0, "1"}}};
  kva_case_built built;
  kva_ref_tensor *out[1];
  assert_int_equal(kva_case_build(&c, KVA_DTYPE_NONE, &built), KVA_OK);
  assert_int_equal(
      kva_run_reference(NULL, built.m, built.f, (const kva_ref_tensor *const *)built.inputs, out, built.diag), KVA_OK);
  assert_true(out[0]->f[0] == 256); /* 257 needs nine bits: ties to even */
  kva_ref_tensor_free(out[0]);
  kva_case_free(&built);
}

static void expect_value_error(kva_case c, const char *message) {
  kva_case_built built;
  kva_ref_tensor *out[2];
  assert_int_equal(kva_case_build(&c, KVA_DTYPE_NONE, &built), KVA_OK);
  assert_int_equal(
      kva_run_reference(NULL, built.m, built.f, (const kva_ref_tensor *const *)built.inputs, out, built.diag),
      KVA_INVALID);
  assert_int_equal(kva_diag_count(built.diag), 1);
  assert_non_null(strstr(kva_diag_message(built.diag, 0, NULL, NULL), message));
  kva_case_free(&built);
}

static void test_values_out_of_range(void **state) {
  (void)state;
  expect_value_error((kva_case){.op = KVA_OP_gather, .in = {{"3,2"}, {"2", 0, 0, KVA_I64, "0,3"}}},
                     "index 3 is out of range for axis 0 of extent 3");
  expect_value_error((kva_case){.op = KVA_OP_scatter_nd, .in = {{"3,2"}, {"1,2", 0, 0, KVA_I64, "0,-3"}, {"1"}}},
                     "index -3 is out of range for axis 1 of extent 2");
  expect_value_error((kva_case){.op = KVA_OP_gather_grad, .attrs = "extent=2", .in = {{"1"}, {"1", 5, 5, KVA_I64}}},
                     "index 5 is out of range");
  expect_value_error((kva_case){.op = KVA_OP_sort_indices, .attrs = "extent=2", .in = {{"1", -3, -3, KVA_I64}}},
                     "index -3 is out of range");
  expect_value_error((kva_case){.op = KVA_OP_slice, .attrs = "starts=0; shape=4", .in = {{"N=3"}}},
                     "index 3 is outside");
  expect_value_error((kva_case){.op = KVA_OP_argmax, .in = {{"N=0"}}}, "axis 0 is empty");
  expect_value_error((kva_case){.op = KVA_OP_top_k, .attrs = "count=4", .in = {{"N=3"}}},
                     "axis 0 has 3 elements; count is 4");
  expect_value_error((kva_case){.op = KVA_OP_pad, .attrs = "before=1; after=0; mode=edge", .in = {{"N=0"}}},
                     "nothing to take from");
}

static void test_ref_tensor_packing(void **state) {
  (void)state;
  const int64_t dims[1] = {3};
  const unsigned char packed[2] = {0x21, 0x0F}; /* int4: 1, 2, -1 */
  kva_ref_tensor *w = kva_ref_tensor_from_data(KVA_I4, 1, dims, packed);
  assert_true(w->i[0] == 1 && w->i[1] == 2 && w->i[2] == -1);
  unsigned char back[2] = {0};
  kva_ref_tensor_to_data(w, back);
  assert_memory_equal(back, packed, sizeof back);
  kva_ref_tensor_free(w);
  const int64_t huge[2] = {INT64_MAX / 4, 16};
  assert_null(kva_ref_tensor_create(KVA_F32, 2, huge));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_symbols_are_solved),   cmocka_unit_test(test_contradicting_shapes),
      cmocka_unit_test(test_wrong_input_dtype),    cmocka_unit_test(test_state),
      cmocka_unit_test(test_group_constant_trace), cmocka_unit_test(test_rounding),
      cmocka_unit_test(test_values_out_of_range),  cmocka_unit_test(test_ref_tensor_packing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
