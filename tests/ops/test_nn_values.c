/* Known results of contraction, windows, rows and optimisers: by hand, from the examples of ONNX's operator pages, and
 * for attention from its definition written out. (The case list compares executors with the reference; this pins the
 * reference.) */
#include "tests/ops/fixture.h"
#include "ops/ids.h"
#include "tools/verify/cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

enum { MAX_OPERANDS = 8 };
#define SHAPE(...)                                    \
  sizeof((int64_t[]){__VA_ARGS__}) / 8, (int64_t[]) { \
    __VA_ARGS__                                       \
  }
#define VALUES(...) \
  (double[]) {      \
    __VA_ARGS__     \
  }
#define OPERANDS(...)                      \
  (const kva_ref_tensor *[MAX_OPERANDS]) { \
    __VA_ARGS__                            \
  }
#define EXPECT(op, attrs, operands, result, ...) \
  expect(op, attrs, operands, result, sizeof(VALUES(__VA_ARGS__)) / 8, VALUES(__VA_ARGS__))

/* Results of an operator with trailing NULL operands left out. */
static void evaluate(kva_op_id op, const char *attrs, const kva_ref_tensor *const *in, kva_ref_tensor **out) {
  fx_graph g = fx_graph_create();
  kva_value *operands[MAX_OPERANDS] = {0}, *results[4];
  uint32_t n = MAX_OPERANDS;
  while (n > 0 && !in[n - 1]) n--;
  for (uint32_t i = 0; i < n; i++) operands[i] = fx_given(&g, in[i]);
  kva_node *node = kva_build_node(&g.b, op, n, operands, 1, kva_case_attrs(g.m, op, attrs));
  uint32_t n_results = node->n_results;
  for (uint32_t i = 0; i < n_results; i++) results[i] = kva_result(node, i);
  fx_run(&g, n_results, results, out);
}

static void expect(kva_op_id op, const char *attrs, const kva_ref_tensor *const *in, uint32_t result, size_t n,
                   const double *values) {
  kva_ref_tensor *out[4];
  evaluate(op, attrs, in, out);
  assert_int_equal(out[result]->n, n);
  for (size_t i = 0; i < n; i++) fx_near(kva_ref_tensor_get(out[result], (int64_t)i), values[i], 1e-6);
}

/* first, first + 1, ... */
static kva_ref_tensor *counting(double first, uint32_t rank, const int64_t *dims) {
  kva_ref_tensor *w = fx_tensor(KVA_F64, rank, dims);
  for (int64_t i = 0; i < w->n; i++) w->f[i] = first + (double)i;
  return w;
}

static kva_ref_tensor *all(double v, uint32_t rank, const int64_t *dims) {
  kva_ref_tensor *w = fx_tensor(KVA_F64, rank, dims);
  for (int64_t i = 0; i < w->n; i++) w->f[i] = v;
  return w;
}

static void test_matmul(void **state) {
  (void)state;
  const kva_ref_tensor *const *ab = OPERANDS(counting(1, SHAPE(2, 2)), counting(5, SHAPE(2, 2)));
  EXPECT(KVA_OP_matmul, "", ab, 0, 19, 22, 43, 50);
  EXPECT(KVA_OP_matmul, "transpose_a=1", ab, 0, 26, 30, 38, 44);
  EXPECT(KVA_OP_matmul, "transpose_b=1", ab, 0, 17, 23, 39, 53);
  EXPECT(KVA_OP_matmul, "transpose_a=1; transpose_b=1", ab, 0, 23, 31, 34, 46);
}

/* ONNX Conv and ConvTranspose, first examples. */
static void test_conv(void **state) {
  (void)state;
  kva_ref_tensor *x = counting(0, SHAPE(1, 1, 5, 5)), *w = all(1, SHAPE(1, 1, 3, 3));
  EXPECT(KVA_OP_conv, "", OPERANDS(x, w), 0, 54, 63, 72, 99, 108, 117, 144, 153, 162);
  EXPECT(KVA_OP_conv, "pads=1,1,1,1; strides=2,2", OPERANDS(x, w), 0, 12, 27, 24, 63, 108, 81, 72, 117, 84);
  kva_ref_tensor *grouped = counting(1, SHAPE(1, 2, 3)), *taps = fx_floats(SHAPE(2, 1, 2), VALUES(1, 10, 100, 1000));
  EXPECT(KVA_OP_conv, "group=2", OPERANDS(grouped, taps), 0, 21, 32, 5400, 6500);
  kva_ref_tensor *dy = counting(0, SHAPE(1, 1, 3, 3));
  EXPECT(KVA_OP_conv_input_grad, "spatial=5,5", OPERANDS(dy, w), 0, 0, 1, 3, 3, 2, 3, 8, 15, 12, 7, 9, 21, 36, 27, 15,
         9, 20, 33, 24, 13, 6, 13, 21, 15, 8);
}

