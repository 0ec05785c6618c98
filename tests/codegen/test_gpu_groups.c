/* What is fused around matrix products of blocks of threads: producers that are not 0 where the factor ends (cos is 1),
 * epilogues that read, transpose and reshape; by every engine, against the reference. */
#include "tests/support/target.h"
#include "passes/passes.h"
#include "ops/ids.h"
#include "tools/verify/simulated.h"

#include <math.h>
#include <setjmp.h>
#include <cmocka.h>

enum { MAX_IO = 4 };

typedef struct model {
  kva_diag *diag;
  kva_module *m;
  kva_function *f;
  kva_dtype dtype;
} model;

static model model_create(kva_dtype dtype) {
  model t = {.diag = kva_diag_create(), .dtype = dtype};
  t.m = kva_module_create(t.diag);
  t.f = kva_function_create(t.m, "main");
  return t;
}

static kva_dim dim(const model *t, const char *name, int64_t n) {
  return name ? kva_expr_symbol(t->m->exprs, name) : kva_expr_const(t->m->exprs, n);
}

static kva_value *input(model *t, const char *name, uint32_t rank, const kva_dim *dims) {
  return kva_graph_add_input(t->f->graph, kva_type_tensor(t->m, t->dtype, rank, dims), name);
}

static kva_ref_tensor *random_input(const kva_type *type, int64_t symbol, uint64_t seed) {
  int64_t dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < type->rank; d++) {
    if (!kva_expr_is_const(type->dims[d], &dims[d])) dims[d] = symbol;
  }
  kva_ref_tensor *w = kva_ref_tensor_create(type->dtype, type->rank, dims);
  for (int64_t i = 0; i < w->n; i++)
    w->f[i] = kva_round_f64(type->dtype, kva_uniform01(kva_philox4x32((uint64_t)i, seed, 1).v[0]) * 2 - 1);
  return w;
}

/* Products of 16-bit factors: the reference rounds between nodes where a group does not. */
static void compare(const kva_ref_tensor *want, const kva_ref_tensor *got, const char *what) {
  double tolerance = want->dtype == KVA_F32 ? 2e-5 : want->dtype == KVA_F16 ? 4e-3 : 3e-2;
  assert_int_equal(want->n, got->n);
  for (int64_t i = 0; i < want->n; i++) {
    double scale = fabs(want->f[i]) > 1 ? fabs(want->f[i]) : 1;
    if (!(fabs(want->f[i] - got->f[i]) <= tolerance * scale))
      fail_msg("%s: element %lld: expected %.9g, found %.9g", what, (long long)i, want->f[i], got->f[i]);
  }
}

static kva_ptx_run check(model *t, int64_t symbol, const char *arch, bool lazy) {
  uint32_t n_in = t->f->graph->inputs.len, n_out = kva_graph_output_count(t->f->graph);
  kva_ref_tensor *in[MAX_IO], *want[MAX_IO], *got[MAX_IO];
  for (uint32_t i = 0; i < n_in; i++) in[i] = random_input(t->f->graph->inputs.data[i]->type, symbol, i);
  const kva_ref_tensor *const *inputs = (const kva_ref_tensor *const *)in;
  assert_int_equal(kva_module_verify(t->m), KVA_OK);
  assert_int_equal(kva_ref_run(t->m, t->f, inputs, want, NULL, NULL, NULL, NULL, t->diag), KVA_OK);
  kva_ptx_run run = {.cache = test_cache(), .arch = arch, .lazy = lazy};
  kva_status status = kva_run_ptx(&run, t->m, t->f, inputs, got, t->diag);
  kva_diag_print(t->diag, stderr);
  assert_int_equal(status, KVA_OK);
  for (uint32_t i = 0; i < n_out; i++) compare(want[i], got[i], kva_graph_output(t->f->graph, i)->name);
  for (uint32_t i = 0; i < n_in; i++) kva_ref_tensor_free(in[i]);
  for (uint32_t i = 0; i < n_out; i++) kva_ref_tensor_free(want[i]), kva_ref_tensor_free(got[i]);
  kva_module_destroy(t->m);
  kva_diag_destroy(t->diag);
  return run;
}

/* One group of what `body` makes of the inputs. */
typedef uint32_t (*group_body)(kva_builder *b, kva_value *const *in, kva_value **results);

