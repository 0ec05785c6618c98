/* Graphs that keep a cache of a language model, read as functions of whole texts. */
#include "tests/frontend/onnx_pack.h"

/* Logits are sums of the inputs that are none of the tokens. `more`: a further input. */
static kva_text cached_model(const char *tokens, const char *more) {
  static const struct {
    const char *name;
    int dtype;
    const char *shape;
  } inputs[] = {{"attention_mask", KVA_I64, "B,T"},
                {"position_ids", KVA_I32, "B,S"},
                {"past_key_values.0.key", KVA_F16, "B,2,P,4"},
                {"num_logits_to_keep", KVA_I64, ""},
                {"use_cache_branch", KVA_BOOL, "1"}};
  kva_text g = {0}, cast = pk_node("Cast", "use_cache_branch", "c", "n0");
  pk_sub(&cast, 5, pk_attr_int("to", KVA_I64));
  pk_sub(&g, 1, cast);
  pk_sub(&g, 1, pk_node("Shape", "past_key_values.0.key", "shape", "n1"));
  kva_text all = pk_node("ReduceSum", "shape", "extents", "n2"), rows = pk_node("Cast", "position_ids", "p", "n3");
  pk_sub(&all, 5, pk_attr_int("keepdims", 0));
  pk_sub(&rows, 5, pk_attr_int("to", KVA_I64));
  pk_sub(&g, 1, all);
  pk_sub(&g, 1, rows);
  pk_sub(&g, 1, pk_node("Sum", "p attention_mask num_logits_to_keep c extents", "sum", "n4"));
  kva_text narrow = pk_node("Cast", "sum", "logits", "n5");
  pk_sub(&narrow, 5, pk_attr_int("to", KVA_F16));
  pk_sub(&g, 1, narrow);
  pk_sub(&g, 1, pk_node("Identity", "past_key_values.0.key", "present.0.key", "n6"));
  pk_sub(&g, 11, pk_value(tokens, KVA_I64, "B,S"));
  for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
    pk_sub(&g, 11, pk_value(inputs[i].name, inputs[i].dtype, inputs[i].shape));
  if (more) pk_sub(&g, 11, pk_value(more, KVA_F32, "B,3"));
  pk_sub(&g, 12, pk_value("logits", KVA_F16, "B,S"));
  pk_sub(&g, 12, pk_value("present.0.key", KVA_F16, "B,2,T,4"));
  return pk_model(g, 21);
}

static kva_module *load(kva_text model, bool language, kva_diag *diag) {
  kva_module *m = NULL;
  const kva_load_options options = {.in_memory = true, .language = language};
  kva_status status = kva_load_bytes(model.data, model.len, "test", &options, diag, &m);
  if (status != KVA_OK) kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  kva_text_free(&model);
  return m;
}

/* The mask is 1, positions are 0, 1, 2, and of the cache's extents batch, heads and channels are left: 1 + 2 + 4. */
static void inputs_of_caches_are_constants(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_module *m = load(cached_model("input_ids", NULL), true, diag);
  kva_function *f = m->functions.data[0];
  assert_int_equal(f->graph->inputs.len, 1);
  assert_string_equal(f->graph->inputs.data[0]->name, "input_ids");
  assert_int_equal(kva_graph_output_count(f->graph), 1);
  assert_string_equal(f->output_names[0], "logits");
  assert_int_equal(kva_graph_output(f->graph, 0)->type->dtype, KVA_F32);
  kva_ref_tensor *x = kva_ref_tensor_create(KVA_I64, 2, (int64_t[]){1, 3}), *y = NULL;
  memset(x->i, 0, 3 * sizeof *x->i);
  assert_int_equal(kva_ref_run(m, f, (const kva_ref_tensor *const[]){x}, &y, NULL, NULL, NULL, NULL, diag), KVA_OK);
  assert_int_equal(y->n, 3);
  for (int64_t i = 0; i < 3; i++) assert_float_equal(kva_ref_tensor_get(y, i), 1 + (double)i + 7, 0);
  kva_ref_tensor_free(x);
  kva_ref_tensor_free(y);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void assert_inputs(kva_text model, bool language, uint32_t inputs, uint32_t outputs) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = load(model, language, diag);
  assert_int_equal(m->functions.data[0]->graph->inputs.len, inputs);
  assert_int_equal(kva_graph_output_count(m->functions.data[0]->graph), outputs);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void others_stay(void **state) {
  (void)state;
  assert_inputs(cached_model("input_ids", "pixel_values"), true, 2, 1);
  assert_inputs(cached_model("input_ids", NULL), false, 6, 2);
  assert_inputs(cached_model("words", NULL), true, 6, 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(inputs_of_caches_are_constants),
      cmocka_unit_test(others_stay),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
