/* Broken and hostile ONNX files: every one must end in diagnostics, never in a crash or a hang. */
#include "tests/frontend/onnx_pack.h"

/* x[2,3] @ w[3,2] -> relu -> y, with a name and a symbolic batch: small enough to try every byte. */
static kva_text small_model(void) {
  kva_text g = {0};
  float w[6] = {1, -2, 3, -4, 5, -6};
  int64_t shape[] = {0, -1};
  pk_sub(&g, 5, pk_tensor("w", 1, 2, (int64_t[]){3, 2}, w, sizeof w));
  pk_sub(&g, 5, pk_i64s("shape", 2, shape));
  pk_sub(&g, 1, pk_node("MatMul", "x w", "h", "product"));
  kva_text leaky = pk_node("LeakyRelu", "h", "r", "activation");
  pk_sub(&leaky, 5, pk_attr_float("alpha", 0.5f));
  pk_sub(&g, 1, leaky);
  pk_sub(&g, 1, pk_node("Reshape", "r shape", "y", "reshape"));
  pk_str(&g, 2, "small");
  pk_sub(&g, 11, pk_value("x", 1, "N,3"));
  pk_sub(&g, 12, pk_value("y", 1, "N,2"));
  return pk_model(g, 17);
}

/* Loads bytes; whatever they are, the answer is a module or a diagnostic. */
static void load_anything(const kva_text *bytes) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_status status = pk_load(bytes, diag, &m);
  assert_int_equal(status == KVA_OK, m != NULL);
  if (status) assert_true(kva_diag_errors(diag) > 0);
  if (m) kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void test_the_small_model_is_right(void **unused) {
  (void)unused;
  kva_text model = small_model();
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  assert_int_equal(pk_load(&model, diag, &m), KVA_OK);
  assert_int_equal(kva_diag_count(diag), 0);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  kva_text_free(&model);
}

static void test_truncated_everywhere(void **unused) {
  (void)unused;
  kva_text model = small_model();
  for (size_t n = 0; n < model.len; n++) {
    kva_text cut = {.data = model.data, .len = n};
    load_anything(&cut);
  }
  kva_text_free(&model);
}

static void test_every_bit_flipped(void **unused) {
  (void)unused;
  kva_text model = small_model();
  for (size_t i = 0; i < model.len; i++) {
    for (int bit = 0; bit < 8; bit++) {
      model.data[i] ^= (char)(1 << bit);
      load_anything(&model);
      model.data[i] ^= (char)(1 << bit);
    }
  }
  kva_text_free(&model);
}

static void test_deep_nesting(void **unused) {
  (void)unused;
  kva_text m = {0};
  for (int i = 0; i < 3000; i++) { /* graph in attribute in node in graph ... */
    kva_text outer = {0};
    pk_bytes(&outer, i % 3 == 0 ? 6 : i % 3 == 1 ? 5 : 1, m.data, m.len);
    kva_text_free(&m);
    m = outer;
  }
  kva_text model = {0};
  pk_int(&model, 1, 10);
  pk_sub(&model, 7, m);
  pk_expect(model, KVA_INVALID, "nested more than");
}

/* ---- graphs that contradict themselves --------------------------------------------------------------------------- */

static kva_text graph_of(kva_text a, kva_text b, const char *input_shape) {
  kva_text g = {0};
  pk_sub(&g, 1, a);
  pk_sub(&g, 1, b);
  pk_sub(&g, 11, pk_value("x", 1, input_shape));
  pk_sub(&g, 12, pk_value("y", 1, input_shape));
  return pk_model(g, 17);
}

static void test_broken_graphs(void **unused) {
  (void)unused;
  pk_expect(graph_of(pk_node("Add", "x b", "a", "first"), pk_node("Relu", "a", "b", "second"), "2"), KVA_INVALID,
            "cycle");
  pk_expect(graph_of(pk_node("Relu", "nothing", "a", "first"), pk_node("Relu", "x", "y", "second"), "2"), KVA_INVALID,
            "'nothing' is not defined anywhere");
  pk_expect(graph_of(pk_node("Relu", "x", "y", "first"), pk_node("Relu", "x", "y", "second"), "2"), KVA_INVALID,
            "second time");
  pk_expect(graph_of(pk_node("Relu", "x", "x", "first"), pk_node("Relu", "x", "y", "second"), "2"), KVA_INVALID,
            "second time");
  pk_expect(graph_of(pk_node("Relu", "x", "a", "first"), pk_node("Relu", "x", "b", "second"), "2"), KVA_INVALID,
            "output 'y' is not defined");
  pk_expect(graph_of(pk_node("Relu", "x x", "a", "first"), pk_node("Relu", "x", "y", "second"), "2"), KVA_INVALID,
            "at most 1 inputs");
  pk_expect(graph_of(pk_node("Add", "x", "a", "first"), pk_node("Relu", "x", "y", "second"), "2"), KVA_INVALID,
            "input 1 is required");
}

