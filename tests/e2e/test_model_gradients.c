/* Gradients of whole models: every parameter of a two-layer model with grouped queries, rotary positions and KV shift
 * against central differences of the reference in double, before and after fusion. */
#include "frontend/frontend.h"
#include "passes/passes.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

enum { MAX_STATES = 64, MAX_INPUTS = 8 };

typedef struct fixture {
  kva_diag *diag;
  kva_module *m;
  kva_function *loss;
  uint32_t n_outputs;           /* of the loss function as written */
  kva_value *grads[MAX_STATES]; /* appended as outputs, in the order of states that have one */
  kva_ref_tensor *states[MAX_STATES], *inputs[MAX_INPUTS];
} fixture;

/* The models are written in float; the same text in double makes differences exact enough. */
static char *read_in_double(const char *path) {
  kva_diag *diag = kva_diag_create();
  kva_file file;
  assert_int_equal(kva_file_map(path, diag, &file), KVA_OK);
  kva_text out = {0};
  const char *s = file.data;
  for (size_t i = 0; i < file.size; i++) {
    bool word =
        i + 6 <= file.size && !strncmp(s + i, "float", 5) && (s[i + 5] == '[' || s[i + 5] == '>' || s[i + 5] == ',');
    if (word) {
      kva_text_add(&out, "double");
      i += 4;
    } else {
      kva_text_add_bytes(&out, s + i, 1);
    }
  }
  kva_file_unmap(&file);
  kva_diag_destroy(diag);
  return out.data;
}

static double noise(uint64_t i, uint64_t stream) {
  return kva_uniform01(kva_philox4x32(i, stream, 7).v[0]) - 0.5;
}

static kva_ref_tensor *tensor_like(const kva_type *t) {
  int64_t dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < t->rank; d++) assert_true(kva_expr_is_const(t->dims[d], &dims[d]));
  kva_ref_tensor *w = kva_ref_tensor_create(t->dtype, t->rank, dims);
  assert_non_null(w);
  return w;
}

static void append_gradients(fixture *f) {
  kva_node *ret = f->loss->graph->last;
  kva_value *outputs[MAX_STATES + 8];
  const char *names[MAX_STATES + 8];
  uint32_t n = f->n_outputs = ret->n_operands;
  for (uint32_t i = 0; i < n; i++) outputs[i] = ret->operands[i].value, names[i] = f->loss->output_names[i];
  for (uint32_t i = 0; i < f->m->states.len; i++)
    if (f->grads[i]) outputs[n] = f->grads[i], names[n++] = f->m->states.data[i]->name;
  kva_node_create(f->loss->graph, ret, ret->op, n, outputs, 0, NULL, ret->loc);
  kva_node_remove(ret);
  f->loss->output_names = kva_arena_memdup(f->m->arena, names, n * sizeof *names);
}

static void fill(fixture *f, int64_t vocab) {
  for (uint32_t i = 0; i < f->m->states.len; i++) {
    f->states[i] = tensor_like(f->m->states.data[i]->type);
    for (int64_t k = 0; k < f->states[i]->n; k++)
      f->states[i]->f[k] = 0.6 * noise((uint64_t)k, i + 1) + (k % 3 == 0 ? 0.4 : 0);
  }
  const kva_graph *g = f->loss->graph;
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    f->inputs[i] = tensor_like(g->inputs.data[i]->type);
    for (int64_t k = 0; k < f->inputs[i]->n; k++)
      f->inputs[i]->i[k] = (int64_t)((noise((uint64_t)k, 100 + i) + 0.5) * (double)vocab);
  }
}

static fixture open_model(const char *path, uint32_t n_defines, const kva_define *defines) {
  fixture f = {.diag = kva_diag_create()};
  char *text = read_in_double(path);
  const kva_define pins[] = {{"B", "2"}, {"T", "5"}};
  kva_load_options o = {.n_defines = n_defines, .defines = defines, .n_pins = 2, .pins = pins};
  kva_status status = kva_load_text(text, path, &o, f.diag, &f.m);
  free(text);
  if (status != KVA_OK) kva_diag_print(f.diag, stderr);
  assert_int_equal(status, KVA_OK);
  f.loss = kva_module_find_function(f.m, "loss");
  assert_non_null(f.loss);
  assert_true(f.m->states.len < MAX_STATES);
  return f;
}

static void differentiate(fixture *f) {
  bool changed = false;
  kva_status status = kva_optimize(f->m, &(kva_pass_options){.control = &(kva_pass_control){.verify_each = true}});
  kva_gradients wanted = {f->loss, kva_graph_output(f->loss->graph, 0), f->grads};
  if (status == KVA_OK) status = kva_autodiff(f->m, &(kva_pass_options){.gradients = &wanted}, &changed);
  if (status != KVA_OK) kva_diag_print(f->diag, stderr);
  assert_int_equal(status, KVA_OK);
  append_gradients(f);
}

static void close_model(fixture *f) {
  for (uint32_t i = 0; i < MAX_STATES; i++) kva_ref_tensor_free(f->states[i]);
  for (uint32_t i = 0; i < MAX_INPUTS; i++) kva_ref_tensor_free(f->inputs[i]);
  kva_module_destroy(f->m);
  kva_diag_destroy(f->diag);
}

