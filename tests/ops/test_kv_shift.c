/* The contract of kv_shift on whole sequences, on the reference evaluator: definition, boundaries, state, documents,
 * padding, types. What the operator promises, and the tests of it here and elsewhere:
 *
 *   equals its definition                          test_definition, test_gates; compiled: cases of tools/verify
 *   decode equals one run, with raw rows as state  test_chunks; ops/test_kv_shift_cpu.c; codegen/test_decode.c
 *   ... and differs by the listing's rule          test_mixed_state_is_wrong; codegen/test_sequences.c: in one row
 *   prompts in chunks of any division              test_chunks; codegen/test_decode.c: in_chunks
 *   packed documents equal separate ones           test_packed_documents; codegen/test_decode.c: documents
 *   one row; state of no rows                      test_single_row; test_no_rows
 *   weights (1, 0) and (0, 1)                      test_identity_and_previous
 *   rotation by one position, shift on V as one    ops/test_kv_shift_algebra.c: test_rotation_rewrite,
 *     on probabilities, shared groups of heads       test_shift_on_probabilities, test_grouped_queries
 *   gradients equal finite differences             tools/verify/case_gradient.c; test_gradient_formulas
 *   nothing leaks out of left padding              test_left_padding; frontend/test_onnx_export.c: as ONNX */
#include "tests/ops/fixture.h"
#include "ops/ids.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

/* ---- the definition, written out for [B, H, T, D] ---------------------------------------------------------------- */

enum { B = FX_B, H = FX_H, D = FX_D, MAX_T = 9, MAX_W = 5 };

typedef struct column {
  double row[MAX_W + MAX_T]; /* W-1 rows before the start, then x */
  int64_t segment[MAX_W + MAX_T];
  int64_t start;
} column;

static int64_t dim_of(const kva_ref_tensor *w, uint32_t rank) {
  return w->dims[rank == 4 ? 3 : 1];
}

static int64_t at4(const kva_ref_tensor *x, int64_t time_axis, int64_t b, int64_t h, int64_t t, int64_t d) {
  int64_t i = time_axis == 2 ? h : t, j = time_axis == 2 ? t : h;
  return ((b * x->dims[1] + i) * x->dims[2] + j) * x->dims[3] + d;
}

static column column_of(const char *boundary, int64_t axis, const fx_shift_operands *o, int64_t b, int64_t h,
                        int64_t d) {
  column c = {.start = o->left_pad ? o->left_pad->i[b] : 0};
  int64_t before = dim_of(o->w, o->w->rank) - 1, T = o->x->dims[axis];
  bool edge = strcmp(boundary, "edge") == 0 && !o->past;
  for (int64_t i = 0; i < before + T; i++) {
    int64_t t = i - before, from = t < c.start && edge ? c.start : t;
    c.segment[i] = o->segments ? o->segments->i[b * T + (from < 0 ? 0 : from)] : 0;
    if (from >= c.start)
      c.row[i] = o->x->f[at4(o->x, axis, b, h, from, d)];
    else if (t < 0 && o->past)
      c.row[i] = o->past->f[at4(o->past, axis, b, h, i, d)];
  }
  return c;
}

static double weight_at(const kva_ref_tensor *w, int64_t b, int64_t h, int64_t t, int64_t d, int64_t j) {
  if (w->rank == 2) return w->f[h * w->dims[1] + j];
  if (w->rank == 3) return w->f[(h * w->dims[1] + j) * w->dims[2] + d];
  return w->f[((b * w->dims[1] + h) * w->dims[2] + t) * w->dims[3] + j];
}

static void check_definition(const char *boundary, int64_t axis, fx_shift_operands o) {
  fx_shifted found = fx_shift(boundary, axis, o);
  int64_t W = dim_of(o.w, o.w->rank), T = o.x->dims[axis], index[3] = {0};
  bool kept = strcmp(boundary, "keep") == 0 && !o.past;
  do {
    int64_t b = index[0], h = index[1], d = index[2];
    column c = column_of(boundary, axis, &o, b, h, d);
    for (int64_t t = 0; t < T; t++) {
      double y = 0;
      for (int64_t j = 0; j < W && t >= c.start; j++) {
        int64_t i = W - 1 + t - j;
        double w = kept && t == c.start ? j == 0 : weight_at(o.w, b, h, t, d, j);
        if (c.segment[i] == c.segment[W - 1 + t]) y += w * c.row[i];
      }
      fx_near(found.y->f[at4(found.y, axis, b, h, t, d)], y, 1e-12);
    }
    for (int64_t k = 0; k < W - 1; k++) {
      double row = c.segment[T + k] == c.segment[W + T - 2] ? c.row[T + k] : 0;
      fx_near(found.state->f[at4(found.state, axis, b, h, k, d)], row, 0);
    }
  } while (kva_next_index(3, (int64_t[]){B, H, D}, index));
}

