/* Models as ONNX and back: a .kv model and what is imported from its exported file, with the parameters that a session
 * started from as initialisers, compute the same bits.
 *
 * One kind of model differs by rounding: parameters are constants after the import, and what a model computes from
 * parameters alone (the sigmoid of shift gates) is folded by the reference, correctly rounded, where the .kv model
 * computes it in every run.
 *
 * What `kvasir export --decode` writes, imported again, gives every row the bits of one run, however the rows are cut.
 */
#include "tests/support/target.h"
#include "tools/driver/driver.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { BATCH = 2, TIME = 13, CAPACITY = 70, MAX_TENSORS = 32, MAX_DEFINES = 8 };

typedef struct model_case {
  const char *path;
  double tolerance; /* 0: the same bits */
  kva_define defines[MAX_DEFINES];
} model_case;

typedef struct model {
  kva_compiled *compiled;
  kva_session *session;
  int32_t tokens[BATCH * TIME];
  kva_tensor outputs[MAX_TENSORS];
} model;

static void expect_ok(kva_status status, const kva_diag *diag) {
  if (status != KVA_OK) kva_diag_print(diag, stdout);
  assert_int_equal(status, KVA_OK);
}

static kva_module *load(const model_case *c, const char *path, kva_diag *diag) {
  kva_load_options o = {.defines = c ? c->defines : NULL};
  while (c && o.n_defines < MAX_DEFINES && c->defines[o.n_defines].name) o.n_defines++;
  kva_module *m = NULL;
  expect_ok(kva_load_model(path, &o, diag, &m), diag);
  return m;
}

static void start(model *x, kva_module *m, kva_diag *diag) {
  *x = (model){0};
  expect_ok(kva_compile(m, &(kva_compile_options){.target = test_target(1, NULL)}, diag, &x->compiled), diag);
  expect_ok(
      kva_session_create(x->compiled->artifact, &(kva_session_options){.threads = 1, .seed = 5}, diag, &x->session),
      diag);
}

static void stop(model *x) {
  kva_session_destroy(x->session);
  kva_compiled_destroy(x->compiled);
}

static void fill_tokens(model *x) {
  for (int i = 0; i < BATCH * TIME; i++) x->tokens[i] = (int32_t)(kva_philox4x32((uint64_t)i, 1, 2).v[0] % 50);
}

static int run(model *x) {
  const kva_program *p = kva_session_program_desc(x->session, 0);
  kva_tensor in = {.dtype = KVA_I32, .rank = 2, .dims = {BATCH, TIME}, .data = x->tokens};
  assert_int_equal(p->n_inputs, 1);
  assert_true(p->n_outputs <= MAX_TENSORS);
  fill_tokens(x);
  if (kva_session_run(x->session, 0, &in, x->outputs) != KVA_OK) fail_msg("%s", kva_session_error(x->session));
  return p->n_outputs;
}

static const void *state_bytes(void *session, const kva_state *s) {
  kva_tensor t;
  return kva_session_state(session, s->name, &t) ? t.data : NULL;
}

static void expect_equal(const kva_tensor *a, const kva_tensor *b, double tolerance) {
  int64_t bytes = kva_tensor_bytes(a);
  const float *x = a->data, *y = b->data;
  assert_int_equal(a->dtype, KVA_F32);
  assert_int_equal(b->dtype, KVA_F32);
  assert_int_equal(bytes, kva_tensor_bytes(b));
  for (int64_t i = 0; i < bytes / 4; i++) assert_true(isfinite(x[i]) && fabs((double)x[i] - (double)y[i]) <= tolerance);
  if (tolerance == 0) assert_memory_equal(x, y, (size_t)bytes);
}

static void check(const model_case *c) {
  char file[] = "/tmp/kvasir-roundtrip-XXXXXX";
  close(mkstemp(file));
  kva_diag *diag = kva_diag_create();
  kva_module *source = load(c, c->path, diag);
  model original, imported;
  start(&original, load(c, c->path, diag), diag);
  expect_ok(kva_export_onnx(source, file, state_bytes, original.session, diag), diag);
  start(&imported, load(NULL, file, diag), diag);
  int n = run(&original);
  assert_int_equal(run(&imported), n);
  for (int i = 0; i < n; i++) expect_equal(&original.outputs[i], &imported.outputs[i], c->tolerance);
  stop(&imported);
  stop(&original);
  kva_module_destroy(source);
  kva_diag_destroy(diag);
  unlink(file);
}

static void check_all(const model_case *cases, size_t n) {
  for (size_t i = 0; i < n; i++) {
    print_message("%s", cases[i].path);
    for (const kva_define *d = cases[i].defines; d->name; d++) print_message(" %s=%s", d->name, d->value);
    print_message("\n");
    check(&cases[i]);
  }
}

static void test_lm(void **unused) {
  (void)unused;
  static const model_case cases[] = {
      {"models/lm.kv", 0, {{"preset", "small"}, {"vocab", "500"}}},
      {"models/lm.kv", 0, {{"vocab", "61"}, {"d", "64"}, {"ffn", "96"}, {"kv_heads", "2"}, {"layers", "1"}}},
      {"models/lm.kv", 0, {{"vocab", "61"}, {"d", "48"}, {"ffn", "40"}, {"shift", "false"}, {"eps", "3e-6"}}},
      {"models/lm.kv", 0, {{"vocab", "61"}, {"d", "48"}, {"ffn", "40"}, {"window", "2"}, {"qk_norm", "true"}}},
      {"models/lm.kv", 0, {{"vocab", "61"}, {"d", "48"}, {"ffn", "40"}, {"tied", "true"}, {"gate", "clamp"}}},
  };
  check_all(cases, sizeof cases / sizeof cases[0]);
}