static void add_group(model *t, uint32_t n, kva_value *const *outer, group_body make) {
  kva_kernel_attrs attrs = {.name = "product"};
  kva_value *in[MAX_IO], *results[MAX_IO], *out[MAX_IO];
  kva_node *kernel = kva_node_create(t->f->graph, NULL, KVA_OP(kernel), n, outer, 3,
                                     kva_arena_memdup(t->m->arena, &attrs, sizeof attrs), (kva_loc){0});
  kva_graph *body = kva_graph_create(t->m, kernel);
  for (uint32_t i = 0; i < n; i++) in[i] = kva_graph_add_input(body, outer[i]->type, NULL);
  kva_builder b = {.m = t->m, .graph = body}, main = {.m = t->m, .graph = t->f->graph};
  uint32_t n_out = make(&b, in, results);
  assert_int_equal(n_out, 3);
  kva_build_node(&b, KVA_OP_return, n_out, results, 0, NULL);
  for (uint32_t i = 0; i < n_out; i++) kernel->results[i].type = results[i]->type, out[i] = &kernel->results[i];
  kva_build_node(&main, KVA_OP_return, n_out, out, 0, NULL);
}

/* gelu(c + bias) transposed, c + r, relu(c) reshaped. */
static uint32_t add_epilogue(kva_builder *b, kva_value *c, kva_value *bias, kva_value *r, kva_value **results) {
  results[0] = kva_transpose(b, kva_build1(b, KVA_OP_gelu, kva_add(b, c, bias)), (int64_t[]){1, 0});
  results[1] = kva_add(b, c, r);
  kva_dim flat[] = {kva_expr_mul(b->m->exprs, c->type->dims[0], c->type->dims[1])};
  results[2] = kva_reshape(b, kva_build1(b, KVA_OP_relu, c), 1, flat);
  return 3;
}

/* Behind c = a b. */
static uint32_t make_epilogue(kva_builder *b, kva_value *const *in, kva_value **results) {
  return add_epilogue(b, kva_matmul(b, in[0], in[1], false, false), in[2], in[3], results);
}

/* The same in float, behind float sums of narrower factors. */
static uint32_t make_float_epilogue(kva_builder *b, kva_value *const *in, kva_value **results) {
  kva_value *c = kva_build(b, KVA_OP_matmul, 2, in, &(kva_matmul_attrs){.to = KVA_F32});
  return add_epilogue(b, c, kva_cast(b, in[2], KVA_F32), kva_cast(b, in[3], KVA_F32), results);
}

/* The same behind factors that are computed. */
static uint32_t make_prologue(kva_builder *b, kva_value *const *in, kva_value **results) {
  kva_value *x = kva_build1(b, KVA_OP_cos, in[0]), *y = kva_build1(b, KVA_OP_neg, in[1]);
  return make_epilogue(b, (kva_value *const[]){x, y, in[2], in[3]}, results);
}

static kva_ptx_run run_group(kva_dtype dtype, group_body make, int64_t depth, int64_t columns, int64_t rows,
                             const char *arch, bool lazy) {
  model t = model_create(dtype);
  kva_dim a[] = {dim(&t, "M", 0), dim(&t, NULL, depth)}, b[] = {a[1], dim(&t, NULL, columns)}, c[] = {a[0], b[1]};
  kva_value *outer[] = {input(&t, "a", 2, a), input(&t, "b", 2, b), input(&t, "bias", 1, b + 1), input(&t, "r", 2, c)};
  add_group(&t, 4, outer, make);
  return check(&t, rows, arch, lazy);
}

static void test_epilogue(void **state) {
  (void)state;
  run_group(KVA_F32, make_epilogue, 24, 50, 70, "sm_80", false);
  run_group(KVA_BF16, make_epilogue, 40, 648, 30, "sm_80", true);
  run_group(KVA_F16, make_epilogue, 17, 50, 70, "sm_80", false);
  assert_int_equal(run_group(KVA_BF16, make_epilogue, 72, 264, 140, "sm_90a", true).maps, 2);
  run_group(KVA_BF16, make_float_epilogue, 40, 648, 30, "sm_80", true);
  run_group(KVA_F16, make_float_epilogue, 17, 50, 70, "sm_80", false);
  assert_int_equal(run_group(KVA_BF16, make_float_epilogue, 72, 264, 140, "sm_90a", true).maps, 2);
}

static void test_prologue(void **state) {
  (void)state;
  run_group(KVA_F32, make_prologue, 21, 50, 70, "sm_80", true);
  run_group(KVA_BF16, make_prologue, 40, 648, 30, "sm_80", true);
  assert_int_equal(run_group(KVA_F16, make_prologue, 72, 264, 70, "sm_90a", false).maps, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_epilogue), cmocka_unit_test(test_prologue)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