static kva_ref_tensor *random_weights(uint64_t seed, uint32_t rank, int64_t T, int64_t W) {
  if (rank == 2) return FX_RANDOM(seed, H, W);
  return rank == 3 ? FX_RANDOM(seed, H, W, D) : FX_RANDOM(seed, B, H, T, W);
}

/* Every form with every option. Document 1 of entry 1 begins in the middle of a window. */
static void test_definition(void **state) {
  (void)state;
  const int64_t form[7] = {3, 2, 3, 4, 3, 2, 8};
  int64_t i[7] = {0};
  do {
    int64_t axis = 1 + i[1], W = 1 + i[3], T = (int64_t[]){1, 2, 7}[i[4]];
    kva_ref_tensor *segments = fx_integers(2, (int64_t[]){B, T}, (int64_t[]){0, 0, 0, 1, 1, 2, 0, 5, 5, 6, 6, 6, 6, 6});
    kva_ref_tensor *pads = fx_integers(1, (int64_t[]){B}, (int64_t[]){0, T - 1 < 2 ? T - 1 : 2});
    check_definition(fx_boundaries[i[0]], axis,
                     (fx_shift_operands){.x = fx_random_rows(1, axis, T),
                                         .w = random_weights(2, 2 + (uint32_t)i[2], T, W),
                                         .past = i[5] ? fx_random_rows(3, axis, W - 1) : NULL,
                                         .segments = i[6] & 1 ? segments : NULL,
                                         .left_pad = i[6] & 2 ? pads : NULL});
    fx_free(NULL);
  } while (kva_next_index(7, form, i));
}

/* ---- special sequences and weights ------------------------------------------------------------------------------- */

static void test_single_row(void **state) {
  (void)state;
  kva_ref_tensor *x = FX_RANDOM(1, 1, 1, 1, 2), *w = fx_floats(2, (int64_t[]){1, 3}, (double[]){0.5, 2, 4});
  const double factor[3] = {0.5, 1, 6.5};
  for (int k = 0; k < 3; k++) {
    fx_shifted s = fx_shift(fx_boundaries[k], 2, (fx_shift_operands){.x = x, .w = w});
    for (int64_t d = 0; d < 2; d++) {
      fx_near(s.y->f[d], factor[k] * x->f[d], 0);
      fx_near(s.state->f[d], k == 2 ? x->f[d] : 0, 0);
      fx_near(s.state->f[2 + d], x->f[d], 0);
    }
  }
}

static void test_no_rows(void **state) {
  (void)state;
  kva_ref_tensor *past = FX_RANDOM(1, B, H, 2, D), *x = FX_RANDOM(2, B, H, 0, D);
  fx_shifted s = fx_shift("zero", 2, (fx_shift_operands){.x = x, .w = FX_RANDOM(3, H, 3), .past = past});
  assert_int_equal(s.y->n, 0);
  fx_close(s.state, past, 0);
}

static void test_identity_and_previous(void **state) {
  (void)state;
  kva_ref_tensor *x = FX_RANDOM(1, B, H, 6, D);
  fx_shifted identity = fx_shift("zero", 2, (fx_shift_operands){.x = x, .w = fx_same_for_heads(2, (double[]){1, 0})});
  fx_close(identity.y, x, 0);
  fx_shifted previous = fx_shift("zero", 2, (fx_shift_operands){.x = x, .w = fx_same_for_heads(2, (double[]){0, 1})});
  fx_close(fx_rows(previous.y, 2, 1, 5), fx_rows(x, 2, 0, 5), 0);
  fx_close(fx_rows(previous.y, 2, 0, 1), fx_tensor(KVA_F64, 4, (int64_t[]){B, H, 1, D}), 0);
}

/* A gate g per token and head: y_t = (1 - g_t) x_t + g_t x_{t-1} (FoX), equal to weights per head where it is constant.
 */
