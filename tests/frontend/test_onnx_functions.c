/* Operators that are exported as functions of domain ai.kvasir: each comes back as the operator with the same
 * attributes, its body computes the same in primitives, equal bodies are one function, and a call that does not fit the
 * operator is taken by its body. (KVShift's forms: test_onnx_export.c.) */
#include "tests/frontend/onnx_pack.h"
#include "ops/ids.h"

#include <math.h>

enum { MAX_IN = 5, T = 5 };

typedef struct op_case {
  kva_op_id op;
  kva_dtype dtype;
  const char *operands[MAX_IN]; /* extents; NULL: left out; "=": operand 0 again */
  kva_dtype dtypes[MAX_IN];     /* where another than `dtype` */
  const void *attrs;
  bool second_result;
  double tolerance; /* of the body */
} op_case;

static const kva_type *operand_type(kva_module *m, const op_case *c, int i) {
  kva_dim dims[KVA_MAX_RANK];
  uint32_t rank = 0;
  for (const char *s = c->operands[i]; *s; s += strspn(s, " ")) {
    char *end = (char *)(uintptr_t)s + 1;
    dims[rank++] = *s == 'T' ? kva_expr_symbol(m->exprs, "T") : kva_expr_const(m->exprs, strtol(s, &end, 10));
    s = end;
  }
  return kva_type_tensor(m, c->dtypes[i] ? c->dtypes[i] : c->dtype, rank, dims);
}

static kva_module *finish(kva_builder *b, kva_function *f, uint32_t n, kva_value *const *out) {
  static const char *const names[] = {"first", "second"};
  (void)kva_build_node(b, KVA_OP_return, n, out, 0, NULL);
  f->output_names = kva_arena_memdup(b->m->arena, names, n * sizeof *names);
  assert_false(b->failed);
  return b->m;
}

static kva_module *build(const op_case *c, kva_diag *diag) {
  kva_module *m = kva_module_create(diag);
  kva_function *f = kva_function_create(m, "main");
  kva_builder b = {.m = m, .graph = f->graph, .loc = {.node = "layer"}};
  kva_value *in[MAX_IN] = {0};
  uint32_t n = 0;
  for (uint32_t i = 0; i < MAX_IN; i++) {
    if (!c->operands[i]) continue;
    bool same = *c->operands[i] == '=';
    in[i] =
        same ? in[0] : kva_graph_add_input(f->graph, operand_type(m, c, (int)i), kva_arena_printf(m->arena, "in%u", i));
    n = i + 1;
  }
  kva_node *node = kva_build_node(&b, c->op, n, in, 0, c->attrs);
  kva_value *out[] = {kva_result(node, 0), c->second_result ? kva_result(node, 1) : NULL};
  return finish(&b, f, c->second_result ? 2 : 1, out);
}

static kva_ref_tensor *filled(const kva_type *type) {
  int64_t dims[KVA_MAX_RANK];
  for (uint32_t i = 0; i < type->rank; i++)
    if (!kva_expr_is_const(type->dims[i], &dims[i])) dims[i] = T;
  kva_ref_tensor *w = kva_ref_tensor_create(type->dtype, type->rank, dims);
  for (int64_t i = 0; i < w->n; i++) {
    if (w->f)
      w->f[i] = kva_round_f64(type->dtype, sin(1.7 * (double)i + (double)type->rank));
    else
      w->i[i] = i % 3 != 1;
  }
  return w;
}

static void run(kva_module *m, kva_diag *diag, kva_ref_tensor **out) {
  kva_function *f = m->functions.data[0];
  kva_ref_tensor *in[MAX_IN];
  for (uint32_t i = 0; i < f->graph->inputs.len; i++) in[i] = filled(f->graph->inputs.data[i]->type);
  kva_status status = kva_ref_run(m, f, (const kva_ref_tensor *const *)in, out, NULL, NULL, NULL, NULL, diag);
  if (status) kva_diag_print(diag, stdout);
  assert_int_equal(status, KVA_OK);
  for (uint32_t i = 0; i < f->graph->inputs.len; i++) kva_ref_tensor_free(in[i]);
}

