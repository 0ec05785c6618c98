/* Operator Gradient: dy/dx by the operators' rules, while a model is imported. */
#include "tests/frontend/onnx_pack.h"

#include <math.h>

/* The gradient of y by `xs`, separated by commas, at `inputs`. */
static kva_text gradient_node(const char *xs, const char *inputs, const char *outputs, const char *y) {
  kva_text n = pk_node("Gradient", inputs, outputs, "gradient"), target = {0};
  pk_str(&n, 7, "ai.onnx.preview.training");
  pk_sub(&n, 5, pk_attr_strings("xs", xs));
  pk_str(&target, 1, "y");
  pk_int(&target, 20, 3);
  pk_str(&target, 4, y);
  pk_sub(&n, 5, target);
  return n;
}

/* y = (a + b) a of scalars, and its gradient. */
static kva_text gradient_model(const char *xs, const char *inputs, const char *y) {
  kva_text g = {0};
  pk_sub(&g, 1, pk_node("Add", "a b", "c", "add"));
  pk_sub(&g, 1, pk_node("Mul", "c a", "y", "mul"));
  pk_sub(&g, 1, gradient_node(xs, inputs, "da db", y));
  pk_sub(&g, 11, pk_value("a", KVA_F32, ""));
  pk_sub(&g, 11, pk_value("b", KVA_F32, ""));
  pk_sub(&g, 12, pk_value("da", KVA_F32, ""));
  pk_sub(&g, 12, pk_value("db", KVA_F32, ""));
  kva_text m = pk_model(g, 12);
  pk_sub(&m, 8, pk_opset("ai.onnx.preview.training", 1));
  return m;
}

/* Frees the model. */
static void run(kva_text bytes, kva_ref_tensor *const *in, kva_ref_tensor **out) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_status status = pk_load(&bytes, diag, &m);
  if (!status)
    status = kva_ref_run(m, m->functions.data[0], (const kva_ref_tensor *const *)in, out, NULL, NULL, NULL, NULL, diag);
  if (status) kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  kva_text_free(&bytes);
}

static void check(const char *y, double da, double db) {
  kva_ref_tensor *in[2] = {kva_ref_tensor_create(KVA_F32, 0, NULL), kva_ref_tensor_create(KVA_F32, 0, NULL)};
  kva_ref_tensor *out[2] = {NULL};
  in[0]->f[0] = 2, in[1]->f[0] = 3;
  run(gradient_model("a,b", "a b", y), in, out);
  assert_true(out[0]->f[0] == da && out[1]->f[0] == db);
  for (int i = 0; i < 2; i++) kva_ref_tensor_free(in[i]), kva_ref_tensor_free(out[i]);
}

static void test_gradients(void **unused) {
  (void)unused;
  check("y", 7, 2);
  check("c", 1, 1);
  check("b", 0, 1);
}

enum { ELEMENTS = 3 };

/* Model of sum(op(a)) of a[1, 1, 3], and its gradient. */
static kva_text operator_model(const char *op) {
  kva_text g = {0}, n = pk_node(op, "a", "f", "f");
  if (!strcmp(op, "LpPool")) {
    kva_text kernel = {0};
    pk_str(&kernel, 1, "kernel_shape");
    pk_int(&kernel, 20, 7);
    pk_int(&kernel, 8, ELEMENTS);
    pk_sub(&n, 5, kernel);
  }
  pk_sub(&g, 1, n);
  pk_sub(&g, 1, pk_node("ReduceSum", "f", "y", "sum"));
  pk_sub(&g, 1, gradient_node("a", "a", "da", "y"));
  pk_sub(&g, 11, pk_value("a", KVA_F32, "1,1,3"));
  pk_sub(&g, 12, pk_value("da", KVA_F32, "1,1,3"));
  kva_text m = pk_model(g, 13);
  pk_sub(&m, 8, pk_opset("ai.onnx.preview.training", 1));
  return m;
}

static void check_operator(const char *op, const double *a, const double *da) {
  kva_ref_tensor *in = kva_ref_tensor_create(KVA_F32, 3, (int64_t[]){1, 1, ELEMENTS}), *out = NULL;
  memcpy(in->f, a, ELEMENTS * sizeof *a);
  run(operator_model(op), &in, &out);
  for (int i = 0; i < ELEMENTS; i++)
    if (!(fabs(out->f[i] - da[i]) < 1e-6)) fail_msg("%s at %g: expected %g, found %g", op, a[i], da[i], out->f[i]);
  kva_ref_tensor_free(in), kva_ref_tensor_free(out);
}

/* Gradients of norms at 0 are 0, though that of a root is not finite. */
static void test_norm_of_zeros(void **unused) {
  (void)unused;
  static const char *const norms[] = {"ReduceL2", "LpNormalization", "GlobalLpPool", "LpPool"};
  const double zeros[ELEMENTS] = {0};
  for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) check_operator(norms[i], zeros, zeros);
}

/* An exponential that is not taken must not be infinite: times 0 its gradient is NaN. Celu and Elu are smooth at 0. */
static void test_exponential_units(void **unused) {
  (void)unused;
  const double x[ELEMENTS] = {-1, 0, 1000}, scale = 1.0507010221481323, alpha = 1.6732631921768188;
  check_operator("Elu", x, (double[]){exp(-1), 1, 1});
  check_operator("Celu", x, (double[]){exp(-1), 1, 1});
  check_operator("Selu", x, (double[]){scale * alpha * exp(-1), scale, scale});
}

static void test_refusals(void **unused) {
  (void)unused;
  pk_expect(gradient_model("a,b", "b a", "y"), KVA_UNSUPPORTED, "input 0 is not 'a': gradients at other values");
  pk_expect(gradient_model("a,b", "a b", "z"), KVA_UNSUPPORTED, "y is 'z', expected one float of this graph");
  pk_expect(gradient_model("a", "a b", "y"), KVA_INVALID, "do not fit each other");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients), cmocka_unit_test(test_norm_of_zeros),
                                     cmocka_unit_test(test_exponential_units), cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
