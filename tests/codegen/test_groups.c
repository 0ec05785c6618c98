/* Fused groups against the reference: what the fusion pass makes of rows and chains, and epilogues behind a product. */
#include "tests/support/target.h"
#include "passes/passes.h"
#include "ops/ids.h"
#include "tests/ops/fixture.h"
#include "tools/verify/compiled.h"

#include <math.h>
#include <setjmp.h>
#include <cmocka.h>

enum { MAX_IO = 4 };

static kva_dim dim(const fx_graph *t, const char *name, int64_t n) {
  return name ? kva_expr_symbol(t->m->exprs, name) : kva_expr_const(t->m->exprs, n);
}

static kva_ref_tensor *random_input(const kva_type *type, int64_t symbol, uint64_t seed) {
  int64_t dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < type->rank; d++) {
    if (!kva_expr_is_const(type->dims[d], &dims[d])) dims[d] = symbol;
  }
  kva_ref_tensor *w = kva_ref_tensor_create(type->dtype, type->rank, dims);
  for (int64_t i = 0; i < w->n; i++) {
    w->f[i] = (double)(float)(kva_uniform01(kva_philox4x32((uint64_t)i, seed, 1).v[0]) * 4 - 2);
  }
  return w;
}

static void compare(const kva_ref_tensor *want, const kva_ref_tensor *got, const char *what) {
  assert_int_equal(want->n, got->n);
  for (int64_t i = 0; i < want->n; i++) {
    double scale = fabs(want->f[i]) > 1 ? fabs(want->f[i]) : 1;
    if (!(fabs(want->f[i] - got->f[i]) <= 2e-5 * scale)) {
      fail_msg("%s: element %lld: expected %.9g, found %.9g", what, (long long)i, want->f[i], got->f[i]);
    }
  }
}

typedef kva_status (*pass_function)(kva_module *m, const kva_pass_options *options, bool *changed);

/* Reference first, then `change` the graph, then compiled. */
static void check(fx_graph *t, int64_t symbol, pass_function change) {
  uint32_t n_in = t->f->graph->inputs.len, n_out = kva_graph_output_count(t->f->graph);
  kva_ref_tensor *in[MAX_IO], *want[MAX_IO], *got[MAX_IO];
  for (uint32_t i = 0; i < n_in; i++) in[i] = random_input(t->f->graph->inputs.data[i]->type, symbol, i);
  const kva_ref_tensor *const *inputs = (const kva_ref_tensor *const *)in;
  assert_int_equal(kva_ref_run(t->m, t->f, inputs, want, NULL, NULL, NULL, NULL, t->diag), KVA_OK);
  bool changed = false;
  if (change) assert_int_equal(change(t->m, &(kva_pass_options){0}, &changed), KVA_OK);
  kva_target_options target = test_target(2, NULL);
  kva_status status = kva_run_compiled(&target, t->m, t->f, inputs, got, t->diag);
  kva_diag_print(t->diag, stderr);
  assert_int_equal(status, KVA_OK);
  for (uint32_t i = 0; i < n_out; i++) compare(want[i], got[i], kva_graph_output(t->f->graph, i)->name);
  for (uint32_t i = 0; i < n_in; i++) kva_ref_tensor_free(in[i]);
  for (uint32_t i = 0; i < n_out; i++) kva_ref_tensor_free(want[i]), kva_ref_tensor_free(got[i]);
}

static uint32_t count_nodes(const fx_graph *t) {
  uint32_t n = 0;
  for (const kva_node *k = t->f->graph->first; k; k = k->next) n++;
  return n;
}

