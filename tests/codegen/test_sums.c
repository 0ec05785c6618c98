/* The order of additions: strict_order is that of indices; else it depends on the extent, not on the rest of the loop.
 */
#include "tests/support/jit.h"

#include <setjmp.h>
#include <cmocka.h>

enum { MAX = 1000 };
static float x[MAX], out[MAX + 2];

/* strict_order: the same bits as a plain loop. */
static void test_strict_order(void **state) {
  (void)state;
  enum { N = 1000 };
  jit j = jit_create("sum");
  kva_kbuf *px = kva_k_param(j.kb, "x", KVA_F32, jit_const(&j, N)),
           *pz = kva_k_param(j.kb, "z", KVA_F32, jit_const(&j, 1));
  kva_kloop *l = kva_k_loop_begin(j.kb, KVA_K_SERIAL, jit_const(&j, N), "k");
  l->strict_order = true;
  kva_kval sum = kva_k_reduce(j.kb, l, KVA_COMBINE_ADD, kva_k_const(j.kb, KVA_F32, 0), kva_k_load(j.kb, px, l->var));
  kva_k_loop_end(j.kb, l);
  kva_k_store(j.kb, pz, jit_const(&j, 0), sum);
  jit_compile(&j, false, 0, NULL);
  float want = 0;
  for (int i = 0; i < N; i++) want += x[i] = 1 / (float)(i + 1);
  void *buffers[] = {x, out};
  j.fn(buffers, NULL, 0, 1);
  assert_memory_equal(out, &want, sizeof want);
  jit_destroy(&j);
}

/* The sum of x[0..n). A body of `chain` instructions has another result, and stores it or carries its maximum. */
static float sum_beside(kva_kloop_kind kind, int64_t n, bool is_symbolic, int chain, bool stores) {
  jit j = jit_create("sum");
  kva_kb *b = j.kb;
  const kva_expr *symbol = kva_expr_symbol(j.exprs, "N"), *extent = is_symbolic ? symbol : jit_const(&j, n);
  kva_kbuf *px = kva_k_param(j.kb, "x", KVA_F32, extent), *pz = kva_k_param(j.kb, "z", KVA_F32, jit_const(&j, 2)),
           *py = kva_k_param(j.kb, "y", KVA_F32, extent);
  kva_kval zero = kva_k_const(b, KVA_F32, 0);
  kva_kloop *l = kva_k_loop_begin(b, kind, extent, "k");
  kva_kval v = kva_k_load(b, px, l->var), other = v;
  for (int i = 0; i < chain; i++) other = kva_k2(b, i % 2 ? KVA_K_mul : KVA_K_add, other, v);
  if (stores) kva_k_store(b, py, l->var, other);
  kva_kval sum = kva_k_reduce(b, l, KVA_COMBINE_ADD, zero, v), most = zero;
  if (chain && !stores) most = kva_k_reduce(b, l, KVA_COMBINE_MAX, zero, other);
  kva_k_loop_end(b, l);
  kva_k_store(b, pz, jit_const(&j, 0), sum);
  kva_k_store(b, pz, jit_const(&j, 1), most);
  jit_compile(&j, true, 1, &symbol);
  void *buffers[] = {x, out, out + 2};
  j.fn(buffers, &n, 0, 1);
  jit_destroy(&j);
  return out[0];
}

/* A sum has the same bits whatever its loop computes beside it. */
static void test_order_of_sums(void **state) {
  (void)state;
  static const int chains[] = {3, 50, 210};
  static const int64_t extents[] = {5, 8, 19, 40, 61, 131, 200};
  for (int i = 0; i < MAX; i++) x[i] = 1 / (float)(i + 1);
  for (int e = 0; e < 7; e++) {
    int64_t n = extents[e];
    for (int kind = 0; kind < 4; kind++) {
      kva_kloop_kind loop = kind & 1 ? KVA_K_VECTOR : KVA_K_SERIAL;
      float alone = sum_beside(loop, n, kind & 2, 0, false);
      for (int c = 0; c < 6; c++) {
        float beside = sum_beside(loop, n, kind & 2, chains[c / 2], c % 2);
        assert_memory_equal(&beside, &alone, sizeof alone);
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_strict_order),
      cmocka_unit_test(test_order_of_sums),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
