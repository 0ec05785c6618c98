/* What bounds the passes themselves: long chains take linear time, and long products are not folded. */
#include "passes/passes.h"
#include "ops/ids.h"
#include "tests/ops/fixture.h"

#include <stdlib.h>
#include <setjmp.h>
#include <unistd.h>
#include <cmocka.h>

enum { SECONDS = 120 /* a fusion of quadratic time would take five minutes, a linear one takes a second */ };

static kva_value *input(fx_graph *t, int64_t extent) {
  kva_dim dim = kva_expr_const(t->m->exprs, extent);
  return fx_input(t, "x", 1, &dim);
}

static uint32_t count(const fx_graph *t, kva_op_id op) {
  uint32_t n = 0;
  for (const kva_node *k = t->f->graph->first; k; k = k->next) n += kva_is(k, op);
  return n;
}

static void prepare(fx_graph *t) {
  alarm(SECONDS);
  assert_int_equal(kva_optimize(t->m, &(kva_pass_options){0}), KVA_OK);
  assert_int_equal(kva_prepare(t->m, &(kva_pass_options){0}), KVA_OK);
  alarm(0);
}

/* Every node reads the input. */
static void additions(void **state) {
  (void)state;
  fx_graph t = fx_graph_create();
  kva_value *x = input(&t, 2), *y = x;
  for (int i = 0; i < 100000; i++) y = kva_add(&t.b, y, x);
  fx_return(&t, 1, &y);
  prepare(&t);
  assert_int_equal(count(&t, KVA_OP_kernel), (100000 + 63) / 64);
  fx_graph_destroy(&t);
}

/* Every second node reads a cheap value, and all read one that is not. */
static void shared_values(void **state) {
  (void)state;
  fx_graph t = fx_graph_create();
  kva_value *x = input(&t, 2), *cheap = kva_add(&t.b, x, x), *costly = kva_build(&t.b, KVA_OP_tanh, 1, &x, NULL);
  kva_value *y = x;
  for (int i = 0; i < 20000; i++) y = kva_add(&t.b, kva_mul(&t.b, y, costly), cheap);
  fx_return(&t, 1, &y);
  prepare(&t);
  assert_in_range(count(&t, KVA_OP_kernel), 20000 * 2 / 64, 20000 * 2 / 60);
  fx_graph_destroy(&t);
}

static kva_value *constant_matrix(fx_graph *t, int64_t n) {
  float *data = KVA_NEW_ARRAY(t->m->arena, float, (size_t)(n * n));
  int64_t *dims = KVA_NEW_ARRAY(t->m->arena, int64_t, 2);
  kva_tensor_data *w = KVA_NEW(t->m->arena, kva_tensor_data);
  dims[0] = dims[1] = n;
  *w = (kva_tensor_data){.dtype = KVA_F32, .rank = 2, .dims = dims, .data = data, .bytes = n * n * 4};
  for (int64_t i = 0; i < n * n; i++) data[i] = (float)(i % 7);
  return kva_const_tensor(&t->b, w);
}

/* Products left when [n, n] @ [n, n] of constants have been folded. */
static uint32_t products_left(int64_t n) {
  fx_graph t = fx_graph_create();
  kva_value *a = constant_matrix(&t, n);
  kva_value *y = kva_matmul(&t.b, a, a, false, false);
  fx_return(&t, 1, &y);
  bool changed = false;
  assert_int_equal(kva_opt_fold(t.m, &(kva_pass_options){0}, &changed), KVA_OK);
  uint32_t left = count(&t, KVA_OP_matmul);
  fx_graph_destroy(&t);
  return left;
}

static void products(void **state) {
  (void)state;
  assert_int_equal(products_left(64), 0);
  assert_int_equal(products_left(2000), 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(additions),
      cmocka_unit_test(shared_values),
      cmocka_unit_test(products),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