static void test_gates(void **state) {
  (void)state;
  kva_ref_tensor *x = FX_RANDOM(1, B, H, 6, D), *gate = FX_RANDOM(2, B, H, 6, 2), *constant = FX_RANDOM(3, B, H, 6, 2);
  kva_ref_tensor *w = FX_RANDOM(4, H, 2);
  for (int64_t i = 0; i < gate->n; i += 2) {
    gate->f[i + 1] = 1 / (1 + exp(-gate->f[i]));
    gate->f[i] = 1 - gate->f[i + 1];
    memcpy(constant->f + i, w->f + 2 * (i / 12 % H), 2 * sizeof(double));
  }
  kva_ref_tensor *y = fx_shift("zero", 2, (fx_shift_operands){.x = x, .w = gate}).y;
  for (int64_t i = 0; i < y->n; i++) {
    int64_t row = i / D, t = row % 6;
    double previous = t ? x->f[i - D] : 0, g = gate->f[2 * row + 1];
    fx_near(y->f[i], (1 - g) * x->f[i] + g * previous, 1e-15);
  }
  kva_ref_tensor *per_head = fx_shift("zero", 2, (fx_shift_operands){.x = x, .w = w}).y;
  fx_close(fx_shift("zero", 2, (fx_shift_operands){.x = x, .w = constant}).y, per_head, 0);
}

