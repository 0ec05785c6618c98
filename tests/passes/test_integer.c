/* Compiled graphs of QuantizeLinear and DequantizeLinear (QDQ) against the reference of what was imported: products are
 * integer ones (pass integer), codes of results differ by one step at most, and not at all where scales are powers of
 * two. Random shapes, types of codes and zero points. KVA_TEST_SEEDS=N tries N seeds. */
#include "ops/ids.h"
#include "passes/passes_internal.h"
#include "tests/support/evaluate.h"
#include "tests/support/target.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

typedef struct graph {
  kva_builder b;
  uint64_t random;
  bool exact; /* scales are powers of two */
} graph;

static int64_t pick(graph *g, int64_t low, int64_t high) {
  g->random = g->random * 6364136223846793005u + 1442695040888963407u;
  return low + (int64_t)((g->random >> 33) % (uint64_t)(high - low + 1));
}

static double pick_scale(graph *g, double near) {
  return g->exact ? exp2(round(log2(near))) : near * (double)pick(g, 700, 1400) / 1000;
}

static kva_value *tensor(graph *g, kva_dtype t, uint32_t rank, const int64_t *dims, double low, double high) {
  kva_arena *arena = g->b.m->arena;
  kva_tensor_data *data = KVA_NEW(arena, kva_tensor_data);
  int64_t n = 1;
  for (uint32_t d = 0; d < rank; d++) n *= dims[d];
  *data = (kva_tensor_data){.dtype = t, .rank = rank, .bytes = n * kva_dtype_bits(t) / 8};
  data->dims = kva_arena_memdup(arena, dims, rank * sizeof *dims);
  void *to = kva_arena_alloc(arena, (size_t)data->bytes + 1);
  for (int64_t i = 0; i < n; i++) {
    if (kva_dtype_is_float(t))
      kva_store_f64(t, to, i, pick_scale(g, high));
    else
      kva_store_i64(t, to, i, pick(g, (int64_t)low, (int64_t)high));
  }
  data->data = to;
  return kva_const_tensor(&g->b, data);
}

static double lowest(kva_dtype t) {
  return t == KVA_U8 ? 0 : -128;
}

static kva_value *pick_zero(graph *g, kva_dtype t, bool symmetric) {
  return symmetric ? NULL : kva_const_scalar(&g->b, t, lowest(t) + (double)pick(g, 0, 255));
}

/* QuantizeLinear as the importer spells it. */
static kva_value *quantize(graph *g, kva_value *x, double scale, kva_value *zero, kva_dtype t) {
  kva_builder *b = &g->b;
  x = kva_build1(b, KVA_OP_round, kva_div(b, x, kva_const_scalar(b, KVA_F32, scale)));
  if (zero) x = kva_add(b, x, kva_cast(b, zero, KVA_F32));
  x = kva_build2(b, KVA_OP_max, x, kva_const_scalar(b, KVA_F32, lowest(t)));
  x = kva_build2(b, KVA_OP_min, x, kva_const_scalar(b, KVA_F32, lowest(t) + 255));
  return kva_cast(b, kva_cast(b, x, KVA_I32), t);
}

static kva_value *dequantize(graph *g, kva_value *q, kva_value *scale, kva_value *zero, int64_t axis) {
  kva_dequantize_attrs attrs = {.axis = axis};
  return kva_build(&g->b, KVA_OP_dequantize, zero ? 3 : 2, (kva_value *[]){q, scale, zero}, &attrs);
}

/* A value of floats as codes and back. */
static kva_value *through_codes(graph *g, kva_value *x, double scale, kva_value **out_codes) {
  kva_dtype t = pick(g, 0, 1) ? KVA_U8 : KVA_I8;
  kva_value *zero = pick_zero(g, t, pick(g, 0, 1));
  *out_codes = quantize(g, x, scale, zero, t);
  return dequantize(g, *out_codes, kva_const_scalar(&g->b, KVA_F32, scale), zero, 0);
}

static kva_value *weights(graph *g, uint32_t rank, const int64_t *dims, int64_t axis) {
  kva_dtype t = pick(g, 0, 1) ? KVA_U8 : KVA_I8;
  kva_value *q = tensor(g, t, rank, dims, lowest(t), lowest(t) + 255);
  bool each = pick(g, 0, 1), symmetric = pick(g, 0, 1);
  if (!each)
    return dequantize(g, q, kva_const_scalar(&g->b, KVA_F32, pick_scale(g, 0.01)), pick_zero(g, t, symmetric), 0);
  kva_value *zero = symmetric ? NULL : tensor(g, t, 1, &dims[axis], lowest(t), lowest(t) + 255);
  return dequantize(g, q, tensor(g, KVA_F32, 1, &dims[axis], 0, 0.01), zero, axis);
}

static kva_value *input(graph *g, const char *name, uint32_t rank, const int64_t *extents) {
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < rank; d++) dims[d] = kva_expr_const(g->b.m->exprs, extents[d]);
  return kva_graph_add_input(g->b.graph, kva_type_tensor(g->b.m, KVA_F32, rank, dims), name);
}

