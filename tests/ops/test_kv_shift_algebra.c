/* The algebra of kv_shift that passes rely on, and its gradients, on the reference evaluator. */
#include "tests/ops/fixture.h"
#include "ops/ids.h"

#include <math.h>
#include <setjmp.h>
#include <cmocka.h>

KVA_OP_FUNCTIONS(kv_shift)

enum { B = FX_B, H = FX_H, D = FX_D };

/* ---- algebra ----------------------------------------------------------------------------------------------------- */

/* Shifts compose like polynomials in the delay. */
static void test_windows_compose(void **state) {
  (void)state;
  kva_ref_tensor *x = FX_RANDOM(1, B, H, 7, D), *u = FX_RANDOM(2, H, 2), *v = FX_RANDOM(3, H, 2);
  kva_ref_tensor *product = fx_tensor(KVA_F64, 2, (int64_t[]){H, 3});
  for (int64_t h = 0; h < H; h++) {
    for (int64_t i = 0; i < 4; i++) product->f[3 * h + i / 2 + i % 2] += u->f[2 * h + i / 2] * v->f[2 * h + i % 2];
  }
  kva_ref_tensor *once = fx_shift("zero", 2, (fx_shift_operands){.x = x, .w = u}).y;
  kva_ref_tensor *twice = fx_shift("zero", 2, (fx_shift_operands){.x = once, .w = v}).y;
  fx_close(twice, fx_shift("zero", 2, (fx_shift_operands){.x = x, .w = product}).y, 1e-14);
}

/* Tables of angles (t + first) * 10000^(-i / (D/2)), scaled by `sign`. */
static kva_ref_tensor *angles(int64_t T, int64_t first, double (*f)(double)) {
  kva_ref_tensor *w = fx_tensor(KVA_F64, 2, (int64_t[]){T, D / 2});
  for (int64_t i = 0; i < w->n; i++)
    w->f[i] = f((double)(i / (D / 2) + first) * pow(1e4, -(double)(i % (D / 2)) / (D / 2)));
  return w;
}

static kva_ref_tensor *rotated(const kva_ref_tensor *x, const kva_ref_tensor *cosines, const kva_ref_tensor *sines) {
  fx_graph g = fx_graph_create();
  kva_value *operands[3] = {fx_given(&g, x), fx_given(&g, cosines), fx_given(&g, sines)};
  return fx_run1(&g, kva_build(&g.b, KVA_OP_rope, 3, operands, NULL));
}

/* Mixing before rotation is mixing after it with one constant rotation: R_t(a1 k_t + a2 k_{t-1}) =
 * a1 (R_t k_t) + a2 R_1 (R_{t-1} k_{t-1}). */
static void test_rotation_rewrite(void **state) {
  (void)state;
  int64_t T = 6;
  kva_ref_tensor *k = FX_RANDOM(1, B, H, T, D), *w = FX_RANDOM(2, H, 2);
  kva_ref_tensor *cosines = angles(T, 0, cos), *sines = angles(T, 0, sin);
  kva_ref_tensor *left = rotated(fx_shift("zero", 2, (fx_shift_operands){.x = k, .w = w}).y, cosines, sines);
  kva_ref_tensor *after = rotated(k, cosines, sines);
  kva_ref_tensor *previous =
      fx_shift("zero", 2, (fx_shift_operands){.x = after, .w = fx_same_for_heads(2, (double[]){0, 1})}).y;
  kva_ref_tensor *turned = rotated(previous, angles(1, 1, cos), angles(1, 1, sin));
  kva_ref_tensor *right = fx_tensor(KVA_F64, 4, k->dims), *plain = fx_tensor(KVA_F64, 4, k->dims);
  for (int64_t i = 0; i < k->n; i++) {
    const double *a = w->f + 2 * (i / (T * D) % H);
    right->f[i] = a[0] * after->f[i] + a[1] * turned->f[i];
    plain->f[i] = a[0] * after->f[i] + a[1] * previous->f[i];
  }
  fx_close(left, right, 1e-13);
  double difference = 0;
  for (int64_t i = 0; i < k->n; i++) difference = fmax(difference, fabs(left->f[i] - plain->f[i]));
  assert_true(difference > 1e-3); /* without R_1 it is another operator */
}

