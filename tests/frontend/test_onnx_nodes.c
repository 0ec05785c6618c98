/* Single nodes with attributes that few models have, as text, run by the reference evaluator. */
#include "tests/frontend/onnx_pack.h"

#include <math.h>

#define MODEL(opset, body) "<ir_version: 10, opset_import: [\"\": " opset "]>\nagraph " body

typedef struct numbers {
  uint32_t n;
  const double *v;
} numbers;
#define V(...)                                                     \
  (numbers) {                                                      \
    sizeof((double[]){__VA_ARGS__}) / sizeof(double), (double[]) { \
      __VA_ARGS__                                                  \
    }                                                              \
  }

/* Output 0 of a model on the vector x. Returns its element type. */
static kva_dtype check(const char *text, numbers x, numbers expected) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  int64_t n = x.n;
  kva_ref_tensor *in = kva_ref_tensor_create(KVA_F32, 1, &n), *out[4] = {NULL};
  kva_status status = kva_load_text(text, "test", NULL, diag, &m);
  for (uint32_t i = 0; i < x.n; i++) in->f[i] = x.v[i];
  const kva_ref_tensor *list[] = {in};
  if (!status) status = kva_ref_run(m, m->functions.data[0], list, out, NULL, NULL, NULL, NULL, diag);
  if (status) kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  assert_int_equal(out[0]->n, expected.n);
  for (uint32_t i = 0; i < expected.n; i++) {
    double found = kva_ref_tensor_get(out[0], i);
    if (!(fabs(found - expected.v[i]) < 1e-5))
      fail_msg("%.480s: element %u is %g, expected %g", text, i, found, expected.v[i]);
  }
  kva_dtype t = out[0]->dtype;
  kva_ref_tensor_free(in);
  for (int i = 0; i < 4; i++) kva_ref_tensor_free(out[i]);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  return t;
}

/* An axis of one element mirrors everything to it. */
static void test_reflection_of_one_element(void **unused) {
  (void)unused;
  check(MODEL("20", "(float[3] x) => (float[1] y) <int64[4] image = {1, 1, 1, 3}, int64[4] points = {1, 1, 1, 2},"
                    " float[2] at = {0.5, -0.25}> {"
                    " a = Reshape (x, image) b = Reshape (at, points)"
                    " c = GridSample <align_corners = 1, mode = \"linear\", padding_mode = \"reflection\"> (a, b)"
                    " flat = Constant <value_ints = [-1]> () y = Reshape (c, flat) }"),
        V(1, 2, 4), V(3));
}

static void test_resize(void **unused) {
  (void)unused;
  /* the official example of version 10; enlarged, places are rounded down */
  check(MODEL("10", "(float[8] x) => (float[2] y) <int64[4] image = {1, 1, 2, 4}, int64[1] flat = {-1},"
                    " float[4] scales = {1, 1, 0.6, 0.6}> {"
                    " a = Reshape (x, image) b = Resize <mode = \"nearest\"> (a, scales) y = Reshape (b, flat) }"),
        V(1, 2, 3, 4, 5, 6, 7, 8), V(1, 3));
  check(MODEL("10", "(float[3] x) => (float[4] y) <float[1] scales = {1.5}> {"
                    " y = Resize <mode = \"nearest\"> (x, scales) }"),
        V(1, 2, 3), V(1, 1, 2, 3));
  /* the only element of a result is the first one of the image */
  check(MODEL("13", "(float[4] x) => (float[1] y) <int64[1] sizes = {1}> {"
                    " y = Resize <mode = \"cubic\", coordinate_transformation_mode = \"pytorch_half_pixel\">"
                    " (x, , , sizes) }"),
        V(5, 1, 1, 1), V(5));
}

/* Statistics have the type of stash_type, not that of the operand. */
static void test_type_of_statistics(void **unused) {
  (void)unused;
  kva_dtype t = check(MODEL("17", "(float[2] x) => (float[1] mean) <double[2] scale = {1, 1}> {"
                                  " wide = Cast <to = 11> (x) y, mean = LayerNormalization (wide, scale) }"),
                      V(1, 4), V(2.5));
  assert_int_equal(t, KVA_F32);
}

/* The window that ceil_mode adds ends behind the image. */
static void test_last_window_of_lp_pool(void **unused) {
  (void)unused;
  check(MODEL("18", "(float[4] x) => (float[2] y) <int64[3] s = {1, 1, 4}, int64[1] flat = {-1}> { a = Reshape (x, s)"
                    " b = LpPool <kernel_shape = [3], strides = [2], ceil_mode = 1> (a) y = Reshape (b, flat) }"),
        V(1, -2, 2, 4), V(3, sqrt(20)));
}

#define RECURRENT(rest) \
  MODEL("14",           \
        "(float[2] x) => (float[N] y) <int64[3] s = {2, 1, 1}, int64[1] flat = {-1}, float[1, 1, 1] one = {1}, " rest)

/* Functions take their numbers from the lists in order; the clip bounds what they are applied to. */
static void test_functions_of_gates(void **unused) {
  (void)unused;
  check(RECURRENT("float[1, 1, 1] none = {0}> { a = Reshape (x, s)"
                  " b = RNN <hidden_size = 1, activations = [\"ScaledTanh\"], activation_alpha = [2.0],"
                  " activation_beta = [0.5], clip = 1.0> (a, one, none) y = Reshape (b, flat) }"),
        V(0.5, 3), V(2 * tanh(0.25), 2 * tanh(0.5)));
  check(RECURRENT("float[2, 1, 1] two = {1, 1}, float[2, 1, 1] none = {0, 0}> { a = Reshape (x, s)"
                  " b = RNN <hidden_size = 1, direction = \"bidirectional\", activations = [\"LeakyRelu\", \"Affine\"],"
                  " activation_alpha = [0.1, 2.0], activation_beta = [3.0]> (a, two, none) y = Reshape (b, flat) }"),
        V(-1, 4), V(-0.1, 1, 4, 11));
}

/* With input_forget, what the input gate takes is what the forget gate leaves. */
static void test_coupled_gates(void **unused) {
  (void)unused;
  check(RECURRENT(
            "float[1, 4, 1] w = {1, 0, 0, 0}, float[1, 4, 1] none = {0, 0, 0, 0}> { a = Reshape (x, s)"
            " all, h, c = LSTM <hidden_size = 1, input_forget = 1> (a, w, none, , , , one) y = Reshape (c, flat) }"),
        V(1, 1), V(0.26894142137 * 0.26894142137));
}

/* 2047.875 is no half, and 15360 the bits of 1. */
static void statistics_of_halves_are_floats(void **state) {
  (void)state;
  check(MODEL("15",
              "(float[N] x) => (float16[N, 1] y) <float16[1] one = {15360}, float16[1] zero = {0}, float[1] mean = "
              "{2047.875}, float[1] var = {1}, int64[2] rows = {-1, 1}> { h = Cast <to = 10> (x) r = Reshape (h, "
              "rows) y = BatchNormalization <epsilon = 0.0> (r, one, zero, mean, var) }"),
        V(2048, 2050), V(0.125, 2.125));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(statistics_of_halves_are_floats),
      cmocka_unit_test(test_reflection_of_one_element),
      cmocka_unit_test(test_resize),
      cmocka_unit_test(test_type_of_statistics),
      cmocka_unit_test(test_last_window_of_lp_pool),
      cmocka_unit_test(test_functions_of_gates),
      cmocka_unit_test(test_coupled_gates),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
