/* What the tests of ONNX text share. */
#ifndef KVA_TESTS_FRONTEND_ONNX_TEXT_H
#define KVA_TESTS_FRONTEND_ONNX_TEXT_H

#include "tests/frontend/kv_test.h"

/* Output 0 for x = {1, -2, 3, ...}; symbolic extents are 3. */
static inline void assert_result(const char *text, uint32_t n, const double *expected) {
  loaded l = load_ok(text, NULL);
  kva_function *f = l.m->functions.data[0];
  const kva_type *t = f->graph->inputs.data[0]->type;
  int64_t dims[KVA_MAX_RANK];
  for (uint32_t i = 0; i < t->rank; i++)
    if (!kva_expr_is_const(t->dims[i], &dims[i])) dims[i] = 3;
  kva_ref_tensor *x = kva_ref_tensor_create(t->dtype, t->rank, dims), *y = NULL;
  for (int64_t i = 0; i < x->n; i++) x->f[i] = (double)(i + 1) * (i % 2 ? -1 : 1);
  assert_int_equal(kva_ref_run(l.m, f, (const kva_ref_tensor *const[]){x}, &y, NULL, NULL, NULL, NULL, l.diag), KVA_OK);
  assert_int_equal(y->n, n);
  for (uint32_t i = 0; i < n; i++) assert_float_equal(kva_ref_tensor_get(y, i), expected[i], 1e-6);
  kva_ref_tensor_free(x);
  kva_ref_tensor_free(y);
  unload(&l);
}
#define ASSERT_RESULT(text, ...) \
  assert_result(text, sizeof((double[]){__VA_ARGS__}) / sizeof(double), (double[]){__VA_ARGS__})

#endif