static kva_ref_tensor *attend(const kva_ref_tensor *q, const kva_ref_tensor *k, const kva_ref_tensor *v) {
  fx_graph g = fx_graph_create();
  kva_attention_attrs a = {.causal = true};
  kva_value *operands[3] = {fx_given(&g, q), fx_given(&g, k), fx_given(&g, v)};
  return fx_run1(&g, kva_build(&g.b, KVA_OP_attention, 3, operands, &a));
}

/* Causal softmax probabilities: attention to rows of the identity. */
static kva_ref_tensor *probabilities(const kva_ref_tensor *q, const kva_ref_tensor *k) {
  int64_t T = k->dims[2];
  kva_ref_tensor *identity = fx_tensor(KVA_F64, 4, (int64_t[]){B, H, T, T});
  for (int64_t i = 0; i < identity->n; i++) identity->f[i] = i % T == i / T % T;
  return attend(q, k, identity);
}

/* The value shift moves to the probabilities: sum_j p_j vhat_j = sum_j (b1 p_j + b2 p_{j+1}) v_j, p = 0 beyond t. */
static void test_shift_on_probabilities(void **state) {
  (void)state;
  int64_t T = 6;
  kva_ref_tensor *q = FX_RANDOM(1, B, H, T, D), *k = FX_RANDOM(2, B, H, T, D), *v = FX_RANDOM(3, B, H, T, D),
                 *w = FX_RANDOM(4, H, 2);
  kva_ref_tensor *left = attend(q, k, fx_shift("zero", 2, (fx_shift_operands){.x = v, .w = w}).y),
                 *p = probabilities(q, k);
  kva_ref_tensor *right = fx_tensor(KVA_F64, 4, v->dims);
  for (int64_t i = 0; i < right->n; i++) {
    int64_t d = i % D, row = i / D, head = row / T;
    const double *b = w->f + 2 * (head % H), *p_row = p->f + row * T;
    for (int64_t j = 0; j < T; j++) {
      right->f[i] += (b[0] * p_row[j] + b[1] * (j + 1 < T ? p_row[j + 1] : 0)) * v->f[(head * T + j) * D + d];
    }
  }
  fx_close(left, right, 1e-13);
}

/* One key-value head repeated for its group of queries. */
static kva_ref_tensor *repeated(const kva_ref_tensor *x, int64_t group) {
  int64_t dims[4] = {x->dims[0], x->dims[1] * group, x->dims[2], x->dims[3]}, image = dims[2] * dims[3];
  kva_ref_tensor *y = fx_tensor(KVA_F64, 4, dims);
  for (int64_t i = 0; i < dims[0] * dims[1]; i++) memcpy(y->f + i * image, x->f + i / group * image, (size_t)image * 8);
  return y;
}

