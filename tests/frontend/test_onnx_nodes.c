/* Single nodes whose results were wrong once, or that were refused without need, as tests/onnx/random_nodes.py found
 * them: models as text, run by the reference evaluator. */
#include "tests/frontend/onnx_pack.h"

#include <math.h>

#define OPSET(n) "<ir_version: 10, opset_import: [\"\": " #n "]>\nagraph "

/* An input of the graph takes the next of the numbers x: as many as it has elements, all that are left for a symbol. */
static kva_ref_tensor *next_input(const kva_type *t, const double **x, const double *end) {
  int64_t dims[KVA_MAX_RANK], total = 1;
  for (uint32_t d = 0; d < t->rank; d++) {
    if (!kva_expr_is_const(t->dims[d], &dims[d])) dims[d] = end - *x;
    total *= dims[d];
  }
  kva_ref_tensor *w = kva_ref_tensor_create(t->dtype, t->rank, dims);
  assert_true(total <= end - *x);
  for (int64_t i = 0; i < total; i++) {
    if (w->f)
      w->f[i] = *(*x)++;
    else
      w->i[i] = (int64_t) * (*x)++;
  }
  return w;
}

/* The first output of a model that was loaded; frees it. */
static void run(kva_status status, kva_diag *diag, kva_module *m, const char *text, uint32_t n, const double *x,
                uint32_t n_expected, const double *expected) {
  kva_ref_tensor *in[4] = {NULL}, *out[4] = {NULL};
  if (!status) {
    const kva_graph *g = m->functions.data[0]->graph;
    const double *next = x;
    for (uint32_t i = 0; i < g->inputs.len; i++) in[i] = next_input(g->inputs.data[i]->type, &next, x + n);
    status = kva_ref_run(m, m->functions.data[0], (const kva_ref_tensor *const *)in, out, NULL, NULL, NULL, NULL, diag);
  }
  if (status) kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  assert_int_equal(out[0]->n, n_expected);
  for (uint32_t i = 0; i < n_expected; i++) {
    double found = kva_ref_tensor_get(out[0], i);
    if (!(fabs(found - expected[i]) < 1e-6))
      fail_msg("%.480s: element %u is %g, expected %g", text, i, found, expected[i]);
  }
  for (int i = 0; i < 4; i++) kva_ref_tensor_free(in[i]), kva_ref_tensor_free(out[i]);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void check(const char *text, uint32_t n, const double *x, uint32_t n_expected, const double *expected) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_status status = kva_load_text(text, "test", NULL, diag, &m);
  run(status, diag, m, text, n, x, n_expected, expected);
}

#define X(...)                                                   \
  sizeof((double[]){__VA_ARGS__}) / sizeof(double), (double[]) { \
    __VA_ARGS__                                                  \
  }

/* A bias that is no whole number. */
static void test_shrink_of_integers(void **unused) {
  (void)unused;
  check(OPSET(9) "(int64[N] x) => (int64[N] y) { y = Shrink <bias = 0.875, lambd = 1.5> (x) }", X(1, 2, 5, -2, -5, 0),
        X(0, 1, 4, -1, -4, 0));
  check(OPSET(9) "(uint8[N] x) => (uint8[N] y) { y = Shrink <bias = 0.5, lambd = 0.5> (x) }", X(0, 1, 3), X(0, 0, 2));
}

/* The size of an operator's dimension is no negative number, but these are. */
static void test_range_of_negative_data(void **unused) {
  (void)unused;
  check(OPSET(11) "(int32 a) => (int32[N] y) <int32 b = {-8}, int32 c = {1}> { y = Range (a, b, c) }", X(-10),
        X(-10, -9));
  check(OPSET(11) "(int32 a) => (int32[N] y) <int32 b = {-8}, int32 c = {1}> { y = Range (a, b, c) }", X(3), 0, NULL);
  check(OPSET(11) "(int64 b) => (int64[N] y) <int64 a = {1}, int64 c = {-1}> { y = Range (a, b, c) }", X(-2),
        X(1, 0, -1));
  check(OPSET(11) "(int16 b) => (int16[N] y) <int16 a = {-9}, int16 c = {2}> { y = Range (a, b, c) }", X(-6),
        X(-9, -7));
}

