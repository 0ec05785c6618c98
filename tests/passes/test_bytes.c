/* --math int8: products with quantised weights against the reference of the graph in which pass bytes has rounded their
 * first factors. Weights of both widths, with zero points and without, in both orientations; rows known or not, few or
 * many, whose bits do not depend on each other. */
#include "ops/ids.h"
#include "ops/matmul.h"
#include "passes/passes_internal.h"
#include "runtime/base/cpu.h"
#include "tests/support/evaluate.h"
#include "tests/support/target.h"

#include <setjmp.h>
#include <cmocka.h>

enum { DEPTH = 256, COLUMNS = 200 };

typedef struct form {
  kva_dtype codes;
  int64_t block, rows; /* rows: 0: M */
  bool transposed, looked_up;
} form;

static const form forms[] = {
    {KVA_I4, 32, 1, false, false},   {KVA_I4, 64, 3, true, false}, {KVA_U4, 32, 2, true, true},
    {KVA_U4, 128, 40, false, false}, {KVA_I8, 32, 1, true, false}, {KVA_I8, 256, 100, true, true},
    {KVA_U8, 32, 8, false, false},   {KVA_U8, 64, 9, true, false}, {KVA_I4, 32, 0, true, false},
    {KVA_U8, 32, 0, false, false},
};
enum { FORMS = sizeof forms / sizeof *forms };

static kva_value *tensor(kva_builder *b, kva_dtype t, int64_t rows, int64_t columns) {
  kva_arena *arena = b->m->arena;
  kva_tensor_data *data = KVA_NEW(arena, kva_tensor_data);
  int64_t dims[] = {rows, columns}, n = rows * columns, bits = kva_dtype_bits(t);
  uint64_t random = (uint64_t)t;
  *data = (kva_tensor_data){.dtype = t, .rank = 2, .bytes = n * bits / 8};
  data->dims = kva_arena_memdup(arena, dims, sizeof dims);
  void *to = kva_arena_alloc(arena, (size_t)data->bytes + 1);
  for (int64_t i = 0; i < n; i++) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    int64_t code = (int64_t)(random >> 40) % (INT64_C(1) << (bits < 8 ? bits : 8));
    if (kva_dtype_is_float(t))
      kva_store_f64(t, to, i, 0.001 * (double)(1 + code));
    else
      kva_store_i64(t, to, i, kva_wrap_i64(t, code));
  }
  data->data = to;
  return kva_const_tensor(b, data);
}

static kva_value *weights(kva_builder *b, const form *f) {
  int64_t rows = f->transposed ? COLUMNS : DEPTH, columns = f->transposed ? DEPTH : COLUMNS;
  int64_t scale_rows = f->transposed ? rows : rows / f->block,
          scale_columns = f->transposed ? columns / f->block : columns;
  bool zero = kva_dtype_is_unsigned(f->codes);
  kva_dequantize_attrs attrs = {.axis = f->transposed, .block = f->block};
  kva_value *in[] = {tensor(b, f->codes, rows, columns), tensor(b, KVA_F32, scale_rows, scale_columns),
                     zero ? tensor(b, f->codes, scale_rows, scale_columns) : NULL};
  return kva_build(b, KVA_OP_dequantize, zero ? 3 : 2, in, &attrs);
}

/* y = x w, and where weights are looked up, too, rows of them. */
static kva_module *make(const form *f, kva_diag *diag) {
  static const char *const names[] = {"y", "rows"};
  static int64_t numbers[] = {3, 0};
  kva_module *m = kva_module_create(diag);
  kva_function *main = kva_function_create(m, "main");
  kva_builder b = {.m = m, .graph = main->graph};
  kva_dim rows = f->rows ? kva_expr_const(m->exprs, f->rows) : kva_expr_symbol(m->exprs, "M");
  kva_dim dims[] = {rows, kva_expr_const(m->exprs, DEPTH)};
  kva_value *x = kva_graph_add_input(main->graph, kva_type_tensor(m, KVA_F32, 2, dims), "x"), *w = weights(&b, f);
  kva_value *out[] = {kva_matmul(&b, x, w, false, f->transposed), NULL};
  if (f->looked_up) out[1] = kva_build2(&b, KVA_OP_gather, w, kva_const_i64s(&b, 2, numbers));
  kva_build_node(&b, KVA_OP_return, f->looked_up ? 2 : 1, out, 0, NULL);
  main->output_names = (const char **)(uintptr_t)names;
  assert_false(b.failed);
  return m;
}