/* y = silu(rms_norm(x)) * z, and the row sums of y beside it. */
static void test_rows(void **state) {
  (void)state;
  static const int64_t widths[] = {1, 7, 64, 200};
  for (int i = 0; i < 4; i++) {
    fx_graph t = fx_graph_create();
    kva_dim shape[] = {dim(&t, "T", 0), dim(&t, NULL, widths[i])};
    kva_value *x = fx_input(&t, "x", 2, shape), *w = fx_input(&t, "w", 1, shape + 1), *z = fx_input(&t, "z", 2, shape);
    kva_value *y = kva_mul(&t.b, kva_build1(&t.b, KVA_OP_silu, kva_build2(&t.b, KVA_OP_rms_norm, x, w)), z);
    kva_value *sums = kva_reduce(&t.b, KVA_OP_reduce_sum, y, 1, (int64_t[]){1}, false);
    fx_return(&t, 2, (kva_value *[]){y, sums});
    check(&t, 13, kva_fuse);
    assert_int_equal(count_nodes(&t), 2); /* one group and the return */
    fx_graph_destroy(&t);
  }
}

/* softmax over a broadcast sum, transposed. */
static void test_softmax_view(void **state) {
  (void)state;
  fx_graph t = fx_graph_create();
  kva_dim shape[] = {dim(&t, "B", 0), dim(&t, NULL, 5), dim(&t, NULL, 33)};
  kva_value *x = fx_input(&t, "x", 3, shape), *bias = fx_input(&t, "bias", 1, shape + 2);
  kva_value *y = kva_build1(&t.b, KVA_OP_softmax, kva_add(&t.b, x, bias));
  fx_return(&t, 1, (kva_value *[]){kva_transpose(&t.b, y, (int64_t[]){1, 0, 2})});
  check(&t, 4, kva_fuse);
  fx_graph_destroy(&t);
}

/* A group made by hand: out = gelu(a @ b + bias) transposed, raw = a @ b, flat = relu(a @ b) reshaped. */
static void test_epilogue(void **state) {
  (void)state;
  fx_graph t = fx_graph_create();
  kva_dim a_shape[] = {dim(&t, "M", 0), dim(&t, NULL, 24)}, b_shape[] = {a_shape[1], dim(&t, NULL, 50)};
  kva_value *outer[] = {fx_input(&t, "a", 2, a_shape), fx_input(&t, "b", 2, b_shape),
                        fx_input(&t, "bias", 1, b_shape + 1)};
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
  fx_return(&t, 3, (kva_value *[]){&kernel->results[0], &kernel->results[1], &kernel->results[2]});
  check(&t, 19, NULL);
  fx_graph_destroy(&t);
}

/* A row operator behind a product cannot run on single elements: a diagnostic, not wrong code. */
static void test_epilogue_refused(void **state) {
  (void)state;
  fx_graph t = fx_graph_create();
  kva_dim shape[] = {dim(&t, NULL, 8), dim(&t, NULL, 8)};
  kva_value *x = fx_input(&t, "x", 2, shape);
  kva_node *kernel = kva_node_create(t.f->graph, NULL, KVA_OP(kernel), 1, &x, 1,
                                     kva_arena_alloc(t.m->arena, sizeof(kva_kernel_attrs)), (kva_loc){0});
  kva_graph *body = kva_graph_create(t.m, kernel);
  kva_value *in = kva_graph_add_input(body, x->type, NULL);
  kva_builder b = {.m = t.m, .graph = body};
  kva_value *y = kva_build1(&b, KVA_OP_softmax, kva_matmul(&b, in, in, false, false));
  kva_build_node(&b, KVA_OP_return, 1, &y, 0, NULL);
  kernel->results[0].type = y->type;
  fx_return(&t, 1, (kva_value *[]){&kernel->results[0]});
  static const kva_target target = {.vector_bytes = 64, .vector_registers = 32, .l2_bytes = 1 << 20, .cores = 2};
  assert_null(kva_codegen_lower(t.m->arena, kernel, &target));
  assert_int_equal(kva_diag_errors(t.diag), 1);
  fx_graph_destroy(&t);
}

/* ---- what fusion puts around a tile ------------------------------------------------------------------------------ */

