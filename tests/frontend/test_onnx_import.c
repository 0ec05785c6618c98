/* The importer on hand-made files: symbols, shape arithmetic, functions, initialisers of every storage, external data.
 */
#include "tests/frontend/onnx_pack.h"
#include "ops/ids.h"

#include <math.h>

static kva_module *load(kva_text model) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_status status = pk_load(&model, diag, &m);
  if (status) kva_diag_print(diag, stdout);
  assert_int_equal(status, KVA_OK);
  m->diag = NULL;
  kva_diag_destroy(diag);
  kva_text_free(&model);
  return m;
}

static const kva_type *output_type(const kva_module *m, uint32_t i) {
  return kva_graph_output(m->functions.data[0]->graph, i)->type;
}

static void expect_type(const kva_module *m, uint32_t i, const char *expected) {
  kva_text text = {0};
  kva_type_print(output_type(m, i), &text);
  assert_string_equal(text.data, expected);
  kva_text_free(&text);
}

/* Runs on float inputs of one shape each, filled with 1, 2, 3, ...; returns output 0. */
static kva_ref_tensor *run(kva_module *m, uint32_t rank, const int64_t *dims) {
  kva_diag *diag = kva_diag_create();
  kva_function *f = m->functions.data[0];
  const kva_ref_tensor *in[4];
  kva_ref_tensor *out[4] = {NULL};
  for (uint32_t i = 0; i < f->graph->inputs.len; i++) {
    kva_ref_tensor *w = kva_ref_tensor_create(KVA_F32, rank, dims);
    for (int64_t j = 0; j < w->n; j++) w->f[j] = (double)(j + 1);
    in[i] = w;
  }
  kva_status status = kva_ref_run(m, f, in, out, NULL, NULL, NULL, NULL, diag);
  if (status) kva_diag_print(diag, stdout);
  assert_int_equal(status, KVA_OK);
  for (uint32_t i = 0; i < f->graph->inputs.len; i++) kva_ref_tensor_free((kva_ref_tensor *)(uintptr_t)in[i]);
  for (uint32_t i = 1; i < 4; i++) kva_ref_tensor_free(out[i]);
  kva_diag_destroy(diag);
  return out[0];
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static void test_symbols(void **unused) {
  (void)unused;
  kva_text g = {0};
  pk_sub(&g, 1, pk_node("Add", "x y", "z", "add"));
  pk_sub(&g, 11, pk_value("x", 1, "batch size,4,?"));
  pk_sub(&g, 11, pk_value("y", 1, "batch size,4,1"));
  pk_sub(&g, 12, pk_value("z", 1, "batch size,4,?"));
  kva_module *m = load(pk_model(g, 17));
  expect_type(m, 0, "float[batch_size, 4, x_2]");
  kva_module_destroy(m);
}

/* y = reshape(x, [shape(x)[0], -1]): the usual flatten of exporters; no shape tensor is left in the result's type. */
static void test_shape_arithmetic(void **unused) {
  (void)unused;
  kva_text g = {0};
  int64_t zero = 0, minus_one = -1;
  pk_sub(&g, 5, pk_tensor("zero", 7, 0, NULL, &zero, 8));
  pk_sub(&g, 5, pk_i64s("rest", 1, &minus_one));
  pk_sub(&g, 5, pk_i64s("axis", 1, &zero));
  pk_sub(&g, 1, pk_node("Shape", "x", "s", "shape"));
  pk_sub(&g, 1, pk_node("Gather", "s zero", "n", "gather"));
  pk_sub(&g, 1, pk_node("Unsqueeze", "n axis", "n1", "unsqueeze"));
  kva_text concat = pk_node("Concat", "n1 rest", "target", "concat");
  pk_sub(&concat, 5, pk_attr_int("axis", 0));
  pk_sub(&g, 1, concat);
  pk_sub(&g, 1, pk_node("Reshape", "x target", "y", "reshape"));
  pk_sub(&g, 11, pk_value("x", 1, "N,T,6"));
  pk_sub(&g, 12, pk_value("y", 1, "N,?"));
  kva_module *m = load(pk_model(g, 17));
  kva_text text = {0};
  kva_type_print(output_type(m, 0), &text);
  assert_true(!strcmp(text.data, "float[N, 6*T]") || !strcmp(text.data, "float[N, T*6]"));
  kva_text_free(&text);
  kva_ref_tensor *y = run(m, 3, (int64_t[]){2, 5, 6});
  assert_int_equal(y->dims[1], 30);
  kva_ref_tensor_free(y);
  kva_module_destroy(m);
}

/* Extents that an input gives are symbols that are bound at run time, beside numbers, which may broadcast; axes must be
 * known. */
static void test_data_dependent_shape(void **unused) {
  (void)unused;
  kva_text g = {0}, h = {0}, i = {0}, concat = pk_node("Concat", "s one", "all", "numbers");
  pk_sub(&g, 1, pk_node("Reshape", "x s", "y", "dynamic"));
  pk_sub(&g, 11, pk_value("x", 1, "6"));
  pk_sub(&g, 11, pk_value("s", 7, "2"));
  pk_sub(&g, 12, pk_value("y", 1, "?,?"));
  kva_module *m = load(pk_model(g, 17));
  expect_type(m, 0, "float[shape, shape_2]");
  kva_module_destroy(m);
  pk_sub(&concat, 5, pk_attr_int("axis", 0));
  pk_sub(&i, 5, pk_i64s("one", 1, (int64_t[]){1}));
  pk_sub(&i, 1, concat);
  pk_sub(&i, 1, pk_node("Reshape", "x all", "y", "dynamic"));
  pk_sub(&i, 11, pk_value("x", 1, "6"));
  pk_sub(&i, 11, pk_value("s", 7, "2"));
  pk_sub(&i, 12, pk_value("y", 1, "?,?,?"));
  m = load(pk_model(i, 17));
  expect_type(m, 0, "float[shape, shape_2, 1]");
  kva_module_destroy(m);
  pk_sub(&h, 1, pk_node("ReduceSum", "x s", "y", "dynamic"));
  pk_sub(&h, 11, pk_value("x", 1, "6,6"));
  pk_sub(&h, 11, pk_value("s", 7, "1"));
  pk_sub(&h, 12, pk_value("y", 1, "?,?"));
  pk_expect(pk_model(h, 17), KVA_UNSUPPORTED, "depends on data");
}

/* Dimensions without names that an operator needs to be equal: the second operand is read as the first. */
static void test_assumed_extents(void **unused) {
  (void)unused;
  kva_text g = {0}, h = {0};
  pk_sub(&g, 1, pk_node("Add", "x y", "z", "add"));
  pk_sub(&g, 11, pk_value("x", 1, "N,?,3"));
  pk_sub(&g, 11, pk_value("y", 1, "?,1,3"));
  pk_sub(&g, 12, pk_value("z", 1, "N,?,3"));
  kva_module *m = load(pk_model(g, 17));
  expect_type(m, 0, "float[N, x_1, 3]");
  assert_string_equal(m->functions.data[0]->graph->first->op->name, "assume");
  kva_ref_tensor *z = run(m, 3, (int64_t[]){2, 1, 3});
  assert_int_equal(z->n, 6);
  kva_ref_tensor_free(z);
  kva_module_destroy(m);
  pk_sub(&h, 1, pk_node("Add", "x y", "z", "add"));
  pk_sub(&h, 11, pk_value("x", 1, "N,4"));
  pk_sub(&h, 11, pk_value("y", 1, "?,3"));
  pk_sub(&h, 12, pk_value("z", 1, "N,4"));
  pk_expect(pk_model(h, 17), KVA_INVALID, "do not broadcast");
}

/* The first row of a symbolic number of rows is one row, which broadcasts: x[:1] + y, and x[:1] expanded as y is; an
 * Expand to such a number of rows keeps those that there are. */
static void test_first_row_broadcasts(void **unused) {
  (void)unused;
  kva_text g = {0};
  int64_t begin = 0, end = 1, axis = 0;
  pk_sub(&g, 5, pk_i64s("begin", 1, &begin));
  pk_sub(&g, 5, pk_i64s("end", 1, &end));
  pk_sub(&g, 5, pk_i64s("axis", 1, &axis));
  pk_sub(&g, 1, pk_node("Slice", "x begin end axis", "s", "slice"));
  pk_sub(&g, 1, pk_node("Add", "s y", "z", "add"));
  pk_sub(&g, 1, pk_node("Shape", "y", "shape", "shape"));
  pk_sub(&g, 1, pk_node("Expand", "s shape", "e", "expand"));
  pk_sub(&g, 1, pk_node("Shape", "s", "one", "one"));
  pk_sub(&g, 1, pk_node("Expand", "e one", "kept", "keep"));
  pk_sub(&g, 1, pk_node("Add", "z kept", "w", "sum"));
  pk_sub(&g, 11, pk_value("x", 1, "N,2"));
  pk_sub(&g, 11, pk_value("y", 1, "T,2"));
  pk_sub(&g, 12, pk_value("w", 1, "T,2"));
  kva_module *m = load(pk_model(g, 17));
  expect_type(m, 0, "float[T, 2]");
  kva_ref_tensor *w = run(m, 2, (int64_t[]){3, 2});
  assert_true(w->f[0] == 3 && w->f[2] == 3 + 1 + 1 && w->f[5] == 6 + 2 + 2);
  kva_ref_tensor_free(w);
  kva_module_destroy(m);
}

/* Nodes behind those that read them, themselves or in a branch: y = x + 1 if true, by nodes in the wrong order. */
static void test_nodes_in_any_order(void **unused) {
  (void)unused;
  kva_text g = {0}, then = {0}, no = {0};
  uint8_t yes = 1;
  float one = 1;
  pk_sub(&then, 1, pk_node("Add", "b a", "t", "sum"));
  pk_sub(&then, 1, pk_node("Identity", "one", "b", "copy"));
  pk_sub(&then, 12, pk_value("t", 1, "2"));
  pk_sub(&no, 12, pk_value("a", 1, "2"));
  kva_text branch = pk_node("If", "yes", "y", "if");
  pk_sub(&branch, 5, pk_attr_graph("then_branch", then));
  pk_sub(&branch, 5, pk_attr_graph("else_branch", no));
  pk_sub(&g, 5, pk_tensor("yes", 9, 0, NULL, &yes, sizeof yes));
  pk_sub(&g, 5, pk_tensor("one", 1, 0, NULL, &one, sizeof one));
  pk_sub(&g, 1, branch);
  pk_sub(&g, 1, pk_node("Relu", "x", "a", "late"));
  pk_sub(&g, 11, pk_value("x", 1, "2"));
  pk_sub(&g, 12, pk_value("y", 1, "2"));
  kva_module *m = load(pk_model(g, 17));
  kva_ref_tensor *y = run(m, 1, (int64_t[]){2});
  assert_true(y->f[0] == 2 && y->f[1] == 3);
  kva_ref_tensor_free(y);
  kva_module_destroy(m);
}

/* Range as PyTorch's arange of floats writes it, whose limit is an extent cast to float: it has that extent. And one
 * whose steps are as long as an extent: [0, 2 N) by N. */
static void test_ranges_of_extents(void **unused) {
  (void)unused;
  kva_text g = {0}, h = {0};
  int64_t numbers[] = {0, 2};
  float zero = 0, one = 1;
  kva_text cast = pk_node("Cast", "n", "limit", "cast");
  pk_sub(&cast, 5, pk_attr_int("to", 1));
  pk_sub(&g, 5, pk_i64s("axis", 1, numbers));
  pk_sub(&g, 5, pk_tensor("zero", 1, 0, NULL, &zero, sizeof zero));
  pk_sub(&g, 5, pk_tensor("one", 1, 0, NULL, &one, sizeof one));
  pk_sub(&g, 1, pk_node("Shape", "x", "shape", "shape"));
  pk_sub(&g, 1, pk_node("Gather", "shape axis", "n", "length"));
  pk_sub(&g, 1, cast);
  pk_sub(&g, 1, pk_node("Range", "zero limit one", "y", "range"));
  pk_sub(&g, 11, pk_value("x", 1, "N,2"));
  pk_sub(&g, 12, pk_value("y", 1, "N"));
  kva_module *m = load(pk_model(g, 17));
  expect_type(m, 0, "float[N]");
  kva_ref_tensor *y = run(m, 2, (int64_t[]){3, 2});
  assert_true(y->n == 3 && y->f[0] == 0 && y->f[2] == 2);
  kva_ref_tensor_free(y);
  kva_module_destroy(m);
  pk_sub(&h, 5, pk_i64s("zero", 1, &numbers[0]));
  pk_sub(&h, 5, pk_i64s("two", 1, &numbers[1]));
  pk_sub(&h, 1, pk_node("Shape", "x", "shape", "shape"));
  pk_sub(&h, 1, pk_node("Gather", "shape zero", "n", "length"));
  pk_sub(&h, 1, pk_node("Mul", "n two", "limit", "double"));
  pk_sub(&h, 1, pk_node("Range", "zero limit n", "y", "range"));
  pk_sub(&h, 11, pk_value("x", 1, "N,2"));
  pk_sub(&h, 12, pk_value("y", 7, "?"));
  m = load(pk_model(h, 17));
  y = run(m, 2, (int64_t[]){3, 2});
  assert_true(y->n == 2 && y->i[0] == 0 && y->i[1] == 3);
  kva_ref_tensor_free(y);
  kva_module_destroy(m);
}

/* A slice of a symbolic extent and zeros before it: the shift of a sequence keeps its length T. */
static void test_shifted_slice_keeps_its_length(void **unused) {
  (void)unused;
  kva_text g = {0};
  int64_t begin = 0, end = -1, axis = 1;
  float zero[4] = {0};
  pk_sub(&g, 5, pk_i64s("begin", 1, &begin));
  pk_sub(&g, 5, pk_i64s("end", 1, &end));
  pk_sub(&g, 5, pk_i64s("axis", 1, &axis));
  pk_sub(&g, 5, pk_tensor("zero", 1, 3, (int64_t[]){1, 1, 4}, zero, sizeof zero));
  pk_sub(&g, 1, pk_node("Slice", "x begin end axis", "s", "slice"));
  kva_text concat = pk_node("Concat", "zero s", "shifted", "concat");
  pk_sub(&concat, 5, pk_attr_int("axis", 1));
  pk_sub(&g, 1, concat);
  pk_sub(&g, 1, pk_node("Add", "x shifted", "y", "add"));
  pk_sub(&g, 11, pk_value("x", 1, "1,T,4"));
  pk_sub(&g, 12, pk_value("y", 1, "1,T,4"));
  kva_module *m = load(pk_model(g, 17));
  expect_type(m, 0, "float[1, T, 4]");
  kva_ref_tensor *y = run(m, 3, (int64_t[]){1, 3, 4});
  assert_true(y->f[0] == 1 && y->f[4] == 5 + 1 && y->f[8] == 9 + 5);
  kva_ref_tensor_free(y);
  kva_module_destroy(m);
}

/* PyTorch writes pads from the last axis on; its exporter orders them as pairs, reversed and transposed. The elements
 * are expressions all the way: [N, 4, 0, 0] become pads [0, N, 0, 4]. */
static void test_pads_of_pairs(void **unused) {
  (void)unused;
  kva_text g = {0};
  int64_t zeros[2] = {0}, pairs[] = {-1, 2}, flat = -1, last = -1, before = INT64_MIN, axis = 0;
  pk_sub(&g, 5, pk_i64s("zeros", 2, zeros));
  pk_sub(&g, 5, pk_i64s("pairs", 2, pairs));
  pk_sub(&g, 5, pk_i64s("flat", 1, &flat));
  pk_sub(&g, 5, pk_i64s("last", 1, &last));
  pk_sub(&g, 5, pk_i64s("before", 1, &before));
  pk_sub(&g, 5, pk_i64s("axis", 1, &axis));
  pk_sub(&g, 1, pk_node("Shape", "x", "shape", "shape"));
  kva_text concat = pk_node("Concat", "shape zeros", "all", "concat");
  pk_sub(&concat, 5, pk_attr_int("axis", 0));
  pk_sub(&g, 1, concat);
  pk_sub(&g, 1, pk_node("Reshape", "all pairs", "given", "split"));
  pk_sub(&g, 1, pk_node("Slice", "given last before axis last", "reversed", "slice"));
  pk_sub(&g, 1, pk_node("Transpose", "reversed", "turned", "transpose"));
  pk_sub(&g, 1, pk_node("Reshape", "turned flat", "pads", "join"));
  pk_sub(&g, 1, pk_node("Pad", "x pads", "y", "pad"));
  pk_sub(&g, 11, pk_value("x", 1, "N,4"));
  pk_sub(&g, 12, pk_value("y", 1, "N,?"));
  kva_module *m = load(pk_model(g, 17));
  expect_type(m, 0, "float[N, N + 8]");
  kva_ref_tensor *y = run(m, 2, (int64_t[]){1, 4});
  assert_true(y->n == 9 && y->f[0] == 0 && y->f[1] == 1 && y->f[4] == 4 && y->f[5] == 0);
  kva_ref_tensor_free(y);
  kva_module_destroy(m);
}

/* Channels of a symbolic number in blocks of four, which must divide it: depth to space of [1, 4, 1, 1] is [1, 1, 2,
 * 2]. */
static void test_assumed_multiple(void **unused) {
  (void)unused;
  kva_text g = {0};
  kva_text node = pk_node("DepthToSpace", "x", "y", "shuffle");
  pk_sub(&node, 5, pk_attr_int("blocksize", 2));
  pk_sub(&g, 1, node);
  pk_sub(&g, 11, pk_value("x", 1, "1,C,1,1"));
  pk_sub(&g, 12, pk_value("y", 1, "1,?,2,2"));
  kva_module *m = load(pk_model(g, 17));
  expect_type(m, 0, "float[1, floordiv(C, 4), 2, 2]");
  kva_ref_tensor *y = run(m, 4, (int64_t[]){1, 4, 1, 1});
  assert_int_equal(y->n, 4);
  kva_ref_tensor_free(y);
  kva_module_destroy(m);
}

enum { LARGE = 5000 };

/* ---- initialisers ------------------------------------------------------------------------------------------------ */

/* y = x + w for a w given as this tensor; returns element 0 of y for x = 1. */
static double add_initializer(kva_text tensor) {
  kva_text g = {0};
  pk_sub(&g, 5, tensor);
  kva_text cast = pk_node("Cast", "w", "wf", "cast");
  pk_sub(&cast, 5, pk_attr_int("to", 1));
  pk_sub(&g, 1, cast);
  pk_sub(&g, 1, pk_node("Add", "x wf", "y", "add"));
  pk_sub(&g, 11, pk_value("x", 1, "2"));
  pk_sub(&g, 12, pk_value("y", 1, "2"));
  kva_module *m = load(pk_model(g, 21));
  kva_ref_tensor *y = run(m, 1, (int64_t[]){2});
  double sum = y->f[0] * 1000 + y->f[1];
  kva_ref_tensor_free(y);
  kva_module_destroy(m);
  return sum;
}

static void test_typed_fields(void **unused) {
  (void)unused;
  int64_t two = 2;
  kva_text t = pk_tensor_header("w", 1, 1, &two);
  pk_bytes(&t, 4, (float[]){3, 4}, 8); /* float_data, packed */
  assert_true(add_initializer(t) == 4 * 1000 + 6);
  t = pk_tensor_header("w", 3, 1, &two); /* int8 in int32_data, not packed */
  pk_int(&t, 5, -3);
  pk_int(&t, 5, 4);
  assert_true(add_initializer(t) == -2 * 1000 + 6);
  t = pk_tensor_header("w", 10, 1, &two); /* float16 bits in int32_data: 1.0, 2.0 */
  pk_int(&t, 5, 0x3c00);
  pk_int(&t, 5, 0x4000);
  assert_true(add_initializer(t) == 2 * 1000 + 4);
  t = pk_tensor_header("w", 22, 1, &two); /* int4, packed in one unit: 3 low, -2 high */
  pk_int(&t, 5, 0xe3);
  assert_true(add_initializer(t) == 4 * 1000 + 0);
  t = pk_tensor_header("w", 12, 1, &two); /* uint32 in uint64_data */
  pk_int(&t, 11, 7);
  pk_int(&t, 11, 8);
  assert_true(add_initializer(t) == 8 * 1000 + 10);
  t = pk_tensor_header("w", 11, 1, &two); /* double_data */
  pk_bytes(&t, 10, (double[]){0.5, 0.25}, 16);
  assert_true(add_initializer(t) == 1.5 * 1000 + 2.25);
}

static kva_text weight_model(kva_text tensor) {
  kva_text g = {0};
  pk_sub(&g, 5, tensor);
  pk_sub(&g, 1, pk_node("Add", "x w", "y", "add"));
  pk_sub(&g, 11, pk_value("x", 1, "2"));
  pk_sub(&g, 12, pk_value("y", 1, "2"));
  return pk_model(g, 21);
}

static void test_bad_tensors(void **unused) {
  (void)unused;
  int64_t two = 2, huge[] = {INT64_C(1) << 62, 4}, negative = -2;
  float v[3] = {1, 2, 3};
  pk_expect(weight_model(pk_tensor("w", 1, 1, &two, v, 12)), KVA_INVALID, "raw data of 12 bytes, expected 8");
  pk_expect(weight_model(pk_tensor("w", 1, 2, huge, v, 8)), KVA_INVALID, "64-bit size");
  pk_expect(weight_model(pk_tensor("w", 1, 1, &negative, v, 8)), KVA_INVALID, "negative");
  pk_expect(weight_model(pk_tensor("w", 99, 1, &two, v, 8)), KVA_INVALID, "unknown data type 99");
  pk_expect(weight_model(pk_tensor("w", 8, 1, &two, v, 8)), KVA_INVALID, "0 values, expected 2");
  pk_expect(weight_model(pk_tensor("w", 9, 1, &two, "\2\1", 2)), KVA_INVALID, "neither 0 nor 1");
  kva_text t = pk_tensor_header("w", 1, 1, &two);
  pk_bytes(&t, 4, v, 12);
  pk_expect(weight_model(t), KVA_INVALID, "3 values, expected 2");
}

/* x + a + s + b: `a` has `raw` bytes, `b` has its raw data twice, of which the last one holds. A name of n_name letters
 * moves them to another alignment. */
static kva_text large_model(size_t raw, size_t n_name) {
  int64_t n = LARGE, one = 1;
  float a[LARGE + 1], b[LARGE], wrong[LARGE] = {0}, s = 0.5f;
  for (int i = 0; i < LARGE; i++) a[i] = (float)(2 * i), b[i] = (float)(3 * i);
  a[LARGE] = 0;
  kva_text g = {0}, t = pk_tensor_header("b", 1, 1, &n);
  pk_str(&g, 2, "name" + 4 - n_name);
  pk_sub(&g, 5, pk_tensor("a", 1, 1, &n, a, raw));
  pk_sub(&g, 5, pk_tensor("s", 1, 1, &one, &s, sizeof s));
  pk_bytes(&t, 9, wrong, sizeof wrong);
  pk_bytes(&t, 9, b, sizeof b);
  pk_sub(&g, 5, t);
  pk_sub(&g, 1, pk_node("Sum", "x a s b", "y", "sum"));
  pk_sub(&g, 11, pk_value("x", 1, "5000"));
  pk_sub(&g, 12, pk_value("y", 1, "5000"));
  return pk_model(g, 21);
}

static void check_large(kva_module *m) {
  kva_ref_tensor *y = run(m, 1, (int64_t[]){LARGE});
  for (int i = 0; i < LARGE; i++) assert_true(y->f[i] == 6 * i + 1.5);
  kva_ref_tensor_free(y);
  kva_module_destroy(m);
}

/* Large raw data are left out of the message: at any alignment, and in memory, which the caller may use again. */
static void test_large_initialisers(void **unused) {
  (void)unused;
  for (size_t n = 0; n < 4; n++) check_large(load(large_model(LARGE * sizeof(float), n)));
  kva_text bytes = large_model(LARGE * sizeof(float), 3), before = {0};
  kva_text_add_bytes(&before, bytes.data, bytes.len);
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  assert_int_equal(kva_load_bytes(bytes.data, bytes.len, "memory", NULL, diag, &m), KVA_OK);
  assert_memory_equal(bytes.data, before.data, bytes.len);
  memset(bytes.data, 1, bytes.len);
  m->diag = NULL;
  check_large(m);
  kva_diag_destroy(diag);
  kva_text_free(&bytes), kva_text_free(&before);
  pk_expect(large_model((LARGE + 1) * sizeof(float), 0), KVA_INVALID, "raw data of 20004 bytes, expected 20000");
}

/* ---- external data ----------------------------------------------------------------------------------------------- */

static kva_text external(const char *location, const char *offset, const char *length) {
  int64_t two = 2;
  kva_text t = pk_tensor_header("w", 1, 1, &two);
  const char *entries[][2] = {{"location", location}, {"offset", offset}, {"length", length}};
  for (int i = 0; i < 3; i++) {
    kva_text e = {0};
    if (!entries[i][1]) continue;
    pk_str(&e, 1, entries[i][0]);
    pk_str(&e, 2, entries[i][1]);
    pk_sub(&t, 13, e);
  }
  pk_int(&t, 14, 1);
  return weight_model(t);
}

static void test_external_data(void **unused) {
  (void)unused;
  char folder[] = "/tmp/kvasir-onnx-XXXXXX", model[64], data[64], link[64];
  assert_non_null(mkdtemp(folder));
  snprintf(model, sizeof model, "%s/m.onnx", folder);
  snprintf(data, sizeof data, "%s/w.bin", folder);
  snprintf(link, sizeof link, "%s/link.bin", folder);
  float v[4] = {0, 10, 20, 30};
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_file_write(data, v, sizeof v, diag), KVA_OK);
  assert_int_equal(symlink("w.bin", link), 0);
  const struct {
    const char *location, *offset, *length, *message; /* NULL: fine */
  } cases[] = {{"w.bin", "4", "8", NULL},
               {"w.bin", "8", NULL, NULL},
               {"w.bin", "12", "8", "lie outside"},
               {"w.bin", "9223372036854775807", "8", "lie outside"},
               {"w.bin", "99999999999999999999", "8", "plain numbers"},
               {"w.bin", "-4", "8", "plain numbers"},
               {"w.bin", "0", "12", "expected 8"},
               {"../w.bin", "0", "8", "without '..'"},
               {"/etc/passwd", "0", "8", "relative"},
               {"link.bin", "0", "8", "symbolic link"},
               {"missing.bin", "0", "8", "cannot open"},
               {"", "0", "8", "without 'location'"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    kva_text m = external(cases[i].location, cases[i].offset, cases[i].length);
    kva_module *module = NULL;
    kva_diag_clear(diag);
    kva_status status = pk_load_at(model, &m, NULL, diag, &module);
    assert_int_equal(status == KVA_OK, cases[i].message == NULL);
    assert_true(!cases[i].message || pk_has_message(diag, cases[i].message));
    if (module) {
      kva_ref_tensor *y = run(module, 1, (int64_t[]){2});
      assert_true(y->f[0] == v[i + 1] + 1);
      kva_ref_tensor_free(y);
      kva_module_destroy(module);
    }
    kva_text_free(&m);
  }
  kva_diag_destroy(diag);
  unlink(link), unlink(data), unlink(model), rmdir(folder);
}

/* ---- functions --------------------------------------------------------------------------------------------------- */

/* local::Scale(x) = x * value, `value` an attribute of the call; `overload` names the function's variant. */
static kva_text scale_function(const char *overload, const char *op_type, bool has_default) {
  kva_text f = {0}, constant = pk_node("Constant", "", "c", "c");
  pk_str(&f, 1, "Scale");
  pk_str(&f, 10, "local");
  if (*overload) pk_str(&f, 13, overload);
  pk_names(&f, 4, "x");
  pk_names(&f, 5, "y");
  if (has_default)
    pk_sub(&f, 11, pk_attr_float("value", 7));
  else
    pk_str(&f, 6, "value");
  pk_sub(&constant, 5, pk_attr_ref("value_float", 1, "value"));
  pk_sub(&f, 7, constant);
  pk_sub(&f, 7, pk_node(op_type, "x c", "y", "body"));
  pk_sub(&f, 9, pk_opset("", 17));
  return f;
}

static kva_text call(const char *inputs, const char *outputs, const char *overload, float value) {
  kva_text n = pk_node("Scale", inputs, outputs, "call");
  pk_str(&n, 7, "local");
  if (*overload) pk_str(&n, 8, overload);
  if (value != 0) pk_sub(&n, 5, pk_attr_float("value", value));
  return n;
}

static kva_text call_model(kva_text node_a, kva_text node_b, kva_text f, kva_text g) {
  kva_text graph = {0};
  pk_sub(&graph, 1, node_a);
  pk_sub(&graph, 1, node_b);
  pk_sub(&graph, 11, pk_value("x", 1, "2"));
  pk_sub(&graph, 12, pk_value("y", 1, "2"));
  kva_text m = pk_model(graph, 17);
  pk_sub(&m, 8, pk_opset("local", 1));
  pk_sub(&m, 25, f);
  pk_sub(&m, 25, g);
  return m;
}

static void test_functions(void **unused) {
  (void)unused;
  kva_text a = call("x", "t", "", 3), b = call("t", "y", "add", 0);
  kva_module *m = load(call_model(a, b, scale_function("", "Mul", false), scale_function("add", "Add", true)));
  kva_ref_tensor *y = run(m, 1, (int64_t[]){2});
  assert_true(y->f[0] == 1 * 3 + 7 && y->f[1] == 2 * 3 + 7);
  kva_ref_tensor_free(y);
  kva_module_destroy(m);
}

static void test_recursive_function(void **unused) {
  (void)unused;
  kva_text f = {0}, inner = pk_node("Scale", "x", "y", "inner");
  pk_str(&inner, 7, "local");
  pk_str(&f, 1, "Scale");
  pk_str(&f, 10, "local");
  pk_names(&f, 4, "x");
  pk_names(&f, 5, "y");
  pk_sub(&f, 7, inner);
  kva_text other = scale_function("add", "Add", true);
  pk_expect(call_model(call("x", "t", "", 0), call("t", "y", "", 0), f, other), KVA_INVALID, "calls itself");
}

/* f0 calls f1 twice, f1 calls f2 twice, ...: 2^40 nodes when inlined. */
static void test_exploding_functions(void **unused) {
  (void)unused;
  kva_text graph = {0}, start = pk_node("f0", "x", "y", "start");
  pk_str(&start, 7, "local");
  pk_sub(&graph, 1, start);
  pk_sub(&graph, 11, pk_value("x", 1, "2"));
  pk_sub(&graph, 12, pk_value("y", 1, "2"));
  kva_text m = pk_model(graph, 17);
  for (int i = 0; i < 40; i++) {
    char name[8], next[8];
    snprintf(name, sizeof name, "f%d", i);
    snprintf(next, sizeof next, "f%d", i + 1);
    kva_text f = {0}, a = pk_node(i < 39 ? next : "Relu", "x", "t", "a"),
             b = pk_node(i < 39 ? next : "Relu", "t", "y", "b");
    if (i < 39) pk_str(&a, 7, "local"), pk_str(&b, 7, "local");
    pk_str(&f, 1, name);
    pk_str(&f, 10, "local");
    pk_names(&f, 4, "x");
    pk_names(&f, 5, "y");
    pk_sub(&f, 7, a);
    pk_sub(&f, 7, b);
    pk_sub(&m, 25, f);
  }
  pk_expect(m, KVA_INVALID, "functions inlined");
}

/* ---- operators without a case in the official suite -------------------------------------------------------------- */

static void test_swiglu(void **unused) {
  (void)unused;
  kva_text g = {0}, n = pk_node("SwiGLU", "x v", "y", "gate");
  float v[2] = {10, 100};
  int64_t two = 2;
  pk_sub(&g, 5, pk_tensor("v", 1, 1, &two, v, sizeof v));
  pk_sub(&n, 5, pk_attr_float("alpha", 2));
  pk_sub(&g, 1, n);
  pk_sub(&g, 11, pk_value("x", 1, "2"));
  pk_sub(&g, 12, pk_value("y", 1, "2"));
  kva_module *m = load(pk_model(g, 28));
  kva_ref_tensor *y = run(m, 1, (int64_t[]){2});
  for (int i = 0; i < 2; i++) {
    double x = i + 1, want = x / (1 + exp(-2 * x)) * (double)v[i];
    assert_true(fabs(y->f[i] - want) < 1e-5 * want);
  }
  kva_ref_tensor_free(y);
  kva_module_destroy(m);
}

/* An operator before its opset, and one whose meaning changed. */
static void test_versions_of_one_operator(void **unused) {
  (void)unused;
  kva_text early = {0};
  pk_sub(&early, 1, pk_node("SwiGLU", "x x", "y", "gate"));
  pk_sub(&early, 11, pk_value("x", 1, "2"));
  pk_sub(&early, 12, pk_value("y", 1, "2"));
  pk_expect(pk_model(early, 27), KVA_UNSUPPORTED, "does not exist in this opset version");
  for (int64_t opset = 12; opset <= 13; opset++) { /* Softmax flattened before 13 */
    kva_text g = {0}, n = pk_node("Softmax", "x", "y", "softmax");
    pk_sub(&n, 5, pk_attr_int("axis", 1));
    pk_sub(&g, 1, n);
    pk_sub(&g, 11, pk_value("x", 1, "1,2,2"));
    pk_sub(&g, 12, pk_value("y", 1, "1,2,2"));
    kva_module *m = load(pk_model(g, opset));
    kva_ref_tensor *y = run(m, 3, (int64_t[]){1, 2, 2});
    double sum = y->f[0] + y->f[2] + (opset == 12 ? y->f[1] + y->f[3] : 0);
    assert_true(fabs(sum - 1) < 1e-6);
    kva_ref_tensor_free(y);
    kva_module_destroy(m);
  }
}

/* ---- check ------------------------------------------------------------------------------------------------------- */

static const kva_check_row *find_row(const kva_check_report *r, const char *op_type) {
  for (uint32_t i = 0; i < r->rows.len; i++)
    if (!strcmp(r->rows.data[i].op_type, op_type)) return &r->rows.data[i];
  return NULL;
}

/* Function bodies count once, whether they are called once or twice. */
static void test_check_model(void **unused) {
  (void)unused;
  char path[] = "/tmp/kvasir-onnx-XXXXXX";
  kva_text a = call("x", "t", "", 3), b = call("t", "y", "", 0);
  kva_text model = call_model(a, b, scale_function("", "NoSuchOp", false), scale_function("add", "Add", true));
  int fd = mkstemp(path);
  assert_int_equal(write(fd, model.data, model.len), model.len);
  close(fd);
  kva_diag *diag = kva_diag_create();
  kva_arena *arena = kva_arena_create();
  kva_check_report report;
  assert_int_equal(kva_check_model(path, arena, diag, &report), KVA_OK);
  assert_int_equal(report.unsupported, 1);
  const kva_check_row *calls = find_row(&report, "Scale"), *unknown = find_row(&report, "NoSuchOp");
  assert_true(calls && calls->supported && calls->count == 2 && !strcmp(calls->domain, "local"));
  assert_true(unknown && !unknown->supported && unknown->count == 1 && unknown->version == 17 && unknown->reason);
  assert_string_equal(unknown->first_node, "body");
  assert_true(find_row(&report, "Constant") && !find_row(&report, "Add")); /* the second function is never called */
  kva_arena_destroy(arena);
  kva_diag_destroy(diag);
  kva_text_free(&model);
  unlink(path);
}

static kva_text reader_of_mask(const char *output) {
  kva_text g = {0};
  pk_sub(&g, 1, pk_node("Identity", "mask", output, "reader"));
  pk_str(&g, 2, "branch");
  pk_sub(&g, 12, pk_value(output, 9, "N,3,2"));
  return g;
}

/* y, mask = Dropout(BatchNormalization(x)), both in training mode; the mask is an output, or what a branch reads. */
static kva_text training_mode(bool mask_is_output, bool branch_reads_mask) {
  const int64_t channels = 3;
  const float ones[] = {1, 1, 1}, ratio = 0.25f;
  const char yes = 1;
  kva_text g = {0}, norm = pk_node("BatchNormalization", "x w w w w", "n mean var", "norm");
  pk_sub(&norm, 5, pk_attr_int("training_mode", 1));
  pk_sub(&g, 1, norm);
  pk_sub(&g, 1, pk_node("Dropout", "n ratio mode", "y mask", "dropout"));
  if (branch_reads_mask) {
    kva_text branch = pk_node("If", "mode", "z", "if");
    pk_sub(&branch, 5, pk_attr_graph("then_branch", reader_of_mask("a")));
    pk_sub(&branch, 5, pk_attr_graph("else_branch", reader_of_mask("b")));
    pk_sub(&g, 1, branch);
    pk_sub(&g, 12, pk_value("z", 9, "N,3,2"));
  }
  pk_str(&g, 2, "g");
  pk_sub(&g, 5, pk_tensor("w", 1, 1, &channels, ones, sizeof ones));
  pk_sub(&g, 5, pk_tensor("ratio", 1, 0, NULL, &ratio, sizeof ratio));
  pk_sub(&g, 5, pk_tensor("mode", 9, 0, NULL, &yes, 1));
  pk_sub(&g, 11, pk_value("x", 1, "N,3,2"));
  pk_sub(&g, 12, pk_value("y", 1, "N,3,2"));
  if (mask_is_output) pk_sub(&g, 12, pk_value("mask", 9, "N,3,2"));
  return pk_model(g, 17);
}

static uint32_t count_nodes(const kva_module *m, kva_op_id op) {
  uint32_t n = 0;
  for (const kva_node *node = m->functions.data[0]->graph->first; node; node = node->next) n += kva_is(node, op);
  return n;
}

static void expect_training_mode(kva_text model, bool inference, uint32_t dropouts, uint32_t norms) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_load_options options = {.in_memory = true, .inference = inference};
  assert_int_equal(kva_load_bytes(model.data, model.len, "mode", &options, diag, &m), KVA_OK);
  assert_int_equal(count_nodes(m, KVA_OP_dropout), dropouts);
  uint32_t trained = 0;
  for (const kva_node *n = m->functions.data[0]->graph->first; n; n = n->next)
    trained += kva_is(n, KVA_OP_batch_norm) && ((const kva_batch_norm_attrs *)n->attrs)->training;
  assert_int_equal(trained, norms);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  kva_text_free(&model);
}