/* Weights belong to key-value heads; the queries of a group share the mixed rows. */
static void test_grouped_queries(void **state) {
  (void)state;
  int64_t T = 5, group = 2;
  kva_ref_tensor *q = FX_RANDOM(1, B, H * group, T, D), *k = FX_RANDOM(2, B, H, T, D), *v = FX_RANDOM(3, B, H, T, D);
  kva_ref_tensor *a = FX_RANDOM(4, H, 2), *b = FX_RANDOM(5, H, 2),
                 *a2 = fx_tensor(KVA_F64, 2, (int64_t[]){H * group, 2});
  kva_ref_tensor *b2 = fx_tensor(KVA_F64, 2, a2->dims);
  for (int64_t i = 0; i < a2->n; i++) {
    int64_t from = i / 2 / group * 2 + i % 2;
    a2->f[i] = a->f[from];
    b2->f[i] = b->f[from];
  }
  kva_ref_tensor *shared = attend(q, fx_shift("zero", 2, (fx_shift_operands){.x = k, .w = a}).y,
                                  fx_shift("zero", 2, (fx_shift_operands){.x = v, .w = b}).y);
  kva_ref_tensor *expanded = attend(q, fx_shift("zero", 2, (fx_shift_operands){.x = repeated(k, group), .w = a2}).y,
                                    fx_shift("zero", 2, (fx_shift_operands){.x = repeated(v, group), .w = b2}).y);
  fx_close(shared, expanded, 0);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* dx_t = a1 g_t + a2 g_{t+1}, da1 = sum g_t x_t, da2 = sum g_t x_{t-1}: the mirrored shift, per head. */
static void test_gradient_formulas(void **state) {
  (void)state;
  int64_t T = 6;
  kva_ref_tensor *x = FX_RANDOM(1, B, H, T, D), *w = FX_RANDOM(2, H, 2), *dy = FX_RANDOM(3, B, H, T, D), *out[2];
  fx_graph g = fx_graph_create();
  kva_node *n = fx_shift_node(&g, NULL, &(fx_shift_operands){.x = x, .w = w});
  kva_value *grad_in[5] = {0}, *grad_out[2] = {fx_given(&g, dy), NULL};
  kva_vjp vjp = {
      .b = &g.b, .grad_out = grad_out, .grad_in = grad_in, .wants = (bool[]){true, true, false, false, false}};
  assert_int_equal(kva_kv_shift_vjp(&vjp, n), KVA_OK);
  fx_run(&g, 2, grad_in, out);
  double dw[2 * H] = {0};
  for (int64_t i = 0; i < x->n; i++) {
    int64_t t = i / D % T, h = i / (T * D) % H;
    double next = t + 1 < T ? dy->f[i + D] : 0;
    fx_near(out[0]->f[i], w->f[2 * h] * dy->f[i] + w->f[2 * h + 1] * next, 1e-14);
    dw[2 * h] += dy->f[i] * x->f[i];
    dw[2 * h + 1] += t ? dy->f[i] * x->f[i - D] : 0;
  }
  for (int64_t i = 0; i < 2 * H; i++) fx_near(out[1]->f[i], dw[i], 1e-12);
}

/* <dy, y> + <ds, state> is bilinear in (x, past) and w: the gradients must satisfy Euler's identities exactly. Catches
 * a missing or doubled state gradient for every option at once. */
static void check_euler(const char *boundary, int64_t axis, fx_shift_operands o) {
  fx_shifted s = fx_shift(boundary, axis, o);
  kva_ref_tensor *dy = fx_random(8, 4, s.y->dims), *ds = fx_random(9, 4, s.state->dims), *out[2];
  fx_graph g = fx_graph_create();
  kva_kv_shift_attrs a = {.time_axis = axis, .boundary = boundary};
  kva_node *n = fx_shift_node(&g, &a, &o);
  kva_value *grad_in[5] = {0}, *grad_out[2] = {fx_given(&g, dy), fx_given(&g, ds)};
  bool wants[5] = {true, false, o.past != NULL, false, false};
  kva_vjp vjp = {.b = &g.b, .grad_out = grad_out, .grad_in = grad_in, .wants = wants};
  assert_int_equal(kva_kv_shift_vjp(&vjp, n), KVA_OK);
  fx_run(&g, o.past ? 2 : 1, (kva_value *[]){grad_in[0], grad_in[2]}, out);
  double loss = 0, euler = 0;
  for (int64_t i = 0; i < dy->n; i++) loss += dy->f[i] * s.y->f[i];
  for (int64_t i = 0; i < ds->n; i++) loss += ds->f[i] * s.state->f[i];
  for (int64_t i = 0; i < dy->n; i++) euler += out[0]->f[i] * o.x->f[i];
  for (int64_t i = 0; o.past && i < ds->n; i++) euler += out[1]->f[i] * o.past->f[i];
  fx_near(loss, euler, 1e-10);
}

static void test_state_gradient(void **state) {
  (void)state;
  const int64_t form[4] = {3, 2, 3, 2};
  int64_t i[4] = {0};
  do {
    int64_t axis = 1 + i[1], T = (int64_t[]){1, 2, 5}[i[2]], W = 4;
    check_euler(fx_boundaries[i[0]], axis,
                (fx_shift_operands){.x = fx_random_rows(1, axis, T),
                                    .w = FX_RANDOM(2, H, W),
                                    .past = i[3] ? fx_random_rows(3, axis, W - 1) : NULL});
  } while (kva_next_index(4, form, i));
}

int main(void) {
#define TEST(f) cmocka_unit_test_teardown(f, fx_free)
  const struct CMUnitTest tests[] = {
      TEST(test_windows_compose), TEST(test_rotation_rewrite),  TEST(test_shift_on_probabilities),
      TEST(test_grouped_queries), TEST(test_gradient_formulas), TEST(test_state_gradient),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