static bool is_close(double a, double b, double tolerance) {
  return a == b || fabs(a - b) <= tolerance;
}

static void run_and_compare(kva_module *m, kva_ref_tensor *const *want, double tolerance, kva_diag *diag) {
  kva_ref_tensor *got[2];
  run(m, diag, got);
  for (uint32_t k = 0; k < kva_graph_output_count(m->functions.data[0]->graph); k++) {
    assert_int_equal(want[k]->dtype, got[k]->dtype);
    assert_int_equal(want[k]->n, got[k]->n);
    for (int64_t i = 0; i < want[k]->n; i++) assert_true(is_close(want[k]->f[i], got[k]->f[i], tolerance));
    kva_ref_tensor_free(got[k]);
  }
}

static const kva_node *find(const kva_module *m, kva_op_id op) {
  const kva_node *n = m->functions.data[0]->graph->first;
  while (n && !kva_is(n, op)) n = n->next;
  return n;
}

static int occurrences(const char *path, const char *text, const char *replacement, kva_text *copy, kva_diag *diag) {
  kva_file file;
  size_t len = strlen(text);
  int n = 0;
  assert_int_equal(kva_file_map(path, diag, &file), KVA_OK);
  kva_text_add_bytes(copy, file.data, file.size);
  kva_file_unmap(&file);
  for (size_t i = 0; i + len <= copy->len; i++)
    if (!memcmp(copy->data + i, text, len)) memcpy(copy->data + i, replacement, len), n++;
  return n;
}

/* Loads the file with `text` replaced by as many other characters. */
static kva_module *load_patched(const char *path, const char *text, const char *replacement, kva_diag *diag) {
  kva_text copy = {0};
  kva_module *m = NULL;
  assert_true(occurrences(path, text, replacement, &copy, diag) > 0);
  kva_status status = pk_load(&copy, diag, &m);
  if (status) kva_diag_print(diag, stdout);
  assert_int_equal(status, KVA_OK);
  kva_text_free(&copy);
  return m;
}

static void check(const op_case *c, const char *path) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = build(c, diag), *again = NULL;
  kva_ref_tensor *want[2] = {0};
  run(m, diag, want);
  kva_status status = kva_export_onnx(m, path, NULL, NULL, diag);
  if (status) kva_diag_print(diag, stdout);
  assert_int_equal(status, KVA_OK);
  assert_int_equal(kva_load_model(path, NULL, diag, &again), KVA_OK);
  const kva_node *before = find(m, c->op), *after = find(again, c->op);
  assert_non_null(after);
  assert_ptr_equal(after, again->functions.data[0]->graph->first);
  assert_true(!before->attrs || kva_attrs_equal(before->op->attrs, before->attrs, after->attrs));
  run_and_compare(again, want, 0, diag);
  kva_module_destroy(again);
  again = load_patched(path, "ai.kvasir", "xx.kvasir", diag);
  assert_null(find(again, c->op));
  run_and_compare(again, want, c->tolerance, diag);
  for (int i = 0; i < 2; i++) kva_ref_tensor_free(want[i]);
  kva_module_destroy(again);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void with_file(void (*test)(const char *path)) {
  char path[] = "/tmp/kvasir-onnx-XXXXXX";
  close(mkstemp(path));
  test(path);
  unlink(path);
}