static kva_value *tensor(fx_graph *t, const char *name, uint32_t rank, const int64_t *extents) {
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < rank; d++) dims[d] = dim(t, extents[d] ? NULL : "S", extents[d]); /* 0: the symbol S */
  return fx_input(t, name, rank, dims);
}
#define TENSOR(t, name, ...) \
  tensor(t, name, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (const int64_t[]){__VA_ARGS__})

/* Runs the model with S = 19 and expects this many steps. */
static void check_steps(fx_graph *t, uint32_t n_outputs, kva_value *const *outputs, uint32_t steps) {
  fx_return(t, n_outputs, outputs);
  check(t, 19, kva_fuse);
  uint32_t found = 0;
  for (const kva_node *n = t->f->graph->first; n; n = n->next) {
    found += kva_is(n, KVA_OP_kernel) || n->op->lower_kind == KVA_LOWER_KERNEL;
  }
  assert_int_equal(found, steps);
  fx_graph_destroy(t);
}

/* gelu(a @ b + bias) + residual, with what gelu reads as a second output; of few rows and of many. */
static void test_matmul_epilogue(void **state) {
  (void)state;
  static const int64_t rows[] = {0, 3, 70};
  for (int i = 0; i < 3; i++) {
    fx_graph t = fx_graph_create();
    kva_value *a = TENSOR(&t, "a", rows[i], 24), *b = TENSOR(&t, "b", 24, 50), *bias = TENSOR(&t, "bias", 50);
    kva_value *x = kva_add(&t.b, kva_matmul(&t.b, a, b, false, false), bias);
    kva_value *y = kva_add(&t.b, kva_build1(&t.b, KVA_OP_gelu, x), TENSOR(&t, "residual", rows[i], 50));
    check_steps(&t, 2, (kva_value *[]){y, x}, 1);
  }
}

/* Two products meet: one of them takes the rest along. */
static void test_two_products(void **state) {
  (void)state;
  fx_graph t = fx_graph_create();
  kva_value *a = TENSOR(&t, "a", 0, 24), *b = TENSOR(&t, "b", 24, 50), *c = TENSOR(&t, "c", 50, 24);
  kva_value *gate = kva_build1(&t.b, KVA_OP_silu, kva_matmul(&t.b, a, b, false, false));
  check_steps(&t, 1, (kva_value *[]){kva_mul(&t.b, gate, kva_matmul(&t.b, a, c, false, true))}, 2);
}

/* A norm reads whole rows: the product stays outside. */
static void test_row_behind_product(void **state) {
  (void)state;
  fx_graph t = fx_graph_create();
  kva_value *a = TENSOR(&t, "a", 0, 24), *b = TENSOR(&t, "b", 24, 50), *scale = TENSOR(&t, "scale", 50);
  kva_value *y =
      kva_build2(&t.b, KVA_OP_rms_norm, kva_build1(&t.b, KVA_OP_relu, kva_matmul(&t.b, a, b, false, false)), scale);
  check_steps(&t, 1, &y, 2);
}

/* c + its transpose reads c at two elements. */
static void test_product_read_twice(void **state) {
  (void)state;
  fx_graph t = fx_graph_create();
  kva_value *a = TENSOR(&t, "a", 20, 24), *b = TENSOR(&t, "b", 24, 20);
  kva_value *c = kva_matmul(&t.b, a, b, false, false);
  check_steps(&t, 1, (kva_value *[]){kva_add(&t.b, c, kva_transpose(&t.b, c, (int64_t[]){1, 0}))}, 2);
}

/* The result broadcast against something larger is not computed again for each copy. */
static void test_product_broadcast(void **state) {
  (void)state;
  fx_graph t = fx_graph_create();
  kva_value *a = TENSOR(&t, "a", 20, 24), *b = TENSOR(&t, "b", 24, 30), *x = TENSOR(&t, "x", 5, 20, 30);
  check_steps(&t, 1, (kva_value *[]){kva_add(&t.b, kva_matmul(&t.b, a, b, false, false), x)}, 2);
}