/* ONNX MaxPool and AveragePool: the precomputed examples. */
static void test_pools(void **state) {
  (void)state;
  kva_ref_tensor *x = counting(1, SHAPE(1, 1, 5, 5)), *small = counting(1, SHAPE(1, 1, 4, 4));
  EXPECT(KVA_OP_max_pool, "kernel=2,2; strides=2,2", OPERANDS(x), 0, 7, 9, 17, 19);
  EXPECT(KVA_OP_max_pool, "kernel=2,2; strides=2,2", OPERANDS(x), 1, 6, 8, 16, 18);
  EXPECT(KVA_OP_max_pool, "kernel=2,2; strides=2,2; column_major=1", OPERANDS(x), 1, 6, 16, 8, 18);
  EXPECT(KVA_OP_max_pool, "kernel=3,3; strides=2,2; ceil_mode=1", OPERANDS(small), 0, 11, 12, 15, 16);
  EXPECT(KVA_OP_max_pool, "kernel=3; pads=1,1", OPERANDS(all(-5, SHAPE(1, 1, 3))), 0, -5, -5, -5);
  EXPECT(KVA_OP_max_pool, "kernel=2", OPERANDS(all(3, SHAPE(1, 2, 3))), 1, 0, 1, 3, 4);
  EXPECT(KVA_OP_avg_pool, "kernel=3,3; strides=2,2; ceil_mode=1", OPERANDS(small), 0, 6, 7.5, 12, 13.5);
  EXPECT(KVA_OP_avg_pool, "kernel=5,5; pads=2,2,2,2", OPERANDS(x), 0, 7, 7.5, 8, 8.5, 9, 9.5, 10, 10.5, 11, 11.5, 12,
         12.5, 13, 13.5, 14, 14.5, 15, 15.5, 16, 16.5, 17, 17.5, 18, 18.5, 19);
  EXPECT(KVA_OP_avg_pool, "kernel=3; strides=2; pads=1,1; count_include_pad=1; ceil_mode=1",
         OPERANDS(counting(1, SHAPE(1, 1, 4))), 0, 1, 3, 2);
}

static void test_rows(void **state) {
  (void)state;
  kva_ref_tensor *thirds = fx_floats(SHAPE(1, 2), VALUES(0, log(2))), *pair = fx_floats(SHAPE(1, 2), VALUES(1, 3));
  EXPECT(KVA_OP_softmax, "", OPERANDS(thirds), 0, 1.0 / 3, 2.0 / 3);
  EXPECT(KVA_OP_softmax, "axis=0", OPERANDS(thirds), 0, 1, 1);
  EXPECT(KVA_OP_log_softmax, "", OPERANDS(thirds), 0, -log(3), log(2.0 / 3));
  kva_ref_tensor *scale = fx_floats(SHAPE(2), VALUES(10, 100)), *bias = fx_floats(SHAPE(2), VALUES(1, 2));
  EXPECT(KVA_OP_layer_norm, "eps=0", OPERANDS(pair, scale, bias), 0, -9, 102);
  EXPECT(KVA_OP_layer_norm, "eps=3", OPERANDS(pair, scale), 0, -5, 50);
  EXPECT(KVA_OP_rms_norm, "eps=20", OPERANDS(pair, scale), 0, 2, 60);
  kva_ref_tensor *mean = fx_floats(SHAPE(2), VALUES(0, 1)), *var = fx_floats(SHAPE(2), VALUES(3, 0));
  EXPECT(KVA_OP_batch_norm, "eps=1", OPERANDS(pair, scale, bias, mean, var), 0, 6, 202);
  kva_ref_tensor *logits = fx_floats(SHAPE(3, 2), VALUES(0, log(2), 0, log(2), 5, 7));
  kva_ref_tensor *targets = fx_integers(SHAPE(3), (int64_t[]){0, 1, -1});
  EXPECT(KVA_OP_cross_entropy, "", OPERANDS(logits, targets), 0, log(3), log(1.5), 0);
  EXPECT(KVA_OP_cross_entropy, "", OPERANDS(logits, targets), 1, log(3), log(3), 7 + log1p(exp(-2)));
}