/* Nodes in training mode are inference outside of training steps where the caller says so, and nobody reads what only
 * the mode has. */
static void test_training_mode(void **unused) {
  (void)unused;
  expect_training_mode(training_mode(false, false), false, 0, 0);
  expect_training_mode(training_mode(false, false), true, 1, 1);
  expect_training_mode(training_mode(true, false), true, 0, 1);
  expect_training_mode(training_mode(false, true), true, 0, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_symbols),
      cmocka_unit_test(test_shape_arithmetic),
      cmocka_unit_test(test_assumed_extents),
      cmocka_unit_test(test_first_row_broadcasts),
      cmocka_unit_test(test_ranges_of_extents),
      cmocka_unit_test(test_nodes_in_any_order),
      cmocka_unit_test(test_assumed_multiple),
      cmocka_unit_test(test_data_dependent_shape),
      cmocka_unit_test(test_shifted_slice_keeps_its_length),
      cmocka_unit_test(test_pads_of_pairs),
      cmocka_unit_test(test_typed_fields),
      cmocka_unit_test(test_bad_tensors),
      cmocka_unit_test(test_large_initialisers),
      cmocka_unit_test(test_external_data),
      cmocka_unit_test(test_functions),
      cmocka_unit_test(test_recursive_function),
      cmocka_unit_test(test_exploding_functions),
      cmocka_unit_test(test_swiglu),
      cmocka_unit_test(test_versions_of_one_operator),
      cmocka_unit_test(test_check_model),
      cmocka_unit_test(test_training_mode),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
