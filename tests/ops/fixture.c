/* See fixture.h. */
#include "tests/ops/fixture.h"
#include "ops/ids.h"

#include <math.h>
#include <setjmp.h>
#include <cmocka.h>

const char *const fx_boundaries[3] = {"zero", "keep", "edge"};

static kva_ref_tensor *owned[1 << 16];
static uint32_t n_owned;

kva_ref_tensor *fx_keep(kva_ref_tensor *w) {
  assert_non_null(w);
  assert_true(n_owned < sizeof(owned) / sizeof(owned[0]));
  return owned[n_owned++] = w;
}

int fx_free(void **state) {
  (void)state;
  while (n_owned > 0) kva_ref_tensor_free(owned[--n_owned]);
  return 0;
}

kva_ref_tensor *fx_tensor(kva_dtype t, uint32_t rank, const int64_t *dims) {
  return fx_keep(kva_ref_tensor_create(t, rank, dims));
}

kva_ref_tensor *fx_random(uint64_t seed, uint32_t rank, const int64_t *dims) {
  kva_ref_tensor *w = fx_tensor(KVA_F64, rank, dims);
  for (int64_t i = 0; i < w->n; i++) w->f[i] = 2 * kva_uniform01(kva_philox4x32((uint64_t)i, 0, seed).v[0]) - 1;
  return w;
}

kva_ref_tensor *fx_integers(uint32_t rank, const int64_t *dims, const int64_t *v) {
  kva_ref_tensor *w = fx_tensor(KVA_I64, rank, dims);
  memcpy(w->i, v, sizeof(*v) * (size_t)w->n);
  return w;
}

kva_ref_tensor *fx_floats(uint32_t rank, const int64_t *dims, const double *v) {
  kva_ref_tensor *w = fx_tensor(KVA_F64, rank, dims);
  memcpy(w->f, v, sizeof(*v) * (size_t)w->n);
  return w;
}

fx_graph fx_graph_create(void) {
  fx_graph g = {.diag = kva_diag_create()};
  g.m = kva_module_create(g.diag);
  g.f = kva_function_create(g.m, "test");
  g.b = (kva_builder){.m = g.m, .graph = g.f->graph};
  return g;
}

void fx_graph_destroy(fx_graph *g) {
  kva_module_destroy(g->m);
  kva_diag_destroy(g->diag);
}

kva_value *fx_given(fx_graph *g, const kva_ref_tensor *w) {
  kva_dim dims[KVA_MAX_RANK];
  if (!w) return NULL;
  for (uint32_t i = 0; i < w->rank; i++) dims[i] = kva_expr_const(g->m->exprs, w->dims[i]);
  g->inputs[g->n++] = w;
  return kva_graph_add_input(g->f->graph, kva_type_tensor(g->m, w->dtype, w->rank, dims), NULL);
}

kva_value *fx_input(fx_graph *g, const char *name, uint32_t rank, const kva_dim *dims) {
  return kva_graph_add_input(g->f->graph, kva_type_tensor(g->m, KVA_F32, rank, dims), name);
}

static void require(const fx_graph *g, bool ok) {
  if (!ok) kva_diag_print(g->diag, stderr);
  assert_true(ok);
}

void fx_return(fx_graph *g, uint32_t n, kva_value *const *values) {
  kva_build_node(&g->b, KVA_OP_return, n, values, 0, NULL);
  require(g, !g->b.failed && kva_module_verify(g->m) == KVA_OK);
}

void fx_run(fx_graph *g, uint32_t n, kva_value *const *values, kva_ref_tensor **out) {
  fx_return(g, n, values);
  require(g, kva_ref_run(g->m, g->f, g->inputs, out, NULL, NULL, NULL, NULL, g->diag) == KVA_OK);
  for (uint32_t i = 0; i < n; i++) fx_keep(out[i]);
  fx_graph_destroy(g);
}

kva_ref_tensor *fx_run1(fx_graph *g, kva_value *v) {
  kva_ref_tensor *out;
  fx_run(g, 1, &v, &out);
  return out;
}

kva_node *fx_shift_node(fx_graph *g, const kva_kv_shift_attrs *a, const fx_shift_operands *o) {
  kva_value *operands[5] = {fx_given(g, o->x), fx_given(g, o->w), fx_given(g, o->past), fx_given(g, o->segments),
                            fx_given(g, o->left_pad)};
  return kva_build_node(&g->b, KVA_OP_kv_shift, 5, operands, 2, a);
}

fx_shifted fx_shift(const char *boundary, int64_t time_axis, fx_shift_operands o) {
  fx_graph g = fx_graph_create();
  kva_kv_shift_attrs a = {.time_axis = time_axis, .boundary = boundary};
  kva_node *n = fx_shift_node(&g, &a, &o);
  kva_ref_tensor *out[2];
  fx_run(&g, 2, (kva_value *[]){kva_result(n, 0), kva_result(n, 1)}, out);
  return (fx_shifted){out[0], out[1]};
}

void fx_near(double x, double y, double tolerance) {
  if (!(fabs(x - y) <= tolerance)) fail_msg("%.17g against %.17g", x, y);
}

void fx_close(const kva_ref_tensor *x, const kva_ref_tensor *y, double tolerance) {
  assert_int_equal(x->n, y->n);
  for (int64_t i = 0; i < x->n; i++) {
    if (!(fabs(x->f[i] - y->f[i]) <= tolerance))
      fail_msg("element %lld: %.17g against %.17g", (long long)i, x->f[i], y->f[i]);
  }
}

kva_ref_tensor *fx_rows(const kva_ref_tensor *x, uint32_t axis, int64_t from, int64_t count) {
  int64_t dims[4] = {0}, outer = 1, inner = 1;
  memcpy(dims, x->dims, sizeof(int64_t) * x->rank);
  dims[axis] = count;
  for (uint32_t i = 0; i < axis; i++) outer *= dims[i];
  for (uint32_t i = axis + 1; i < x->rank; i++) inner *= dims[i];
  kva_ref_tensor *y = fx_tensor(x->dtype, x->rank, dims);
  for (int64_t i = 0; i < outer; i++) {
    size_t bytes = (size_t)(count * inner) * 8;
    int64_t to = i * count * inner, at = (i * x->dims[axis] + from) * inner;
    if (x->f)
      memcpy(y->f + to, x->f + at, bytes);
    else
      memcpy(y->i + to, x->i + at, bytes);
  }
  return y;
}

kva_ref_tensor *fx_random_rows(uint64_t seed, int64_t axis, int64_t count) {
  return axis == 1 ? FX_RANDOM(seed, FX_B, count, FX_H, FX_D) : FX_RANDOM(seed, FX_B, FX_H, count, FX_D);
}

kva_ref_tensor *fx_same_for_heads(int64_t W, const double *taps) {
  kva_ref_tensor *w = fx_tensor(KVA_F64, 2, (int64_t[]){FX_H, W});
  for (int64_t i = 0; i < w->n; i++) w->f[i] = taps[i % W];
  return w;
}