static void test_target_out_of_range(void **state) {
  (void)state;
  fx_graph g = fx_graph_create();
  kva_ref_tensor *out[2];
  kva_value *operands[2] = {fx_given(&g, FX_RANDOM(1, 2, 3)), fx_given(&g, fx_integers(SHAPE(2), (int64_t[]){0, 3}))};
  kva_node *n = kva_build_node(&g.b, KVA_OP_cross_entropy, 2, operands, 2, NULL);
  kva_build_node(&g.b, KVA_OP_return, 1, (kva_value *[]){kva_result(n, 0)}, 0, NULL);
  assert_int_equal(kva_ref_run(g.m, g.f, g.inputs, out, NULL, NULL, NULL, NULL, g.diag), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(g.diag, 0, NULL, NULL), "target 3 of row 1"));
  fx_graph_destroy(&g);
}

static void test_rope(void **state) {
  (void)state;
  kva_ref_tensor *x = counting(1, SHAPE(1, 4)), *longer = counting(1, SHAPE(1, 5));
  kva_ref_tensor *cosines = fx_floats(SHAPE(1, 2), VALUES(0.6, 0.8)), *sines = fx_floats(SHAPE(1, 2), VALUES(0.8, 0.6));
  EXPECT(KVA_OP_rope, "", OPERANDS(x, cosines, sines), 0, -1.8, -0.8, 2.6, 4.4);
  EXPECT(KVA_OP_rope, "interleaved=1", OPERANDS(x, cosines, sines), 0, -1, 2, 0, 5);
  EXPECT(KVA_OP_rope, "", OPERANDS(longer, cosines, sines), 0, -1.8, -0.8, 2.6, 4.4, 5);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

enum { T = 3, S = 5, D = 4, HEADS = 4, KV_HEADS = 2 };

typedef struct options {
  bool causal;
  int window, offset;
  double scale, softcap;
} options;

static double naive_score(const options *o, const kva_ref_tensor *const *in, int h, int t, int s) {
  const double *q = in[0]->f + (h * T + t) * D, *k = in[1]->f + (h / 2 * S + s) * D;
  int position = t + o->offset;
  double x = o->scale * (q[0] * k[0] + q[1] * k[1] + q[2] * k[2] + q[3] * k[3]);
  if (o->softcap > 0) x = o->softcap * tanh(x / o->softcap);
  if (in[4]) x -= in[4]->f[h] * abs(position - s);
  if (in[3]) x += in[3]->f[t * S + s];
  bool seen = (!o->causal && !o->window) || s <= position;
  if (o->window) seen = seen && s > position - o->window;
  return seen ? x : -INFINITY;
}

static void check_attention(const char *attrs, options o, const kva_ref_tensor *const *in) {
  kva_ref_tensor *out[2];
  evaluate(KVA_OP_attention, attrs, in, out);
  for (int row = 0; row < HEADS * T; row++) {
    int h = row / T, t = row % T;
    double sum = 0, y[D] = {0};
    for (int s = 0; s < S; s++) {
      double p = exp(naive_score(&o, in, h, t, s));
      sum += p;
      for (int d = 0; d < D; d++) y[d] += p * in[2]->f[(h / 2 * S + s) * D + d];
    }
    if (sum == 0)
      assert_true(out[1]->f[row] == -INFINITY);
    else
      fx_near(out[1]->f[row], log(sum), 1e-12);
    for (int d = 0; d < D; d++) fx_near(out[0]->f[row * D + d], sum == 0 ? 0 : y[d] / sum, 1e-12);
  }
}

static void test_attention(void **state) {
  (void)state;
  kva_ref_tensor *q = FX_RANDOM(1, 1, HEADS, T, D), *k = FX_RANDOM(2, 1, KV_HEADS, S, D),
                 *v = FX_RANDOM(3, 1, KV_HEADS, S, D);
  kva_ref_tensor *mask = FX_RANDOM(4, T, S), *slopes = FX_RANDOM(5, HEADS);
  check_attention("", (options){.scale = 0.5}, OPERANDS(q, k, v));
  check_attention("causal=1", (options){.causal = true, .scale = 0.5}, OPERANDS(q, k, v));
  check_attention("causal=1; offset=2; scale=3; softcap=0.7", (options){true, 0, 2, 3, 0.7}, OPERANDS(q, k, v, mask));
  check_attention("window=2; offset=1", (options){false, 2, 1, 0.5, 0}, OPERANDS(q, k, v, mask, slopes));
  check_attention("window=1; offset=3", (options){false, 1, 3, 0.5, 0}, OPERANDS(q, k, v)); /* the last sees nothing */
}

/* ---- optimisers, randomness -------------------------------------------------------------------------------------- */

static void test_optimizers(void **state) {
  (void)state;
  kva_ref_tensor *p = all(1, SHAPE(1)), *g = all(0.5, SHAPE(1)), *zero = all(0, SHAPE(1)), *one = all(1, SHAPE(1));
  kva_ref_tensor *lr = all(0.1, 0, NULL), *first = fx_tensor(KVA_I64, 0, NULL), *second = fx_tensor(KVA_I64, 0, NULL);
  first->i[0] = 1;
  second->i[0] = 2;
  EXPECT(KVA_OP_sgd, "weight_decay=0.5", OPERANDS(p, g, lr), 0, 0.9);
  EXPECT(KVA_OP_momentum, "weight_decay=0.5", OPERANDS(p, g, one, lr), 0, 1 - 0.1 * 1.9);
  EXPECT(KVA_OP_momentum, "weight_decay=0.5", OPERANDS(p, g, one, lr), 1, 1.9);
  EXPECT(KVA_OP_momentum, "weight_decay=0.5; nesterov=1", OPERANDS(p, g, one, lr), 0, 1 - 0.1 * (1 + 0.9 * 1.9));
  EXPECT(KVA_OP_adagrad, "weight_decay=0.5; eps=0.5", OPERANDS(p, g, all(3, SHAPE(1)), lr), 0, 1 - 0.1 / 2.5);
  const kva_ref_tensor *const *start = OPERANDS(p, g, zero, zero, lr, first);
  EXPECT(KVA_OP_adamw, "weight_decay=0.1", start, 0, 0.99 - 0.1); /* the first step has length lr, whatever g is */
  EXPECT(KVA_OP_adamw, "weight_decay=0.1", start, 1, 0.05);
  EXPECT(KVA_OP_adamw, "weight_decay=0.1", start, 2, 0.00025);
  double m = 0.95 / 0.19, v = (0.5 + 0.125) / 0.75; /* beta1 0.9, beta2 0.5 at step 2 from m = v = 1 */
  EXPECT(KVA_OP_adamw, "beta2=0.5", OPERANDS(p, g, one, one, lr, second), 0, 1 - 0.1 * m / sqrt(v));
}

static void test_random_moments(void **state) {
  (void)state;
  kva_ref_tensor *seed = fx_tensor(KVA_I64, 0, NULL), *out[2][1];
  evaluate(KVA_OP_random_normal, "shape=64,1024; dtype=double", OPERANDS(seed, seed), out[0]);
  evaluate(KVA_OP_random_normal, "shape=64,1024; dtype=double; stream=1", OPERANDS(seed, seed), out[1]);
  double n = (double)out[0][0]->n, mean = 0, square = 0, product = 0;
  for (int64_t i = 0; i < out[0][0]->n; i++) {
    double x = out[0][0]->f[i];
    mean += x / n;
    square += x * x / n;
    product += x * out[1][0]->f[i] / n;
  }
  /* Five standard errors: 1, sqrt(2) and 1 over sqrt(n). */
  fx_near(mean, 0, 5 / sqrt(n));
  fx_near(square, 1, 5 * sqrt(2 / n));
  fx_near(product, 0, 5 / sqrt(n));
  kva_ref_tensor *uniform[1];
  evaluate(KVA_OP_random_uniform, "shape=3", OPERANDS(seed, seed), uniform);
  for (uint64_t i = 0; i < 3; i++) fx_near(uniform[0]->f[i], kva_uniform01(kva_philox4x32(i, 0, 0).v[0]), 0);
}

int main(void) {
#define TEST(f) cmocka_unit_test_teardown(f, fx_free)
  const struct CMUnitTest tests[] = {
      TEST(test_matmul),
      TEST(test_conv),
      TEST(test_pools),
      TEST(test_rows),
      TEST(test_target_out_of_range),
      TEST(test_rope),
      TEST(test_attention),
      TEST(test_optimizers),
      TEST(test_random_moments),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