/* One rounding: bfloat16 rows give the rounded exact sum. */
static void test_rounds_once(void **state) {
  (void)state;
  kva_ref_tensor *x = FX_RANDOM(1, B, H, 6, D), *w = FX_RANDOM(2, H, 4);
  kva_ref_tensor *narrow = fx_tensor(KVA_BF16, 4, x->dims), *narrow_w = fx_tensor(KVA_F32, 2, w->dims);
  for (int64_t i = 0; i < x->n; i++) x->f[i] = narrow->f[i] = kva_round_f64(KVA_BF16, x->f[i]);
  for (int64_t i = 0; i < w->n; i++) w->f[i] = narrow_w->f[i] = kva_round_f64(KVA_F32, w->f[i]);
  kva_ref_tensor *exact = fx_shift("zero", 2, (fx_shift_operands){.x = x, .w = w}).y;
  fx_shifted s = fx_shift("zero", 2, (fx_shift_operands){.x = narrow, .w = narrow_w});
  assert_int_equal(s.y->dtype, KVA_BF16);
  for (int64_t i = 0; i < x->n; i++) assert_true(s.y->f[i] == kva_round_f64(KVA_BF16, exact->f[i]));
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

/* Appends b to a along the time axis. */
static kva_ref_tensor *joined(const kva_ref_tensor *a, const kva_ref_tensor *b, uint32_t axis) {
  int64_t dims[4], index[4] = {0}, at = 0;
  memcpy(dims, a->dims, sizeof(dims));
  dims[axis] += b->dims[axis];
  kva_ref_tensor *y = fx_tensor(a->dtype, 4, dims);
  if (y->n == 0) return y;
  do {
    bool second = index[axis] >= a->dims[axis];
    const kva_ref_tensor *from = second ? b : a;
    int64_t i[4] = {index[0], index[1], index[2], index[3]};
    i[axis] -= second ? a->dims[axis] : 0;
    y->f[at++] = from->f[((i[0] * from->dims[1] + i[1]) * from->dims[2] + i[2]) * from->dims[3] + i[3]];
  } while (kva_next_index(4, dims, index));
  return y;
}

/* Chunks of the given lengths, each with the state of the one before, give the bits of one run. */
static void check_chunks(const char *boundary, uint32_t axis, int64_t W, const int64_t *lengths, uint32_t n) {
  int64_t T = 0, at = 0;
  for (uint32_t i = 0; i < n; i++) T += lengths[i];
  kva_ref_tensor *x = fx_random_rows(1, axis, T), *w = FX_RANDOM(2, H, W), *past = NULL,
                 *y = fx_random_rows(3, axis, 0);
  fx_shifted whole = fx_shift(boundary, axis, (fx_shift_operands){.x = x, .w = w});
  for (uint32_t i = 0; i < n; at += lengths[i++]) {
    fx_shifted s =
        fx_shift(boundary, axis, (fx_shift_operands){.x = fx_rows(x, axis, at, lengths[i]), .w = w, .past = past});
    y = joined(y, s.y, axis);
    past = s.state;
  }
  assert_memory_equal(y->f, whole.y->f, (size_t)y->n * sizeof(double));
  assert_memory_equal(past->f, whole.state->f, (size_t)past->n * sizeof(double));
}

static void test_chunks(void **state) {
  (void)state;
  static const int64_t splits[][6] = {{9},       {1, 1, 1, 1, 1, 4}, {8, 1},         {1, 8},
                                      {4, 0, 5}, {2, 1, 3, 3},       {3, 2, 2, 1, 1}};
  for (uint32_t i = 0; i < sizeof(splits) / sizeof(splits[0]); i++) {
    uint32_t n = 6;
    while (splits[i][n - 1] == 0) n--;
    for (int64_t k = 0; k < 3 * 2 * 4; k++)
      check_chunks(fx_boundaries[k % 3], 1 + (uint32_t)(k / 3 % 2), 1 + k / 6, splits[i], n);
    fx_free(NULL);
  }
}

/* What the paper's listing does in prefill, keeping the last mixed row: only the next row is wrong. */
static void test_mixed_state_is_wrong(void **state) {
  (void)state;
  kva_ref_tensor *x = FX_RANDOM(1, B, H, 9, D), *w = FX_RANDOM(2, H, 2);
  kva_ref_tensor *whole = fx_shift("zero", 2, (fx_shift_operands){.x = x, .w = w}).y;
  kva_ref_tensor *mixed = fx_rows(whole, 2, 3, 1), *rest = fx_rows(x, 2, 4, 5), *expected = fx_rows(whole, 2, 4, 5);
  kva_ref_tensor *y = fx_shift("zero", 2, (fx_shift_operands){.x = rest, .w = w, .past = mixed}).y;
  fx_close(fx_rows(y, 2, 1, 4), fx_rows(expected, 2, 1, 4), 0);
  for (int64_t i = 0; i < y->n; i++) {
    if (i / D % 5 == 0) assert_true(fabs(y->f[i] - expected->f[i]) > 1e-6);
  }
}

/* ---- documents and padding --------------------------------------------------------------------------------------- */

static void test_packed_documents(void **state) {
  (void)state;
  const int64_t lengths[3] = {3, 1, 4};
  const int64_t ids[8] = {7, 7, 7, 2, 7, 7, 7, 7}; /* a number may come again: neighbours count, here within W-1 = 1 */
  kva_ref_tensor *segments = fx_tensor(KVA_I64, 2, (int64_t[]){B, 8});
  for (int64_t i = 0; i < segments->n; i++) segments->i[i] = ids[i % 8];
  for (uint32_t rank = 2; rank <= 3; rank++) {
    kva_ref_tensor *x = FX_RANDOM(1, B, H, 8, D), *w = random_weights(2, rank, 8, 2);
    fx_shifted packed = fx_shift("zero", 2, (fx_shift_operands){.x = x, .w = w, .segments = segments});
    for (int64_t i = 0, at = 0; i < 3; at += lengths[i++]) {
      fx_shifted alone = fx_shift("zero", 2, (fx_shift_operands){.x = fx_rows(x, 2, at, lengths[i]), .w = w});
      fx_close(fx_rows(packed.y, 2, at, lengths[i]), alone.y, 0);
      if (i == 2) fx_close(packed.state, alone.state, 0);
    }
  }
}

/* With a window of 3 the state of a packed batch holds no row of an earlier document: decoding on equals one document.
 */
static void test_state_of_packed_documents(void **state) {
  (void)state;
  kva_ref_tensor *x = FX_RANDOM(1, B, H, 8, D), *w = FX_RANDOM(2, H, 3);
  kva_ref_tensor *segments = fx_tensor(KVA_I64, 2, (int64_t[]){B, 6});
  for (int64_t i = 0; i < segments->n; i++) segments->i[i] = i % 6 == 5;
  fx_shifted packed = fx_shift("zero", 2, (fx_shift_operands){.x = fx_rows(x, 2, 0, 6), .w = w, .segments = segments});
  kva_ref_tensor *decoded =
      fx_shift("zero", 2, (fx_shift_operands){.x = fx_rows(x, 2, 6, 2), .w = w, .past = packed.state}).y;
  kva_ref_tensor *alone = fx_shift("zero", 2, (fx_shift_operands){.x = fx_rows(x, 2, 5, 3), .w = w}).y;
  fx_close(decoded, fx_rows(alone, 2, 1, 2), 0);
}

/* Rows of padding hold garbage and change nothing; sequences of a padded batch equal sequences on their own. */
static void test_left_padding(void **state) {
  (void)state;
  const int64_t pads[B] = {3, 0};
  for (int k = 0; k < 3; k++) {
    kva_ref_tensor *x = FX_RANDOM(1, B, H, 6, D), *w = FX_RANDOM(2, H, 3);
    kva_ref_tensor *left_pad = fx_integers(1, (int64_t[]){B}, pads);
    for (int64_t i = 0; i < H * 6 * D; i++) {
      if (i / D % 6 < pads[0]) x->f[i] = NAN;
    }
    fx_shifted s = fx_shift(fx_boundaries[k], 2, (fx_shift_operands){.x = x, .w = w, .left_pad = left_pad});
    for (int64_t b = 0; b < B; b++) {
      kva_ref_tensor *one = fx_rows(fx_rows(x, 0, b, 1), 2, pads[b], 6 - pads[b]);
      fx_shifted alone = fx_shift(fx_boundaries[k], 2, (fx_shift_operands){.x = one, .w = w});
      kva_ref_tensor *y = fx_rows(s.y, 0, b, 1);
      fx_close(fx_rows(y, 2, pads[b], 6 - pads[b]), alone.y, 0);
      fx_close(fx_rows(y, 2, 0, pads[b]), fx_tensor(KVA_F64, 4, (int64_t[]){1, H, pads[b], D}), 0);
      fx_close(fx_rows(s.state, 0, b, 1), alone.state, 0);
    }
  }
}

/* ---- inference --------------------------------------------------------------------------------------------------- */

static const kva_type *symbolic(fx_graph *g, uint32_t rank, const char *const *names) {
  kva_dim dims[4];
  for (uint32_t i = 0; i < rank; i++) {
    int64_t v = strtoll(names[i], NULL, 10);
    dims[i] = v ? kva_expr_const(g->m->exprs, v) : kva_expr_symbol(g->m->exprs, names[i]);
  }
  return kva_type_tensor(g->m, KVA_F32, rank, dims);
}

static void test_symbolic_types(void **state) {
  (void)state;
  fx_graph g = fx_graph_create();
  const kva_type *x = symbolic(&g, 4, (const char *[]){"B", "T", "8", "16"});
  kva_value *operands[2] = {kva_graph_add_input(g.f->graph, x, "x"),
                            kva_graph_add_input(g.f->graph, symbolic(&g, 2, (const char *[]){"8", "3"}), "w")};
  kva_node *n = kva_build_node(&g.b, KVA_OP_kv_shift, 2, operands, 2, &(kva_kv_shift_attrs){.time_axis = 1});
  assert_false(g.b.failed);
  assert_ptr_equal(n->results[0].type, x);
  assert_ptr_equal(n->results[1].type, symbolic(&g, 4, (const char *[]){"B", "2", "8", "16"}));
  fx_graph_destroy(&g);
}

static void check_refused(kva_kv_shift_attrs a, uint32_t rank, const char *const *w, const char *message) {
  fx_graph g = fx_graph_create();
  kva_value *operands[2] = {
      kva_graph_add_input(g.f->graph, symbolic(&g, 4, (const char *[]){"B", "8", "T", "16"}), "x"),
      kva_graph_add_input(g.f->graph, symbolic(&g, rank, w), "w")};
  kva_build_node(&g.b, KVA_OP_kv_shift, 2, operands, 2, &a);
  assert_true(g.b.failed);
  assert_int_equal(kva_diag_errors(g.diag), 1);
  const char *found = kva_diag_message(g.diag, 0, NULL, NULL);
  if (!strstr(found, message)) fail_msg("\"%s\" does not say \"%s\"", found, message);
  fx_graph_destroy(&g);
}

static void test_refusals(void **state) {
  (void)state;
  kva_kv_shift_attrs plain = {.time_axis = 2}, axis = {.time_axis = 3}, rule = {.time_axis = 2, .boundary = "wrap"};
  check_refused(plain, 2, (const char *[]){"4", "2"}, "dimension 0 of the weights");
  check_refused(plain, 3, (const char *[]){"8", "2", "4"}, "dimension 2 of the weights");
  check_refused(plain, 4, (const char *[]){"B", "T", "8", "2"}, "dimension 1 of the weights");
  check_refused(plain, 1, (const char *[]){"2"}, "rank 2, 3 or 4");
  check_refused(plain, 2, (const char *[]){"8", "W"}, "number of taps");
  check_refused(axis, 2, (const char *[]){"8", "2"}, "time_axis");
  check_refused(rule, 2, (const char *[]){"8", "2"}, "\"wrap\"");
}

int main(void) {
#define TEST(f) cmocka_unit_test_teardown(f, fx_free)
  const struct CMUnitTest tests[] = {
      TEST(test_definition),
      TEST(test_single_row),
      TEST(test_no_rows),
      TEST(test_identity_and_previous),
      TEST(test_gates),
      TEST(test_rounds_once),
      TEST(test_chunks),
      TEST(test_mixed_state_is_wrong),
      TEST(test_packed_documents),
      TEST(test_state_of_packed_documents),
      TEST(test_left_padding),
      TEST(test_symbolic_types),
      TEST(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