static kva_ref_tensor *state_of(void *user, kva_state *s) {
  return ((fixture *)user)->states[s->id];
}

static void evaluate(fixture *f, kva_ref_tensor **outputs) {
  kva_status status =
      kva_ref_run(f->m, f->loss, (const kva_ref_tensor *const *)f->inputs, outputs, state_of, f, NULL, NULL, f->diag);
  if (status != KVA_OK) kva_diag_print(f->diag, stderr);
  assert_int_equal(status, KVA_OK);
}

static void free_outputs(fixture *f, kva_ref_tensor **outputs) {
  for (uint32_t i = 0; i < kva_graph_output_count(f->loss->graph); i++) kva_ref_tensor_free(outputs[i]);
}

static double loss_at(fixture *f) {
  kva_ref_tensor *outputs[MAX_STATES + 8] = {0};
  evaluate(f, outputs);
  double loss = outputs[0]->f[0];
  free_outputs(f, outputs);
  return loss;
}

/* Fourth-order central difference: error about h^4 and eps / h, both near 1e-12. */
static double difference(fixture *f, double *x) {
  const double h = 1e-3, at = *x;
  double v[4];
  static const double steps[4] = {-2, -1, 1, 2};
  for (int i = 0; i < 4; i++) {
    *x = at + steps[i] * h;
    v[i] = loss_at(f);
  }
  *x = at;
  return (v[0] - 8 * v[1] + 8 * v[2] - v[3]) / (12 * h);
}

/* All elements of small parameters, a sample of large ones. */
static int check_state(fixture *f, uint32_t i, const kva_ref_tensor *grad) {
  kva_ref_tensor *w = f->states[i];
  int64_t step = w->n <= 16 ? 1 : w->n / 7;
  int checked = 0;
  double scale = 0;
  for (int64_t k = 0; k < grad->n; k++) scale = fmax(scale, fabs(grad->f[k]));
  for (int64_t k = 0; k < w->n; k += step, checked++) {
    double expected = difference(f, &w->f[k]);
    if (fabs(grad->f[k] - expected) <= 1e-6 * fmax(scale, 1e-3)) continue;
    fail_msg("%s[%lld]: gradient %.12g, difference %.12g", f->m->states.data[i]->name, (long long)k, grad->f[k],
             expected);
  }
  return checked;
}

static void check_all(fixture *f) {
  kva_ref_tensor *outputs[MAX_STATES + 8] = {0};
  evaluate(f, outputs);
  int checked = 0;
  uint32_t at = f->n_outputs;
  for (uint32_t i = 0; i < f->m->states.len; i++)
    if (f->grads[i]) checked += check_state(f, i, outputs[at++]);
  assert_true(checked > 100);
  free_outputs(f, outputs);
}

static void run_model(const char *path, uint32_t n, const kva_define *defines, int64_t vocab) {
  fixture f = open_model(path, n, defines);
  differentiate(&f);
  fill(&f, vocab);
  check_all(&f);
  assert_int_equal(kva_prepare(f.m, &(kva_pass_options){.control = &(kva_pass_control){.verify_each = true}}), KVA_OK);
  check_all(&f);
  close_model(&f);
}

static void test_two_layers_grouped_queries(void **state) {
  (void)state;
  const kva_define defines[] = {{"layers", "2"},   {"d", "8"},   {"heads", "2"},
                                {"kv_heads", "1"}, {"ffn", "6"}, {"vocab", "7"}};
  run_model("models/induction.kv", 6, defines, 7);
}

static void test_queries_shifted_gate_window(void **state) {
  (void)state;
  const kva_define defines[] = {{"shift_q", "true"}, {"d", "8"},       {"heads", "2"}, {"ffn", "6"},
                                {"vocab", "7"},      {"gate", "gate"}, {"window", "2"}};
  run_model("models/induction.kv", 7, defines, 7);
}

static void test_language_model(void **state) {
  (void)state;
  const kva_define defines[] = {{"layers", "2"},   {"d", "8"},   {"heads", "4"},
                                {"kv_heads", "2"}, {"ffn", "6"}, {"vocab", "7"}};
  run_model("models/lm.kv", 6, defines, 7);
}

/* The switches: queries shifted, three rows back, one matrix for both ends, norms of heads. */
static void test_switches(void **state) {
  (void)state;
  const kva_define defines[] = {{"layers", "1"},     {"d", "8"},       {"heads", "2"},
                                {"ffn", "6"},        {"vocab", "7"},   {"window", "3"},
                                {"shift_q", "true"}, {"tied", "true"}, {"qk_norm", "true"}};
  run_model("models/lm.kv", 9, defines, 7);
}

static void test_documents(void **state) {
  (void)state;
  const kva_define defines[] = {{"layers", "1"}, {"d", "8"},     {"heads", "2"},
                                {"ffn", "6"},    {"vocab", "7"}, {"separator", "2"}};
  run_model("models/lm.kv", 6, defines, 7);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_two_layers_grouped_queries),
      cmocka_unit_test(test_queries_shifted_gate_window),
      cmocka_unit_test(test_language_model),
      cmocka_unit_test(test_switches),
      cmocka_unit_test(test_documents),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