/* Heads split before and joined behind: views of the operands join, a transposition keeps the innermost axis. */
static void test_views_around_products(void **state) {
  (void)state;
  fx_graph t = fx_graph_create();
  kva_value *x = TENSOR(&t, "x", 2, 4, 9, 8), *y = TENSOR(&t, "y", 2, 9, 4, 8), *w = TENSOR(&t, "w", 32, 20);
  kva_value *scores = kva_matmul(&t.b, x, kva_transpose(&t.b, y, (int64_t[]){0, 2, 1, 3}), false, true);
  kva_value *tall = kva_transpose(&t.b, kva_build1(&t.b, KVA_OP_neg, scores), (int64_t[]){0, 2, 1, 3});
  kva_dim flat[] = {dim(&t, NULL, 2), dim(&t, NULL, 9), dim(&t, NULL, 32)};
  kva_value *rows = kva_reshape(&t.b, kva_transpose(&t.b, x, (int64_t[]){0, 2, 1, 3}), 3, flat);
  check_steps(&t, 2, (kva_value *[]){tall, kva_matmul(&t.b, rows, w, false, false)}, 2);
}

/* What is copied to panels anyway is scaled on the way; its other reader has its own. */
static void test_scaled_operand(void **state) {
  (void)state;
  fx_graph t = fx_graph_create();
  kva_value *a = TENSOR(&t, "a", 0, 24), *b = TENSOR(&t, "b", 24, 50);
  kva_value *scaled = kva_mul(&t.b, b, kva_scalar_like(&t.b, b, 0.5));
  check_steps(&t, 1, (kva_value *[]){kva_matmul(&t.b, a, scaled, false, false)}, 1);
}

/* conv, batch_norm, residual, relu: one step, on lines, on one line for each image, and in plain loops. */
static void test_conv_epilogue(void **state) {
  (void)state;
  static const struct { int64_t channels, weights, kernel, pad; } cases[] = {{5, 5, 3, 1}, {5, 5, 1, 0}, {6, 1, 3, 1}};
  for (int i = 0; i < 3; i++) {
    fx_graph t = fx_graph_create();
    int64_t n = cases[i].channels, k = cases[i].kernel,
            pads[] = {cases[i].pad, cases[i].pad, cases[i].pad, cases[i].pad};
    kva_value *x = TENSOR(&t, "x", 2, n, 7, 40), *w = TENSOR(&t, "w", n, cases[i].weights, k, k);
    kva_value *mean = TENSOR(&t, "mean", n), *residual = TENSOR(&t, "residual", 2, n, 7, 40);
    kva_value *variance = kva_build1(&t.b, KVA_OP_exp, mean);
    kva_conv_attrs attrs = {.pads = {4, pads}, .group = n / cases[i].weights};
    kva_value *c = kva_build(&t.b, KVA_OP_conv, 2, (kva_value *[]){x, w}, &attrs);
    kva_batch_norm_attrs norm = {.eps = 1e-5};
    c = kva_build(&t.b, KVA_OP_batch_norm, 5, (kva_value *[]){c, mean, mean, mean, variance}, &norm);
    check_steps(&t, 1, (kva_value *[]){kva_build1(&t.b, KVA_OP_relu, kva_add(&t.b, c, residual))}, 1);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_epilogue),
                                     cmocka_unit_test(test_epilogue_refused),
                                     cmocka_unit_test(test_rows),
                                     cmocka_unit_test(test_softmax_view),
                                     cmocka_unit_test(test_matmul_epilogue),
                                     cmocka_unit_test(test_two_products),
                                     cmocka_unit_test(test_row_behind_product),
                                     cmocka_unit_test(test_product_read_twice),
                                     cmocka_unit_test(test_product_broadcast),
                                     cmocka_unit_test(test_views_around_products),
                                     cmocka_unit_test(test_scaled_operand),
                                     cmocka_unit_test(test_conv_epilogue)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