static void test_hostile_sizes(void **unused) {
  (void)unused;
  kva_text relu = pk_node("Relu", "x", "a", "first"), again = pk_node("Relu", "a", "y", "second");
  pk_expect(graph_of(relu, again, "-5"), KVA_INVALID, "negative");
  relu = pk_node("Relu", "x", "a", "first"), again = pk_node("Relu", "a", "y", "second");
  pk_expect(graph_of(relu, again, "4611686018427387904,4611686018427387904"), KVA_INVALID, "more elements than");
  relu = pk_node("Relu", "x", "a", "first"), again = pk_node("Relu", "a", "y", "second");
  pk_expect(graph_of(relu, again, "1,1,1,1,1,1,1,1,1"), KVA_UNSUPPORTED, "rank 9");
}

/* A huge constant asked for by a few bytes is a view, not memory. */
static void test_huge_constant_of_shape(void **unused) {
  (void)unused;
  kva_text g = {0};
  int64_t shape[] = {1 << 30, 1 << 20};
  pk_sub(&g, 5, pk_i64s("shape", 2, shape));
  pk_sub(&g, 1, pk_node("ConstantOfShape", "shape", "y", "huge"));
  pk_sub(&g, 12, pk_value("y", 1, "?,?"));
  kva_text model = pk_model(g, 17);
  load_anything(&model);
  kva_text_free(&model);
}

static void test_all_problems_are_reported(void **unused) {
  (void)unused;
  kva_text g = {0}, model;
  pk_sub(&g, 1, pk_node("NoSuchOp", "x", "a", "n1"));
  pk_sub(&g, 1, pk_node("NoSuchOp", "a", "b", "n2"));
  pk_sub(&g, 1, pk_node("NorThisOp", "b", "y", "n3"));
  pk_sub(&g, 11, pk_value("x", 1, "2"));
  pk_sub(&g, 12, pk_value("y", 1, "2"));
  model = pk_model(g, 21);
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  assert_int_equal(pk_load(&model, diag, &m), KVA_UNSUPPORTED);
  assert_int_equal(kva_diag_errors(diag), 2); /* one for each operator */
  assert_true(pk_has_message(diag, "NoSuchOp, opset 21, 2 nodes"));
  assert_true(pk_has_message(diag, "NorThisOp, opset 21, 1 node:"));
  kva_diag_destroy(diag);
  kva_text_free(&model);
}

static void test_versions(void **unused) {
  (void)unused;
  kva_text relu = pk_node("Relu", "x", "a", "first"), again = pk_node("Relu", "a", "y", "second"), g = {0};
  pk_sub(&g, 1, relu);
  pk_sub(&g, 1, again);
  pk_sub(&g, 11, pk_value("x", 1, "2"));
  pk_sub(&g, 12, pk_value("y", 1, "2"));
  kva_text copy = {0};
  kva_text_add_bytes(&copy, g.data, g.len);
  pk_expect(pk_model(g, 99), KVA_UNSUPPORTED, "opset 99");
  kva_text m = {0};
  pk_int(&m, 1, 77);
  pk_sub(&m, 7, copy);
  pk_expect(m, KVA_UNSUPPORTED, "IR version 77");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_small_model_is_right),
      cmocka_unit_test(test_truncated_everywhere),
      cmocka_unit_test(test_every_bit_flipped),
      cmocka_unit_test(test_deep_nesting),
      cmocka_unit_test(test_broken_graphs),
      cmocka_unit_test(test_hostile_sizes),
      cmocka_unit_test(test_huge_constant_of_shape),
      cmocka_unit_test(test_all_problems_are_reported),
      cmocka_unit_test(test_versions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