/* The number of values is a symbol of the file. */
static void test_one_hot_of_unknown_values(void **unused) {
  (void)unused;
  kva_text g = {0};
  int64_t index[2] = {1, -2}, depth = 2;
  pk_sub(&g, 5, pk_i64s("x", 2, index));
  pk_sub(&g, 5, pk_i64s("n", 1, &depth));
  pk_sub(&g, 1, pk_node("OneHot", "x n v", "y", "hot"));
  pk_sub(&g, 11, pk_value("v", 1, "two"));
  pk_sub(&g, 12, pk_value("y", 1, "2,2"));
  kva_text model = pk_model(g, 11);
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_status status = pk_load(&model, diag, &m);
  run(status, diag, m, "OneHot", X(3, 4), X(3, 4, 4, 3));
  kva_text_free(&model);
}

static void test_hardmax_of_nothing(void **unused) {
  (void)unused;
  check(OPSET(13) "(float[2, 0] x) => (float[2, 0] y) { y = Hardmax (x) }", 0, (double[]){0}, 0, NULL);
}

/* An offset near the end of its type, which a row number is added to. */
static void test_trilu_of_large_offset(void **unused) {
  (void)unused;
  check(OPSET(14) "(int64 k, float[2, 2] x) => (float[2, 2] y) { y = Trilu (x, k) }",
        X(9223372036854774784.0, 1, 2, 3, 4), X(0, 0, 0, 0));
  check(OPSET(14) "(int64 k, float[2, 2] x) => (float[2, 2] y) { y = Trilu (x, k) }", X(1, 1, 2, 3, 4), X(0, 2, 0, 0));
  check(OPSET(14) "(float[2, 2] x) => (float[2, 2] y) <int64 k = {9223372036854775807}> { y = Trilu (x, k) }",
        X(1, 2, 3, 4), X(0, 0, 0, 0));
}

static void test_quantised_product_of_vectors(void **unused) {
  (void)unused;
  check(OPSET(21) "(uint8[2] x) => (uint8[2] y) <float s = {0.5}, uint8 z = {1}, uint8[2, 2] w = {1, 2, 3, 5}> {"
                  " y = QLinearMatMul (x, s, z, w, s, z, s, z) }",
        X(5, 3), X(3, 7)); /* (4 * 0 + 2 * 2, 4 * 1 + 2 * 4) / 2 + 1 */
}

/* ---- what the standard forbids ----------------------------------------------------------------------------------- */

/* An operand that broadcasts to another one, not both to each other. */
static void test_operands_that_enlarge_the_result(void **unused) {
  (void)unused;
  const char *message = "does not broadcast to the shape of the result";
  pk_refuse_text(OPSET(16) "(float[1, 3] x, float[2, 3] s) => (float[2, 3] y) { y = PRelu (x, s) }", KVA_INVALID,
                 message);
  pk_refuse_text(OPSET(13) "(float[1, 3] x, float[3, 3] w, float[2, 3] c) => (float[2, 3] y) { y = Gemm (x, w, c) }",
                 KVA_INVALID, message);
  pk_refuse_text(
      OPSET(13) "(float[2, 3] x, float[3, 3] w, float[1, 2, 3] c) => (float[1, 2, 3] y) { y = Gemm (x, w, c) }",
      KVA_INVALID, message);
  pk_refuse_text(OPSET(13) "(float[5, 1] x, float s, uint8[3] z) => (uint8[5, 3] y) { y = QuantizeLinear (x, s, z) }",
                 KVA_INVALID, message);
}

static void test_zero_points_of_products(void **unused) {
  (void)unused;
  pk_refuse_text(OPSET(10) "(uint8[1, 2] x, uint8[2, 3] w, uint8 z, uint8[3, 1] v) => (int32[3, 3] y) {"
                           " y = MatMulInteger (x, w, z, v) }",
                 KVA_INVALID, "input 3: zero points that do not broadcast");
  pk_refuse_text(OPSET(10) "(uint8[2, 2] x, uint8[2, 3] w, uint8[3] z) => (int32[2, 3] y) {"
                           " y = MatMulInteger (x, w, z) }",
                 KVA_INVALID, "input 2: zero points that do not broadcast");
}

/* An input where an opset has an attribute. */
static void test_axes_given_twice(void **unused) {
  (void)unused;
  pk_refuse_text(OPSET(11) "(float[1, 2, 1] x, int64[1] a) => (float[2, 1] y) { y = Squeeze <axes = [0]> (x, a) }",
                 KVA_INVALID, "'axes' is an attribute, and input 1 as well");
}