/* Codes of conv(x, w) + bias, of its positive part, or of the largest of four, for windows of all kinds. */
static kva_value *convolution(graph *g) {
  int64_t group = pick(g, 0, 3) ? 1 : 2, per = pick(g, 1, 9), kernel = pick(g, 1, 3), stride = pick(g, 1, 2);
  int64_t x_dims[] = {pick(g, 1, 2), per * group, pick(g, 5, 12), pick(g, 5, 20)};
  int64_t w_dims[] = {group * pick(g, 1, 17), per, kernel, kernel}, strides[] = {stride, stride};
  int64_t pads[] = {pick(g, 0, kernel - 1), pick(g, 0, kernel - 1), pick(g, 0, kernel - 1), pick(g, 0, kernel - 1)};
  kva_value *codes, *x = through_codes(g, input(g, "x", 4, x_dims), pick_scale(g, 0.02), &codes);
  kva_conv_attrs attrs = {.strides = {2, strides}, .pads = {4, pads}, .group = group};
  kva_value *in[] = {x, weights(g, 4, w_dims, 0)}, *y = kva_build(&g->b, KVA_OP_conv, 2, in, &attrs);
  kva_value *bias = tensor(g, KVA_F32, 1, w_dims, 0, 0.5);
  kva_dim one = kva_expr_const(g->b.m->exprs, 1);
  y = kva_add(&g->b, y, kva_reshape(&g->b, bias, 3, (kva_dim[]){kva_expr_const(g->b.m->exprs, w_dims[0]), one, one}));
  if (pick(g, 0, 1)) y = kva_build1(&g->b, KVA_OP_relu, y);
  y = through_codes(g, y, pick_scale(g, 0.1), &codes);
  if (pick(g, 0, 1)) return codes;
  int64_t window[] = {2, 2};
  kva_max_pool_attrs pool = {.kernel = {2, window}};
  y = kva_build(&g->b, KVA_OP_max_pool, 1, &y, &pool);
  through_codes(g, y, pick_scale(g, 0.1), &codes);
  return codes;
}

static kva_value *product(graph *g) {
  int64_t m = pick(g, 1, 40), k = pick(g, 1, 70), n = pick(g, 1, 40), transposed = pick(g, 0, 1);
  int64_t x_dims[] = {m, k}, w_dims[] = {transposed ? n : k, transposed ? k : n};
  kva_value *codes, *x = through_codes(g, input(g, "x", 2, x_dims), pick_scale(g, 0.02), &codes);
  kva_value *y = kva_matmul(&g->b, x, weights(g, 2, w_dims, !transposed), false, transposed);
  y = kva_add(&g->b, y, tensor(g, KVA_F32, 1, &n, 0, 0.5));
  through_codes(g, y, pick_scale(g, 0.1), &codes);
  return codes;
}

static kva_module *make(uint64_t seed, bool exact, kva_diag *diag) {
  static const char *const names[] = {"y"};
  kva_module *m = kva_module_create(diag);
  kva_function *f = kva_function_create(m, "main");
  graph g = {.b = {.m = m, .graph = f->graph}, .random = seed, .exact = exact};
  for (int i = 0; i < 8; i++) pick(&g, 0, 1);
  kva_value *y = seed % 2 ? convolution(&g) : product(&g);
  kva_build_node(&g.b, KVA_OP_return, 1, &y, 0, NULL);
  f->output_names = (const char **)(uintptr_t)names;
  assert_false(g.b.failed);
  return m;
}

static uint32_t count_products(const kva_graph *g, kva_dtype t) {
  uint32_t count = 0;
  for (const kva_node *n = g->first; n; n = n->next) {
    for (uint32_t i = 0; i < n->n_graphs; i++) count += count_products(n->graphs[i], t);
    count += n->op->product && n->results[0].type->dtype == t;
  }
  return count;
}

static void check(uint64_t seed, bool exact, int64_t *out_apart, int64_t *out_codes) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = make(seed, exact, diag);
  kva_compiled *c = NULL;
  evaluated before = evaluate_reference(m, m->functions.data[0], NULL);
  if (kva_compile(m, &(kva_compile_options){.target = test_target(1, NULL)}, diag, &c)) {
    kva_diag_print(diag, stderr);
    fail_msg("seed %llu does not compile", (unsigned long long)seed);
  }
  const kva_function *f = c->module->functions.data[0];
  if (count_products(f->graph, KVA_F32) || !count_products(f->graph, KVA_I32))
    fail_msg("seed %llu: a product of floats is left", (unsigned long long)seed);
  evaluated after = evaluate_compiled(c, c->module->functions.data[0], NULL);
  const kva_ref_tensor *x = before.outputs[0], *y = after.outputs[0];
  assert_int_equal(x->n, y->n);
  for (int64_t i = 0; i < x->n; i++) {
    int64_t apart = llabs(x->i[i] - y->i[i]);
    if (apart > !exact)
      fail_msg("seed %llu: code %lld is %lld, expected %lld", (unsigned long long)seed, (long long)i,
               (long long)y->i[i], (long long)x->i[i]);
    *out_apart += apart;
  }
  *out_codes += x->n;
  evaluated_free(&before);
  evaluated_free(&after);
  kva_compiled_destroy(c);
  kva_diag_destroy(diag);
}

static void check_all(bool exact) {
  const char *given = getenv("KVA_TEST_SEEDS");
  int64_t seeds = given ? strtoll(given, NULL, 10) : 60, apart = 0, codes = 0;
  for (int64_t i = 0; i < seeds; i++) check((uint64_t)i, exact, &apart, &codes);
  printf("%lld of %lld codes are a step apart\n", (long long)apart, (long long)codes);
  assert_true(apart * 1000 <= codes); /* results near the middle between two codes are rare */
}

static void test_one_step(void **state) {
  (void)state;
  check_all(false);
}

static void test_equal_bits(void **state) {
  (void)state;
  check_all(true);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_step), cmocka_unit_test(test_equal_bits)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