static void test_small_models(void **unused) {
  (void)unused;
  static const model_case cases[] = {
      {"models/induction.kv", 0, {{0}}},
      {"models/induction.kv", 0, {{"gate", "clamp"}, {"window", "2"}, {"shift_q", "true"}}},
      {"models/induction.kv", 0, {{"window", "3"}, {"shift_v", "false"}, {"layers", "2"}, {"kv_heads", "1"}}},
      {"models/induction.kv", 1e-6, {{"gate", "gate"}, {"window", "3"}}},
      {"models/mlp.kv", 0, {{0}}},
      {"models/mlp.kv", 0, {{"layers", "3"}, {"hidden", "48"}}},
  };
  check_all(cases, sizeof cases / sizeof cases[0]);
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

/* Zeros for every input: tokens, positions, then state, which output i - 1 replaces. */
static int make_inputs(const kva_module *m, kva_tensor *out) {
  const kva_graph *g = m->functions.data[0]->graph;
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    const kva_type *t = g->inputs.data[i]->type;
    out[i] = (kva_tensor){.dtype = t->dtype, .rank = (int32_t)t->rank};
    for (uint32_t k = 0; k < t->rank; k++)
      if (!kva_expr_is_const(t->dims[k], &out[i].dims[k])) out[i].dims[k] = k ? CAPACITY : BATCH;
    out[i].data = test_calloc((size_t)kva_tensor_bytes(&out[i]), 1);
  }
  return (int)g->inputs.len;
}

/* Runs `rows` rows from `first` and compares their logits with those of one run. */
static void decode_rows(model *x, kva_tensor *in, int n, int64_t first, int64_t rows, const kva_tensor *expected) {
  int64_t vocab = expected->dims[2], *position = in[1].data;
  int32_t tokens[BATCH * TIME];
  for (int64_t b = 0; b < BATCH; b++) {
    memcpy(tokens + b * rows, x->tokens + b * TIME + first, (size_t)rows * sizeof *tokens);
    position[b] = first;
  }
  void *own = in[0].data;
  in[0].data = tokens, in[0].dims[1] = rows;
  if (kva_session_run(x->session, 0, in, x->outputs) != KVA_OK) fail_msg("%s", kva_session_error(x->session));
  in[0].data = own;
  for (int i = 2; i < n; i++) memcpy(in[i].data, x->outputs[i - 1].data, (size_t)kva_tensor_bytes(&in[i]));
  for (int64_t b = 0; b < BATCH; b++)
    assert_memory_equal((const float *)x->outputs[0].data + b * rows * vocab,
                        (const float *)expected->data + (b * TIME + first) * vocab,
                        (size_t)(rows * vocab) * sizeof(float));
}

static void check_decode(const model_case *c, int opset) {
  static const int64_t cuts[] = {5, 1, 2, 1, 4};
  char file[] = "/tmp/kvasir-decode-XXXXXX";
  close(mkstemp(file));
  kva_diag *diag = kva_diag_create();
  kva_module *source = load(c, c->path, diag);
  model original, imported;
  kva_tensor in[MAX_TENSORS];
  start(&original, load(c, c->path, diag), diag);
  const kva_pass_options whole = {.whole_caches = true};
  expect_ok(kva_optimize(source, &whole), diag);
  expect_ok(kva_make_decode(source, &whole), diag);
  const kva_export_form form = {.function = "decode", .opset = opset};
  expect_ok(kva_export_onnx_as(source, &form, file, state_bytes, original.session, diag), diag);
  kva_module *m = load(NULL, file, diag);
  assert_true(m->functions.data[0]->graph->inputs.len <= MAX_TENSORS);
  int n = make_inputs(m, in);
  start(&imported, m, diag);
  (void)run(&original);
  fill_tokens(&imported);
  int64_t first = 0;
  for (size_t i = 0; i < sizeof cuts / sizeof *cuts; first += cuts[i++])
    decode_rows(&imported, in, n, first, cuts[i], &original.outputs[0]);
  assert_int_equal(first, TIME);
  for (int i = 0; i < n; i++) test_free(in[i].data);
  stop(&imported);
  stop(&original);
  kva_module_destroy(source);
  kva_diag_destroy(diag);
  unlink(file);
}

static void test_decode(void **unused) {
  (void)unused;
  static const model_case cases[] = {
      {"models/lm.kv", 0, {{"vocab", "61"}, {"d", "64"}, {"ffn", "96"}, {"kv_heads", "2"}, {"layers", "2"}}},
      {"models/lm.kv", 0, {{"vocab", "61"}, {"d", "48"}, {"ffn", "40"}, {"separator", "7"}, {"layers", "1"}}},
      {"models/lm.kv", 0, {{"vocab", "61"}, {"d", "48"}, {"ffn", "40"}, {"window", "3"}, {"qk_norm", "true"}}},
      {"models/lm.kv", 0, {{"vocab", "61"}, {"d", "48"}, {"ffn", "40"}, {"separator", "7"}, {"window", "3"}}},
      {"models/gpt2.kv", 0, {{"vocab", "61"}, {"d", "48"}, {"heads", "2"}, {"layers", "1"}, {"ctx", "70"}}},
      {"models/baichuan_m1.kv",
       0,
       {{"vocab", "61"}, {"d", "48"}, {"heads", "4"}, {"layers", "2"}, {"window", "4"}, {"ffn", "40"}}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    print_message("%s %zu\n", cases[i].path, i);
    check_decode(&cases[i], 24);
    check_decode(&cases[i], 27);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_lm), cmocka_unit_test(test_small_models),
                                     cmocka_unit_test(test_decode)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