static void test_tensor_scatter_operands(void **unused) {
  (void)unused;
  pk_refuse_text(OPSET(24) "(float[1, 4, 5] x, float[1, 2, 6] u) => (float[1, 4, 5] y) { y = TensorScatter (x, u) }",
                 KVA_INVALID, "differ in the extent of axis 2");
  pk_refuse_text(OPSET(24) "(float[1, 4, 5] x, float[1, 2, 5] u) => (float[1, 4, 5] y) {"
                           " y = TensorScatter <mode = \"ring\"> (x, u) }",
                 KVA_INVALID, "expected linear or circular, found 'ring'");
}

/* An axis of one element mirrors everything to it. */
static void test_reflection_of_one_element(void **unused) {
  (void)unused;
  check(OPSET(20) "(float[3] x) => (float[1] y) <int64[4] image = {1, 1, 1, 3}, int64[4] points = {1, 1, 1, 2},"
                  " float[2] at = {0.5, -0.25}> {"
                  " a = Reshape (x, image) b = Reshape (at, points)"
                  " c = GridSample <align_corners = 1, mode = \"linear\", padding_mode = \"reflection\"> (a, b)"
                  " flat = Constant <value_ints = [-1]> () y = Reshape (c, flat) }",
        X(1, 2, 4), X(3));
}

static void test_resize(void **unused) {
  (void)unused;
  /* the official example of version 10; enlarged, places are rounded down */
  check(OPSET(10) "(float[8] x) => (float[2] y) <int64[4] image = {1, 1, 2, 4}, int64[1] flat = {-1},"
                  " float[4] scales = {1, 1, 0.6, 0.6}> {"
                  " a = Reshape (x, image) b = Resize <mode = \"nearest\"> (a, scales) y = Reshape (b, flat) }",
        X(1, 2, 3, 4, 5, 6, 7, 8), X(1, 3));
  check(OPSET(10) "(float[3] x) => (float[4] y) <float[1] scales = {1.5}> {"
                  " y = Resize <mode = \"nearest\"> (x, scales) }",
        X(1, 2, 3), X(1, 1, 2, 3));
  /* the only element of a result is the first one of the image */
  check(OPSET(13) "(float[4] x) => (float[1] y) <int64[1] sizes = {1}> {"
                  " y = Resize <mode = \"cubic\", coordinate_transformation_mode = \"pytorch_half_pixel\">"
                  " (x, , , sizes) }",
        X(5, 1, 1, 1), X(5));
}

/* Statistics have the type of stash_type, which the model declares, not that of the operand. */
static void test_type_of_statistics(void **unused) {
  (void)unused;
  check(OPSET(17) "(float[2] x) => (float[1] mean) <double[2] scale = {1, 1}> {"
                  " wide = Cast <to = 11> (x) y, mean = LayerNormalization (wide, scale) }",
        X(1, 4), X(2.5));
}

/* Without sampling_ratio a region of four columns has four samples, and one of two has two; the last one has none. */
static void test_samples_of_regions(void **unused) {
  (void)unused;
  check(OPSET(16) "(float[1, 1, 1, 4] x) => (float[3, 1, 1, 1] y)"
                  " <float[3, 4] r = {0, 0, 4, 1, 0, 0, 2, 1, 3, 1, 1, 0}, int64[3] at = {0, 0, 0}> {"
                  " y = RoiAlign <sampling_ratio = 0> (x, r, at) }",
        X(8, 0, 0, 0), X(2, 4, 0));
  check(OPSET(16) "(float[1, 1, 1, 4] x) => (float[3, 1, 1, 1] y)"
                  " <float[3, 4] r = {0, 0, 4, 1, 0, 0, 2, 1, 3, 1, 1, 0}, int64[3] at = {0, 0, 0}> {"
                  " y = RoiAlign <mode = \"max\"> (x, r, at) }",
        X(1, 3, 5, 2), X(5, 3, 0));
}

