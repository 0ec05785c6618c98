/* Sequences and optionals: resolved while a model is imported, tensors of their own at its inputs and outputs. */
#include "tests/frontend/onnx_pack.h"

#define ONNX "<ir_version: 10, opset_import: [\"\": 21]>\n"

/* ---- models -------------------------------------------------------------------------------------------------- */

static kva_module *load(const char *text) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  if (kva_load_text(text, "test", NULL, diag, &m)) {
    kva_diag_print(diag, stderr);
    fail_msg("does not load:\n%s", text);
  }
  kva_diag_destroy(diag);
  return m;
}

/* Output 0 of a model of one float vector 1, 2, ..., n and, if `at` is not NULL, an int64. */
static void check(const char *text, int64_t n, const int64_t *at, uint32_t n_expected, const double *expected) {
  kva_module *m = load(text);
  kva_diag *diag = kva_diag_create();
  m->diag = diag;
  kva_ref_tensor *x = kva_ref_tensor_create(KVA_F32, 1, &n), *position = kva_ref_tensor_create(KVA_I64, 0, NULL);
  kva_ref_tensor *y[4] = {NULL};
  for (int64_t i = 0; i < n; i++) x->f[i] = (double)(i + 1);
  if (at) position->i[0] = *at;
  const kva_ref_tensor *in[] = {x, position};
  if (kva_ref_run(m, m->functions.data[0], in, y, NULL, NULL, NULL, NULL, diag)) {
    kva_diag_print(diag, stderr);
    fail();
  }
  assert_int_equal(y[0]->n, n_expected);
  for (uint32_t i = 0; i < n_expected; i++) assert_true(kva_ref_tensor_get(y[0], i) == expected[i]);
  for (int i = 0; i < 4; i++) kva_ref_tensor_free(y[i]);
  kva_ref_tensor_free(x), kva_ref_tensor_free(position);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}
#define CHECK(text, n, at, ...) \
  check(text, n, at, sizeof((double[]){__VA_ARGS__}) / sizeof(double), (double[]){__VA_ARGS__})

static void test_edits(void **unused) {
  (void)unused;
  CHECK(ONNX "agraph (float[6] x) => (float[N] y) {\n"
             "  parts = SplitToSequence (x, Constant <value = int64 {4}> ())\n"
             "  first = SequenceAt (parts, Constant <value = int64 {-2}> ())\n"
             "  more = SequenceInsert (parts, Neg (first), Constant <value = int64 {1}> ())\n"
             "  less = SequenceErase (more, Constant <value = int64 {0}> ())\n"
             "  y = ConcatFromSequence <axis = 0> (less)\n}\n",
        6, NULL, -1, -2, -3, -4, 5, 6);
  CHECK(ONNX "agraph (float[3] x) => (int64 n) {\n"
             "  n = SequenceLength (SplitToSequence <keepdims = 0> (x))\n}\n",
        3, NULL, 3);
}

/* A position that data decides selects a row of the stacked elements; negative ones count from the end. */
static void test_position_from_data(void **unused) {
  (void)unused;
  const char *text = ONNX "agraph (float[6] x, int64 at) => (float[2] y) {\n"
                          "  y = SequenceAt (SplitToSequence (x, Constant <value = int64 {2}> ()), at)\n}\n";
  CHECK(text, 6, ((int64_t[]){1}), 3, 4);
  CHECK(text, 6, ((int64_t[]){-1}), 5, 6);
}

static void test_loop_grows_a_sequence(void **unused) {
  (void)unused;
  CHECK(ONNX "agraph (float[3] x) => (float[N] y) {\n"
             "  n = Constant <value = int64 {3}> ()  yes = Constant <value = bool {1}> ()\n"
             "  all = Loop (n, yes, SequenceEmpty <dtype = 1> ()) <body = b (int64 i, bool c, s)\n"
             "    => (bool go, next) {\n"
             "      go = Identity (c)\n"
             "      one = Constant <value = int64[1] {1}> ()  zero = Constant <value = int64[1] {0}> ()\n"
             "      end = Add (i, one)\n"
             "      next = SequenceInsert (s, Slice (x, zero, end))\n"
             "    }>\n"
             "  y = ConcatFromSequence <axis = 0> (all)\n}\n",
        3, NULL, 1, 1, 2, 1, 2, 3);
}

/* Both branches give two tensors, so each is chosen on its own. */
static void test_branches_of_sequences(void **unused) {
  (void)unused;
  const char *text = ONNX "agraph (float[2] x, int64 n) => (float[4] y) {\n"
                          "  c = Cast <to = 9> (n)\n"
                          "  s = If (c) <then_branch = t () => (a) { a = SequenceConstruct (x, Neg (x)) },\n"
                          "    else_branch = e () => (b) { b = SequenceConstruct (Neg (x), x) }>\n"
                          "  y = ConcatFromSequence <axis = 0> (s)\n}\n";
  CHECK(text, 2, ((int64_t[]){1}), 1, 2, -1, -2);
  CHECK(text, 2, ((int64_t[]){0}), -1, -2, 1, 2);
}

static void test_optionals(void **unused) {
  (void)unused;
  CHECK(ONNX "agraph (float[2] x) => (float[2] y) {\n"
             "  o = Optional (x)\n"
             "  y = If (OptionalHasElement (o)) <then_branch = t () => (float[2] a) { a = OptionalGetElement (o) },\n"
             "    else_branch = e () => (float[2] b) { b = Neg (x) }>\n}\n",
        2, NULL, 1, 2);
}