/* cpu: NULL: this one; vector_bits: 0: the CPU's. */
static kva_compile_options with_bytes(const char *cpu, int vector_bits) {
  kva_compile_options options = {.target = test_target(1, NULL)};
  options.target.byte_math = true;
  options.target.cpu = cpu;
  options.target.vector_bits = vector_bits;
  return options;
}

static evaluated reference(const form *f, const eval_size *sizes, const kva_target *t, kva_diag *diag) {
  kva_module *m = make(f, diag);
  bool changed = false;
  assert_int_equal(kva_run_pass(m, KVA_PASS_bytes, &(kva_pass_options){.target = t}, &changed), KVA_OK);
  assert_true(changed);
  evaluated e = evaluate_reference(m, m->functions.data[0], sizes);
  kva_module_destroy(m);
  return e;
}

/* Products that sum up blocks of bytes, in kernels that make both factors. */
static uint32_t byte_products(const kva_graph *g) {
  uint32_t n_products = 0;
  for (const kva_node *n = g->first; n; n = n->next) {
    for (uint32_t i = 0; i < n->n_graphs; i++) n_products += byte_products(n->graphs[i]);
    n_products += kva_is(n, KVA_OP_matmul) && kva_matmul_byte_block(n);
  }
  return n_products;
}

static void check(const form *f, const kva_target *t, const char *cpu, int vector_bits) {
  static const eval_size sizes[][2] = {{{"M", 1}}, {{"M", 5}}, {{"M", 9}}, {{"M", 30}}};
  kva_diag *diag = kva_diag_create();
  kva_compile_options options = with_bytes(cpu, vector_bits);
  kva_compiled *c = NULL;
  kva_ref_tensor *first = NULL;
  evaluated kept[4];
  assert_int_equal(kva_compile(make(f, diag), &options, diag, &c), KVA_OK);
  kva_function *main = c->module->functions.data[0];
  assert_int_equal(byte_products(main->graph), 1);
  int n = f->rows ? 1 : 4;
  for (int i = 0; i < n; i++) {
    evaluated expected = reference(f, sizes[i], t, diag);
    kept[i] = evaluate_compiled(c, main, sizes[i]);
    assert_true(evaluated_equal("bytes", c->module, &expected, &kept[i], 1e-5));
    kva_ref_tensor *y = kept[i].outputs[0];
    if (!first) first = y;
    assert_memory_equal(y->f, first->f, COLUMNS * sizeof *y->f);
    evaluated_free(&expected);
  }
  for (int i = 0; i < n; i++) evaluated_free(&kept[i]);
  kva_compiled_destroy(c);
  kva_diag_destroy(diag);
}

/* false: this CPU multiplies no bytes by one instruction. */
static bool has_bytes(kva_target *out) {
  kva_diag *diag = kva_diag_create();
  kva_compile_options options = with_bytes(NULL, 0);
  assert_int_equal(kva_codegen_describe(&options.target, diag, out), KVA_OK);
  kva_diag_destroy(diag);
  return kva_target_sums_bytes(out);
}

static void test_forms(void **state) {
  (void)state;
  kva_target t;
  if (!has_bytes(&t)) {
    print_message("skipped: this CPU has no sum of products of bytes\n");
    skip();
  }
  for (int i = 0; i < FORMS; i++) check(&forms[i], &t, NULL, 0);
  check(&forms[0], &t, NULL, 128);
  check(&forms[FORMS - 1], &t, NULL, 128);
}

/* A CPU without such an instruction has one that sums products of small bytes: codes of 4 bits, and few rows. */
static void test_small_bytes(void **state) {
  (void)state;
  if (!(kva_cpu_features() & KVA_CPU_AVX2)) {
    print_message("skipped: this CPU has no AVX2\n");
    skip();
  }
  const kva_target t = {.kind = KVA_TARGET_CPU, .features = KVA_TARGET_PAIRS, .vector_bytes = 32, .byte_math = true};
  for (int i = 0; i < FORMS; i++)
    if (kva_dtype_bits(forms[i].codes) == 4 && forms[i].rows <= KVA_FEW_ROWS) check(&forms[i], &t, "x86-64-v3", 0);
}

