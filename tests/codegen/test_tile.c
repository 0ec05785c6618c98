/* A register-tile product written on the kernel IR: the accumulators must stay in registers, and the code must be
 * right. KVA_BENCH=1 prints the rate. */
#include "tests/support/jit.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

enum { ROWS = 8, COLUMNS = 48, DEPTH = 256 };

static const kva_expr *at(const jit *j, const kva_expr *row, int64_t stride, const kva_expr *column) {
  return kva_expr_add(j->exprs, kva_expr_muli(j->exprs, row, stride), column);
}

/* serial k { unroll r { vector c { acc[r,c] = fma(a[r,k], b[k,c], acc[r,c]) } } } */
static void build(jit *j) {
  kva_kb *b = j->kb;
  kva_kbuf *pa = kva_k_param(b, "a", KVA_F32, jit_const(j, ROWS * DEPTH));
  kva_kbuf *pb = kva_k_param(b, "b", KVA_F32, jit_const(j, DEPTH * COLUMNS));
  kva_kbuf *pc = kva_k_param(b, "c", KVA_F32, jit_const(j, ROWS * COLUMNS));
  kva_kloop *g = kva_k_loop_begin(b, KVA_K_GRID, jit_const(j, 1), "g");
  kva_kbuf *acc = kva_k_local(b, "acc", KVA_F32, ROWS * COLUMNS);
  kva_kloop *r = kva_k_loop_begin(b, KVA_K_UNROLL, jit_const(j, ROWS), "r");
  kva_kloop *c = kva_k_loop_begin(b, KVA_K_VECTOR, jit_const(j, COLUMNS), "c");
  kva_k_store(b, acc, at(j, r->var, COLUMNS, c->var), kva_k_const(b, KVA_F32, 0));
  kva_k_loop_end(b, c);
  kva_k_loop_end(b, r);
  kva_kloop *k = kva_k_loop_begin(b, KVA_K_SERIAL, jit_const(j, DEPTH), "k");
  r = kva_k_loop_begin(b, KVA_K_UNROLL, jit_const(j, ROWS), "r");
  c = kva_k_loop_begin(b, KVA_K_VECTOR, jit_const(j, COLUMNS), "c");
  const kva_expr *i = at(j, r->var, COLUMNS, c->var);
  kva_kval x = kva_k_load(b, pa, at(j, r->var, DEPTH, k->var)), y = kva_k_load(b, pb, at(j, k->var, COLUMNS, c->var));
  kva_k_store(b, acc, i, kva_k_op(b, KVA_K_fma, x, y, kva_k_load(b, acc, i)));
  kva_k_loop_end(b, c);
  kva_k_loop_end(b, r);
  kva_k_loop_end(b, k);
  r = kva_k_loop_begin(b, KVA_K_UNROLL, jit_const(j, ROWS), "r");
  c = kva_k_loop_begin(b, KVA_K_VECTOR, jit_const(j, COLUMNS), "c");
  i = at(j, r->var, COLUMNS, c->var);
  kva_k_store(b, pc, i, kva_k_load(b, acc, i));
  kva_k_loop_end(b, c);
  kva_k_loop_end(b, r);
  kva_k_loop_end(b, g);
}

static float a[ROWS * DEPTH], m[DEPTH * COLUMNS], out[ROWS * COLUMNS];

static void test_registers(void **state) {
  (void)state;
  jit j = jit_create("tile");
  build(&j);
  jit_compile(&j, false, 0, NULL);
  for (int i = 0; i < ROWS * DEPTH; i++) a[i] = (float)(i % 13 - 6);
  for (int i = 0; i < DEPTH * COLUMNS; i++) m[i] = (float)(i % 7 - 3);
  void *buffers[] = {a, m, out};
  jit_run(&j, buffers, NULL, 1);
  for (int r = 0; r < ROWS; r++) {
    for (int c = 0; c < COLUMNS; c++) {
      float sum = 0;
      for (int k = 0; k < DEPTH; k++) sum += a[r * DEPTH + k] * m[k * COLUMNS + c];
      assert_float_equal(out[r * COLUMNS + c], sum, 0);
    }
  }
  assert_false(jit_emits(&j, "alloca"));
  if (getenv("KVA_BENCH")) {
    double best = 1e9;
    for (int round = 0; round < 20; round++) {
      double t = kva_now();
      for (int i = 0; i < 2000; i++) j.fn(buffers, NULL, 0, 1);
      t = kva_now() - t;
      if (t < best) best = t;
    }
    printf("tile %dx%dx%d: %.1f GFLOP/s\n", ROWS, COLUMNS, DEPTH, 2e-9 * ROWS * COLUMNS * DEPTH * 2000 / best);
  }
  jit_destroy(&j);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_registers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