static void test_refusals(void **unused) {
  (void)unused;
  pk_refuse_text(ONNX "agraph (float[2] x) => (float[2] y) { y = Neg (SequenceConstruct (x)) }\n", KVA_INVALID,
                 "Neg-21: input 0: expected a tensor, found a sequence");
  pk_refuse_text(ONNX "agraph (float[2] x) => (int64 y) { y = SequenceLength (x) }\n", KVA_INVALID,
                 "expected a sequence, found a tensor");
  pk_refuse_text(ONNX
                 "agraph (float[2] x) => (float[2] y) {\n"
                 "  s = SequenceInsert (SequenceEmpty <dtype = 7> (), x)  y = ConcatFromSequence <axis = 0> (s) }\n",
                 KVA_INVALID, "input 1 is float, the sequence holds int64");
  pk_refuse_text(ONNX "agraph (float[2] x) => (float[2] y) {\n"
                      "  y = SequenceAt (SequenceConstruct (x), Constant <value = int64 {1}> ()) }\n",
                 KVA_INVALID, "position 1 is outside [-1, 1)");
  pk_refuse_text(ONNX "agraph (float[N] x) => (int64 n) { n = SequenceLength (SplitToSequence (x)) }\n",
                 KVA_UNSUPPORTED, "the number of parts depends on a symbolic extent");
  pk_refuse_text(ONNX "agraph (float[2] x, bool c) => (int64 n) {\n"
                      "  s = If (c) <then_branch = t () => (a) { a = SequenceConstruct (x, x) },\n"
                      "    else_branch = e () => (b) { b = SequenceConstruct (x) }>\n  n = SequenceLength (s) }\n",
                 KVA_UNSUPPORTED, "output 0 has another number of elements in the other branch");
  pk_refuse_text(ONNX "agraph (float[2] x, int64 n) => (int64 m) {\n"
                      "  s = Loop (n, , SequenceConstruct (x)) <body = b (int64 i, bool c, v)\n"
                      "    => (bool go, next) { go = Identity (c)  next = SequenceInsert (v, x) }>\n"
                      "  m = SequenceLength (s) }\n",
                 KVA_UNSUPPORTED, "a value of a loop whose end depends on data: expected a tensor");
}

/* ---- inputs and outputs ------------------------------------------------------------------------------------------ */

/* A sequence of float[shape]. */
static kva_text sequence_value(const char *name, const char *shape) {
  kva_text v = {0}, element = {0}, sequence = {0}, type = {0}, tensor = {0}, dims = {0}, d = {0};
  pk_str(&d, 2, shape);
  pk_sub(&dims, 1, d);
  pk_int(&tensor, 1, KVA_F32);
  pk_sub(&tensor, 2, dims);
  pk_sub(&element, 1, tensor);
  pk_sub(&sequence, 1, element);
  pk_sub(&type, 4, sequence);
  pk_str(&v, 1, name);
  pk_sub(&v, 2, type);
  return v;
}

static kva_text sequence_model(void) {
  kva_text g = {0};
  pk_sub(&g, 1, pk_node("Identity", "x", "y", "same"));
  pk_sub(&g, 11, sequence_value("x", "N"));
  pk_sub(&g, 12, sequence_value("y", "N"));
  return pk_model(g, 21);
}

static kva_status load_pinned(const char *count, kva_diag *diag, kva_module **out) {
  char path[] = "/tmp/kvasir-list-XXXXXX";
  kva_text bytes = sequence_model();
  kva_define pin = {"x", count};
  kva_load_options options = {.n_pins = count != NULL, .pins = &pin};
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  kva_status status = pk_load_at(path, &bytes, &options, diag, out);
  unlink(path);
  kva_text_free(&bytes);
  return status;
}

/* Elements are tensors x[0], x[1] of extents of their own. */
static void test_inputs_and_outputs(void **unused) {
  (void)unused;
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  assert_int_equal(load_pinned("2", diag, &m), KVA_OK);
  const kva_function *f = m->functions.data[0];
  assert_int_equal(f->graph->inputs.len, 2);
  assert_string_equal(f->graph->inputs.data[1]->name, "x[1]");
  assert_ptr_not_equal(f->graph->inputs.data[0]->type, f->graph->inputs.data[1]->type);
  assert_int_equal(kva_graph_output_count(f->graph), 2);
  assert_string_equal(f->output_names[1], "y[1]");
  assert_ptr_equal(kva_graph_output(f->graph, 1), f->graph->inputs.data[1]);
  kva_module_destroy(m);
  assert_int_equal(load_pinned(NULL, diag, &m), KVA_UNSUPPORTED);
  assert_true(pk_has_message(diag, "give it with --pin x=N"));
  kva_diag_destroy(diag);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_edits),
                                     cmocka_unit_test(test_position_from_data),
                                     cmocka_unit_test(test_loop_grows_a_sequence),
                                     cmocka_unit_test(test_branches_of_sequences),
                                     cmocka_unit_test(test_optionals),
                                     cmocka_unit_test(test_refusals),
                                     cmocka_unit_test(test_inputs_and_outputs)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