static void check_operators(const char *path) {
  static const kva_rms_norm_attrs third = {.axis = -1, .eps = 1.0 / 3}, planes = {.axis = 1, .eps = 1e-5};
  static const kva_layer_norm_attrs layer = {.axis = -1, .eps = 0.1f}; /* this double, which is not 0.1 */
  static const kva_rope_attrs pairs = {.interleaved = true};
  static const kva_cross_entropy_attrs loss = {.ignore_index = 0};
  static const kva_attention_attrs causal = {.causal = true}, full = {.scale = 0.3, .softcap = 7, .window = 2};
  static const op_case cases[] = {
      {KVA_OP_silu, KVA_F32, {"2 T"}, .tolerance = 1e-6},
      {KVA_OP_rms_norm, KVA_F32, {"2 T 4", "4"}, .attrs = &third, .tolerance = 1e-6},
      {KVA_OP_rms_norm, KVA_F16, {"2 T 4", "T 1"}, .attrs = &planes, .tolerance = 1e-2},
      {KVA_OP_layer_norm, KVA_F64, {"2 T 4", "4", "4"}, .attrs = &layer, .tolerance = 1e-12},
      {KVA_OP_layer_norm, KVA_F32, {"2 T 4", "4"}, .tolerance = 1e-5},
      {KVA_OP_cross_entropy, KVA_F32, {"T 7", "T"}, .dtypes = {0, KVA_I64}, .attrs = &loss, .tolerance = 1e-5},
      {KVA_OP_cross_entropy, KVA_F32, {"T 7", "T"}, .dtypes = {0, KVA_I32}, .second_result = true, .tolerance = 1e-5},
      {KVA_OP_rope, KVA_F32, {"2 3 T 8", "T 4", "T 4"}, .tolerance = 1e-6},
      {KVA_OP_rope, KVA_F32, {"2 3 T 8", "2 1 T 3", "2 1 T 3"}, .attrs = &pairs, .tolerance = 1e-6},
      {KVA_OP_attention, KVA_F32, {"2 4 T 8", "2 2 T 8", "2 2 T 3"}, .attrs = &causal, .tolerance = 1e-5},
      {KVA_OP_attention, KVA_F32, {"2 4 T 8", "=", "="}, .attrs = &causal, .second_result = true, .tolerance = 1e-5},
      {KVA_OP_attention, KVA_F32, {"1 2 T 8", "1 2 9 8", "1 2 9 8", NULL, "2"}, .attrs = &full, .tolerance = 1e-5},
      {KVA_OP_attention,
       KVA_F16,
       {"1 2 3 8", "1 1 T 8", "1 1 T 8", "3 T"},
       .dtypes = {0, 0, 0, KVA_BOOL},
       .tolerance = 1e-2},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    print_message("%s, case %zu\n", kva_ops.ops[cases[i].op]->name, i);
    check(&cases[i], path);
  }
}

static void test_operators(void **unused) {
  (void)unused;
  with_file(check_operators);
}

/* ---- attributes that are expressions ----------------------------------------------------------------------------- */

/* The last T of 9 rows are queries: offset 9 - T. The mask is left out before it. */
static void check_offset(const char *path) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = kva_module_create(diag), *again = NULL;
  kva_expr_ctx *e = m->exprs;
  kva_function *f = kva_function_create(m, "main");
  kva_builder b = {.m = m, .graph = f->graph};
  kva_dim rows = kva_expr_symbol(e, "T"), keys = kva_expr_const(e, 9), one = kva_expr_const(e, 1);
  kva_dim q[] = {one, one, rows, keys}, k[] = {one, one, keys, keys};
  kva_value *in[] = {kva_graph_add_input(f->graph, kva_type_tensor(m, KVA_F32, 4, q), "q"),
                     kva_graph_add_input(f->graph, kva_type_tensor(m, KVA_F32, 4, k), "k"), NULL};
  in[2] = in[1];
  kva_attention_attrs attrs = {.causal = true, .offset = kva_expr_sub(e, keys, rows)};
  kva_value *y = kva_build(&b, KVA_OP_attention, 3, in, &attrs);
  finish(&b, f, 1, &y);
  kva_ref_tensor *want[1];
  run(m, diag, want);
  assert_int_equal(kva_export_onnx(m, path, NULL, NULL, diag), KVA_OK);
  assert_int_equal(kva_load_model(path, NULL, diag, &again), KVA_OK);
  const kva_attention_attrs *found = find(again, KVA_OP_attention)->attrs;
  kva_expr_ctx *e2 = again->exprs;
  assert_ptr_equal(found->offset, kva_expr_sub(e2, kva_expr_const(e2, 9), kva_expr_symbol(e2, "T")));
  run_and_compare(again, want, 0, diag);
  kva_module_destroy(again);
  again = load_patched(path, "ai.kvasir", "xx.kvasir", diag);
  run_and_compare(again, want, 1e-5, diag);
  kva_ref_tensor_free(want[0]);
  kva_module_destroy(again);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void test_offset(void **unused) {
  (void)unused;
  with_file(check_offset);
}