/* The window that ceil_mode adds ends behind the image. */
static void test_last_window_of_lp_pool(void **unused) {
  (void)unused;
  check(OPSET(18) "(float[4] x) => (float[2] y) <int64[3] s = {1, 1, 4}, int64[1] flat = {-1}> { a = Reshape (x, s)"
                  " b = LpPool <kernel_shape = [3], strides = [2], ceil_mode = 1> (a) y = Reshape (b, flat) }",
        X(1, -2, 2, 4), X(3, sqrt(20)));
}

#define RECURRENT(rest) \
  OPSET(14)             \
  "(float[2] x) => (float[N] y) <int64[3] s = {2, 1, 1}, int64[1] flat = {-1}, float[1, 1, 1] one = {1}, " rest

/* Functions take their numbers from the lists in order; the clip bounds what they are applied to. */
static void test_functions_of_gates(void **unused) {
  (void)unused;
  check(RECURRENT("float[1, 1, 1] none = {0}> { a = Reshape (x, s)"
                  " b = RNN <hidden_size = 1, activations = [\"ScaledTanh\"], activation_alpha = [2.0],"
                  " activation_beta = [0.5], clip = 1.0> (a, one, none) y = Reshape (b, flat) }"),
        X(0.5, 3), X(2 * tanh(0.25), 2 * tanh(0.5)));
  check(RECURRENT("float[2, 1, 1] two = {1, 1}, float[2, 1, 1] none = {0, 0}> { a = Reshape (x, s)"
                  " b = RNN <hidden_size = 1, direction = \"bidirectional\", activations = [\"LeakyRelu\", \"Affine\"],"
                  " activation_alpha = [0.1, 2.0], activation_beta = [3.0]> (a, two, none) y = Reshape (b, flat) }"),
        X(-1, 4), X(-0.1, 1, 4, 11));
}

/* With input_forget, what the input gate takes is what the forget gate leaves. */
static void test_coupled_gates(void **unused) {
  (void)unused;
  check(RECURRENT(
            "float[1, 4, 1] w = {1, 0, 0, 0}, float[1, 4, 1] none = {0, 0, 0, 0}> { a = Reshape (x, s)"
            " all, h, c = LSTM <hidden_size = 1, input_forget = 1> (a, w, none, , , , one) y = Reshape (c, flat) }"),
        X(1, 1), X(0.26894142137 * 0.26894142137));
}

/* 2047.875 is no half, and 15360 the bits of 1. */
static void test_statistics_of_halves(void **unused) {
  (void)unused;
  check(OPSET(15) "(float[N] x) => (float16[N, 1] y) <float16[1] one = {15360}, float16[1] zero = {0}, float[1] mean = "
                  "{2047.875}, float[1] var = {1}, int64[2] rows = {-1, 1}> { h = Cast <to = 10> (x) r = Reshape (h, "
                  "rows) y = BatchNormalization <epsilon = 0.0> (r, one, zero, mean, var) }",
        X(2048, 2050), X(0.125, 2.125));
}

/* Axes that an operand does not have are not read. */
static void test_operands_of_too_few_axes(void **unused) {
  (void)unused;
  pk_refuse_text(OPSET(27) "(float[2, 5, 2] x, float b, float[5, 1, 2] w) => (float[2, 5, 2] y) { y = "
                           "CausalConvWithState (x, w, b) }",
                 KVA_INVALID, "expected an operand of rank 1 or more, found 0");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_shrink_of_integers),
      cmocka_unit_test(test_range_of_negative_data),
      cmocka_unit_test(test_one_hot_of_unknown_values),
      cmocka_unit_test(test_hardmax_of_nothing),
      cmocka_unit_test(test_trilu_of_large_offset),
      cmocka_unit_test(test_quantised_product_of_vectors),
      cmocka_unit_test(test_operands_that_enlarge_the_result),
      cmocka_unit_test(test_zero_points_of_products),
      cmocka_unit_test(test_axes_given_twice),
      cmocka_unit_test(test_tensor_scatter_operands),
      cmocka_unit_test(test_reflection_of_one_element),
      cmocka_unit_test(test_resize),
      cmocka_unit_test(test_type_of_statistics),
      cmocka_unit_test(test_samples_of_regions),
      cmocka_unit_test(test_last_window_of_lp_pool),
      cmocka_unit_test(test_functions_of_gates),
      cmocka_unit_test(test_coupled_gates),
      cmocka_unit_test(test_statistics_of_halves),
      cmocka_unit_test(test_operands_of_too_few_axes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