/* Without the option, and where a block is no multiple of what a kernel takes, factors stay floats. */
static void test_refused(void **state) {
  (void)state;
  static const form small = {KVA_I4, 16, 1, false, false}, plain = {KVA_I4, 32, 1, false, false};
  kva_diag *diag = kva_diag_create();
  kva_target t = {.kind = KVA_TARGET_CPU, .features = KVA_TARGET_DOT4, .byte_math = true};
  bool changed = false;
  kva_module *m = make(&small, diag), *exact = make(&plain, diag);
  assert_int_equal(kva_run_pass(m, KVA_PASS_bytes, &(kva_pass_options){.target = &t}, &changed), KVA_OK);
  t.byte_math = false;
  assert_int_equal(kva_run_pass(exact, KVA_PASS_bytes, &(kva_pass_options){.target = &t}, &changed), KVA_OK);
  assert_false(changed);
  kva_module_destroy(m);
  kva_module_destroy(exact);
  kva_diag_destroy(diag);
}

/* y = (x s) (w t), as a model has them that quantises the first factor itself. */
static kva_module *make_quantised(kva_dtype codes, kva_diag *diag) {
  static const char *const names[] = {"y"};
  enum { ROWS = 3, BLOCK = 32 };
  static const kva_dequantize_attrs of_x = {.axis = 1, .block = BLOCK}, of_w = {.axis = 0, .block = BLOCK};
  kva_module *m = kva_module_create(diag);
  kva_function *main = kva_function_create(m, "main");
  kva_builder b = {.m = m, .graph = main->graph};
  kva_dim x_dims[] = {kva_expr_const(m->exprs, ROWS), kva_expr_const(m->exprs, DEPTH)},
          s_dims[] = {x_dims[0], kva_expr_const(m->exprs, DEPTH / BLOCK)};
  kva_value *x[] = {kva_graph_add_input(main->graph, kva_type_tensor(m, KVA_I8, 2, x_dims), "x"),
                    kva_graph_add_input(main->graph, kva_type_tensor(m, KVA_F32, 2, s_dims), "s")},
            *w[] = {tensor(&b, codes, DEPTH, COLUMNS), tensor(&b, KVA_F32, DEPTH / BLOCK, COLUMNS)};
  kva_value *y = kva_matmul(&b, kva_build(&b, KVA_OP_dequantize, 2, x, &of_x),
                            kva_build(&b, KVA_OP_dequantize, 2, w, &of_w), false, false);
  kva_build_node(&b, KVA_OP_return, 1, &y, 0, NULL);
  main->output_names = (const char **)(uintptr_t)names;
  assert_false(b.failed);
  return m;
}

/* Codes without a zero point, whether they have a sign or not; the option is not needed. */
static void test_no_zero_point(void **state) {
  (void)state;
  static const kva_dtype types[] = {KVA_I4, KVA_U4, KVA_I8, KVA_U8};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    kva_diag *diag = kva_diag_create();
    kva_compile_options options = {.target = test_target(1, NULL)};
    kva_compiled *c = NULL;
    kva_module *m = make_quantised(types[i], diag);
    evaluated expected = evaluate_reference(m, m->functions.data[0], NULL);
    assert_int_equal(kva_compile(make_quantised(types[i], diag), &options, diag, &c), KVA_OK);
    evaluated found = evaluate_compiled(c, c->module->functions.data[0], NULL);
    assert_int_equal(byte_products(c->module->functions.data[0]->graph), 1);
    assert_true(evaluated_equal("no zero point", c->module, &expected, &found, 1e-5));
    evaluated_free(&expected);
    evaluated_free(&found);
    kva_compiled_destroy(c);
    kva_module_destroy(m);
    kva_diag_destroy(diag);
  }
}

/* Bytes that a model makes itself are not rounded to others. */
static void test_bytes_stay(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_module *m = make_quantised(KVA_I4, diag);
  const kva_target t = {.kind = KVA_TARGET_CPU, .features = KVA_TARGET_DOT4, .byte_math = true};
  bool changed = false;
  assert_int_equal(kva_run_pass(m, KVA_PASS_bytes, &(kva_pass_options){.target = &t}, &changed), KVA_OK);
  assert_false(changed);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms), cmocka_unit_test(test_small_bytes),
                                     cmocka_unit_test(test_refused), cmocka_unit_test(test_no_zero_point),
                                     cmocka_unit_test(test_bytes_stay)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
