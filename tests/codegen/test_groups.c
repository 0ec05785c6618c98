/* Fused groups against the reference: what the fusion pass makes of rows and chains, and epilogues behind a product. */
#include "passes/passes.h"
#include "tools/verify/compiled.h"

#include <math.h>
#include <setjmp.h>
#include <cmocka.h>

enum { MAX_IO = 4 };

typedef struct model {
  kva_diag *diag;
  kva_module *m;
  kva_function *f;
  kva_builder b;
} model;

static model model_create(void) {
  model t = {.diag = kva_diag_create()};
  t.m = kva_module_create(t.diag);
  t.f = kva_function_create(t.m, "main");
  t.b = (kva_builder){.m = t.m, .graph = t.f->graph};
  return t;
}

static kva_dim dim(const model *t, const char *name, int64_t n) {
  return name ? kva_expr_symbol(t->m->exprs, name) : kva_expr_const(t->m->exprs, n);
}

static kva_value *input(model *t, const char *name, uint32_t rank, const kva_dim *dims) {
  return kva_graph_add_input(t->f->graph, kva_type_tensor(t->m, KVA_F32, rank, dims), name);
}

static void finish(model *t, uint32_t n, kva_value *const *outputs) {
  kva_build_node(&t->b, KVA_OP_return, n, outputs, 0, NULL);
  if (t->b.failed || kva_module_verify(t->m) != KVA_OK) {
    kva_diag_print(t->diag, stderr);
    fail();
  }
}

static kva_wide *random_input(const kva_type *type, int64_t symbol, uint64_t seed) {
  int64_t dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < type->rank; d++) {
    if (!kva_expr_is_const(type->dims[d], &dims[d])) dims[d] = symbol;
  }
  kva_wide *w = kva_wide_create(type->dtype, type->rank, dims);
  for (int64_t i = 0; i < w->n; i++) {
    w->f[i] = (double)(float)(kva_uniform01(kva_philox4x32((uint64_t)i, seed, 1).v[0]) * 4 - 2);
  }
  return w;
}

static void compare(const kva_wide *want, const kva_wide *got, const char *what) {
  assert_int_equal(want->n, got->n);
  for (int64_t i = 0; i < want->n; i++) {
    double scale = fabs(want->f[i]) > 1 ? fabs(want->f[i]) : 1;
    if (!(fabs(want->f[i] - got->f[i]) <= 2e-5 * scale)) {
      fail_msg("%s: element %lld: expected %.9g, found %.9g", what, (long long)i, want->f[i], got->f[i]);
    }
  }
}

/* Reference first, then `change` the graph, then compiled. */
static void check(model *t, int64_t symbol, kva_pass change) {
  uint32_t n_in = t->f->graph->inputs.len, n_out = kva_graph_output_count(t->f->graph);
  kva_wide *in[MAX_IO], *want[MAX_IO], *got[MAX_IO];
  for (uint32_t i = 0; i < n_in; i++) in[i] = random_input(t->f->graph->inputs.data[i]->type, symbol, i);
  const kva_wide *const *inputs = (const kva_wide *const *)in;
  assert_int_equal(kva_ref_run(t->m, t->f, inputs, want, NULL, NULL, NULL, NULL, t->diag), KVA_OK);
  bool changed = false;
  if (change) assert_int_equal(change(t->m, &changed), KVA_OK);
  kva_status status = kva_run_compiled(NULL, t->m, t->f, inputs, got, t->diag);
  kva_diag_print(t->diag, stderr);
  assert_int_equal(status, KVA_OK);
  for (uint32_t i = 0; i < n_out; i++) compare(want[i], got[i], kva_graph_output(t->f->graph, i)->name);
  for (uint32_t i = 0; i < n_in; i++) kva_wide_free(in[i]);
  for (uint32_t i = 0; i < n_out; i++) kva_wide_free(want[i]), kva_wide_free(got[i]);
}

static void model_destroy(model *t) {
  kva_module_destroy(t->m);
  kva_diag_destroy(t->diag);
}

static uint32_t count_nodes(const model *t) {
  uint32_t n = 0;
  for (const kva_node *k = t->f->graph->first; k; k = k->next) n++;
  return n;
}

/* y = silu(rms_norm(x)) * z, and the row sums of y beside it. */
static void test_rows(void **state) {
  (void)state;
  static const int64_t widths[] = {1, 7, 64, 200};
  for (int i = 0; i < 4; i++) {
    model t = model_create();
    kva_dim shape[] = {dim(&t, "T", 0), dim(&t, NULL, widths[i])};
    kva_value *x = input(&t, "x", 2, shape), *w = input(&t, "w", 1, shape + 1), *z = input(&t, "z", 2, shape);
    kva_value *y = kva_mul(&t.b, kva_build1(&t.b, KVA_OP_silu, kva_build2(&t.b, KVA_OP_rms_norm, x, w)), z);
    kva_value *sums = kva_reduce(&t.b, KVA_OP_reduce_sum, y, 1, (int64_t[]){1}, false);
    finish(&t, 2, (kva_value *[]){y, sums});
    check(&t, 13, kva_fuse);
    assert_int_equal(count_nodes(&t), 2); /* one group and the return */
    model_destroy(&t);
  }
}