/* ---- functions in the file --------------------------------------------------------------------------------------- */

static int functions_of(const double *eps, int n, const char *path) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = kva_module_create(diag), *again = NULL;
  kva_function *f = kva_function_create(m, "main");
  kva_builder b = {.m = m, .graph = f->graph};
  kva_dim dims[] = {kva_expr_symbol(m->exprs, "T"), kva_expr_const(m->exprs, 4)};
  kva_value *y = kva_graph_add_input(f->graph, kva_type_tensor(m, KVA_F32, 2, dims), "x");
  kva_value *scale = kva_graph_add_input(f->graph, kva_type_tensor(m, KVA_F32, 1, dims + 1), "scale");
  for (int i = 0; i < n; i++)
    y = kva_build(&b, KVA_OP_rms_norm, 2, (kva_value *[]){y, scale}, &(kva_rms_norm_attrs){.axis = -1, .eps = eps[i]});
  finish(&b, f, 1, &y);
  kva_ref_tensor *want[1];
  run(m, diag, want);
  assert_int_equal(kva_export_onnx(m, path, NULL, NULL, diag), KVA_OK);
  again = load_patched(path, "ai.kvasir", "xx.kvasir", diag);
  run_and_compare(again, want, 1e-6, diag);
  kva_text copy = {0};
  int found = occurrences(path, "ai.kvasir", "ai.kvasir", &copy, diag) - 1 - n; /* opset import, calls */
  kva_text_free(&copy);
  kva_ref_tensor_free(want[0]);
  kva_module_destroy(again);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  return found;
}

static void check_sharing(const char *path) {
  assert_int_equal(functions_of((const double[]){1e-5, 1e-5, 1e-5}, 3, path), 1);
  assert_int_equal(functions_of((const double[]){1e-5, 1e-1, 1e-5, 1}, 4, path), 3);
}

static void test_sharing(void **unused) {
  (void)unused;
  with_file(check_sharing);
}

/* A name or an attribute that Kvasir's operator does not have: the body counts. */
static void check_misfits(const char *path) {
  static const char *const patches[][2] = {{"RMSNorm", "RMSNorn"}, {"axis", "axes"}};
  kva_diag *diag = kva_diag_create();
  const op_case c = {KVA_OP_rms_norm, KVA_F32, {"2 T 4", "4"}, .tolerance = 1e-6};
  kva_module *m = build(&c, diag);
  kva_ref_tensor *want[1];
  run(m, diag, want);
  assert_int_equal(kva_export_onnx(m, path, NULL, NULL, diag), KVA_OK);
  for (int i = 0; i < 2; i++) {
    kva_module *again = load_patched(path, patches[i][0], patches[i][1], diag);
    assert_null(find(again, KVA_OP_rms_norm));
    run_and_compare(again, want, 1e-6, diag);
    kva_module_destroy(again);
  }
  kva_ref_tensor_free(want[0]);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void test_misfits(void **unused) {
  (void)unused;
  with_file(check_misfits);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_operators), cmocka_unit_test(test_offset),
                                     cmocka_unit_test(test_sharing), cmocka_unit_test(test_misfits)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