/* softmax over a broadcast sum, transposed. */
static void test_softmax_view(void **state) {
  (void)state;
  model t = model_create();
  kva_dim shape[] = {dim(&t, "B", 0), dim(&t, NULL, 5), dim(&t, NULL, 33)};
  kva_value *x = input(&t, "x", 3, shape), *bias = input(&t, "bias", 1, shape + 2);
  kva_value *y = kva_build1(&t.b, KVA_OP_softmax, kva_add(&t.b, x, bias));
  finish(&t, 1, (kva_value *[]){kva_transpose(&t.b, y, (int64_t[]){1, 0, 2})});
  check(&t, 4, kva_fuse);
  model_destroy(&t);
}

/* A group made by hand: out = gelu(a @ b + bias) transposed, raw = a @ b, flat = relu(a @ b) reshaped. */
static void test_epilogue(void **state) {
  (void)state;
  model t = model_create();
  kva_dim a_shape[] = {dim(&t, "M", 0), dim(&t, NULL, 24)}, b_shape[] = {a_shape[1], dim(&t, NULL, 50)};
  kva_value *outer[] = {input(&t, "a", 2, a_shape), input(&t, "b", 2, b_shape), input(&t, "bias", 1, b_shape + 1)};
  kva_kernel_attrs attrs = {.name = "product"};
  kva_node *kernel = kva_node_create(t.f->graph, NULL, KVA_OP(kernel), 3, outer, 3,
                                     kva_arena_memdup(t.m->arena, &attrs, sizeof attrs), (kva_loc){0});
  kva_graph *body = kva_graph_create(t.m, kernel);
  kva_value *in[3];
  for (int i = 0; i < 3; i++) in[i] = kva_graph_add_input(body, outer[i]->type, NULL);
  kva_builder b = {.m = t.m, .graph = body};
  kva_value *c = kva_matmul(&b, kva_build1(&b, KVA_OP_neg, in[0]), in[1], false, false);
  kva_value *g = kva_transpose(&b, kva_build1(&b, KVA_OP_gelu, kva_add(&b, c, in[2])), (int64_t[]){1, 0});
  kva_dim flat[] = {kva_expr_mul(t.m->exprs, a_shape[0], b_shape[1])};
  kva_value *results[] = {g, c, kva_reshape(&b, kva_build1(&b, KVA_OP_relu, c), 1, flat)};
  kva_build_node(&b, KVA_OP_return, 3, results, 0, NULL);
  for (int i = 0; i < 3; i++) kernel->results[i].type = results[i]->type;
  finish(&t, 3, (kva_value *[]){&kernel->results[0], &kernel->results[1], &kernel->results[2]});
  check(&t, 19, NULL);
  model_destroy(&t);
}

/* A row operator behind a product cannot run on single elements: a diagnostic, not wrong code. */
static void test_epilogue_refused(void **state) {
  (void)state;
  model t = model_create();
  kva_dim shape[] = {dim(&t, NULL, 8), dim(&t, NULL, 8)};
  kva_value *x = input(&t, "x", 2, shape);
  kva_node *kernel = kva_node_create(t.f->graph, NULL, KVA_OP(kernel), 1, &x, 1,
                                     kva_arena_alloc(t.m->arena, sizeof(kva_kernel_attrs)), (kva_loc){0});
  kva_graph *body = kva_graph_create(t.m, kernel);
  kva_value *in = kva_graph_add_input(body, x->type, NULL);
  kva_builder b = {.m = t.m, .graph = body};
  kva_value *y = kva_build1(&b, KVA_OP_softmax, kva_matmul(&b, in, in, false, false));
  kva_build_node(&b, KVA_OP_return, 1, &y, 0, NULL);
  kernel->results[0].type = y->type;
  finish(&t, 1, (kva_value *[]){&kernel->results[0]});
  static const kva_target target = {.vector_bytes = 64, .vector_registers = 32};
  assert_null(kva_codegen_lower(t.m->arena, kernel, &target));
  assert_int_equal(kva_diag_errors(t.diag), 1);
  model_destroy(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_epilogue), cmocka_unit_test(test_epilogue_refused),
                                     cmocka_unit_test(test_rows), cmocka_unit_test(test_softmax_view)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
