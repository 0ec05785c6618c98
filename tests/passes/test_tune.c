/* Fine-tuning on the graph: low-rank updates merge to the same outputs, names choose what trains, losses fit outputs.
 */
#include "tests/support/target.h"
#include "ops/ids.h"
#include "passes/tune.h"
#include "tools/driver/driver.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static kva_module *load_text(const char *text, kva_diag *diag) {
  kva_module *m = NULL;
  if (kva_load_text(text, "test", NULL, diag, &m)) {
    kva_diag_print(diag, stderr);
    fail_msg("does not load");
  }
  return m;
}

static kva_module *load_lm(kva_diag *diag) {
  kva_define defines[] = {{"preset", "small"}}, pins[] = {{"B", "2"}, {"T", "24"}};
  kva_load_options o = {.n_defines = 1, .defines = defines, .n_pins = 2, .pins = pins};
  kva_module *m = NULL;
  assert_int_equal(kva_load_model("models/lm.kv", &o, diag, &m), KVA_OK);
  return m;
}

typedef struct running {
  kva_compiled *compiled;
  kva_session *session;
} running;

static running start(kva_module *m, kva_diag *diag) {
  running r;
  if (kva_compile(m, &(kva_compile_options){.target = test_target(2, NULL)}, diag, &r.compiled) ||
      kva_session_create(r.compiled->artifact, &(kva_session_options){.threads = 1}, diag, &r.session)) {
    kva_diag_print(diag, stderr);
    fail_msg("does not compile");
  }
  return r;
}

static void stop(running *r) {
  kva_session_destroy(r->session);
  kva_compiled_destroy(r->compiled);
}

/* Output 0, with the number of its elements. */
static const float *output(running *r, const kva_tensor *in, int64_t *out_n) {
  static kva_tensor out[4];
  memset(out, 0, sizeof out);
  assert_int_equal(kva_session_run(r->session, 0, in, out), KVA_OK);
  *out_n = kva_tensor_bytes(&out[0]) / 4;
  return out[0].data;
}

static double largest_difference(const float *a, const float *b, int64_t n) {
  double worst = 0;
  for (int64_t i = 0; i < n; i++) worst = fmax(worst, fabs((double)a[i] - b[i]));
  return worst;
}

/* ---- low-rank updates -------------------------------------------------------------------------------------------- */

/* As training leaves them: none of the factors zero; entries about as after hundreds of steps at 1e-4. */
static void fill_factors(running *r) {
  for (int i = 0; i < kva_session_state_count(r->session); i++) {
    kva_tensor t;
    const char *name = kva_session_state_desc(r->session, i, &t)->name;
    if (!strstr(name, KVA_LORA_A) && !strstr(name, KVA_LORA_B)) continue;
    double width = strstr(name, KVA_LORA_A) ? 0.2 : 0.02;
    for (int64_t k = 0; k < kva_tensor_bytes(&t) / 4; k++)
      ((float *)t.data)[k] = (float)(width * (kva_uniform01(kva_philox4x32((uint64_t)k, (uint64_t)i, 7).v[0]) - 0.5));
  }
}

typedef struct live {
  kva_session *session;
  kva_tensor_data data[256];
  kva_tensor tensors[256];
  int n;
} live;

static const kva_tensor_data *find_live(void *user, const char *name) {
  live *l = user;
  kva_tensor *t = &l->tensors[l->n];
  if (!kva_session_state(l->session, name, t)) return NULL;
  l->data[l->n] = (kva_tensor_data){t->dtype, (uint32_t)t->rank, t->dims, t->data, kva_tensor_bytes(t), false, false};
  assert_true(l->n < 255);
  return &l->data[l->n++];
}

/* Runs `updated` with factors, then `plain` with them merged. */
static void check_merge(kva_module *updated, kva_module *plain, const kva_tensor *in, kva_diag *diag) {
  running first = start(updated, diag);
  int64_t n, before_n, used;
  float *before, *with;
  const float *y = output(&first, in, &n);
  before = malloc((size_t)n * 4);
  with = malloc((size_t)n * 4);
  assert_true(before && with);
  memcpy(before, y, (size_t)n * 4);
  fill_factors(&first);
  memcpy(with, output(&first, in, &n), (size_t)n * 4);
  assert_true(largest_difference(before, with, n) > 1e-2); /* the updates do something */

  live l = {.session = first.session};
  assert_int_equal(kva_set_weights(plain, find_live, &l, &used), KVA_OK);
  assert_true(used > 3);
  running second = start(plain, diag);
  const float *merged = output(&second, in, &before_n);
  assert_int_equal(n, before_n);
  double worst = largest_difference(with, merged, n);
  /* Relative to the largest output: rounding of float sums alone moves logits of 2 by 1.3e-6, however small the update.
   */
  double largest = 0;
  for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)with[i]));
  if (worst > 1e-6 * largest) fail_msg("merged weights differ by %g of %g", worst, largest);
  stop(&second);
  stop(&first);
  free(before);
  free(with);
}

static void test_lora_language_model(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_module *m = load_lm(diag);
  const char *const lora[] = {"attention.*.w[qv]", "swiglu.*.down"};
  kva_tune_options o = {.lora = {2, lora}, .lora_rank = 8, .lora_alpha = 16};
  assert_int_equal(kva_fine_tune(m, &(kva_pass_options){.tune = &o}), KVA_OK);
  int trained = 0;
  for (uint32_t i = 0; i < m->states.len; i++)
    trained += m->states.data[i]->kind == KVA_STATE_PARAM && !m->states.data[i]->frozen;
  assert_int_equal(trained, 2 * 3 * 2); /* two factors of three weights in two layers */
  int32_t tokens[48];
  for (int i = 0; i < 48; i++) tokens[i] = i * 37 % 8000;
  kva_tensor in = {.dtype = KVA_I32, .rank = 2, .dims = {2, 24}, .data = tokens};
  check_merge(m, load_lm(diag), &in, diag);
  kva_diag_destroy(diag);
}

static const char transposed[] = "module \"t\"\n"
                                 "state float[5, 7] \"w\" : param ~ normal(0.4)\n"
                                 "main (float[3, 7] x) => (float[3, 5] y) {\n"
                                 "  w = kv.state_read <state = \"w\"> ()\n"
                                 "  y = kv.matmul <transpose_b = true> (x, w)\n"
                                 "}\n";

static void test_lora_of_a_transposed_weight(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_module *m = load_text(transposed, diag);
  const char *const lora[] = {"w"};
  kva_tune_options o = {.lora = {1, lora}, .lora_rank = 2, .lora_alpha = 20};
  assert_int_equal(kva_fine_tune(m, &(kva_pass_options){.tune = &o}), KVA_OK);
  const kva_state *a = kva_module_find_state(m, "w.lora_a"), *b = kva_module_find_state(m, "w.lora_b");
  assert_int_equal(a->init, KVA_INIT_ZEROS); /* the factor next to x is the one that starts random */
  assert_int_equal(b->init, KVA_INIT_NORMAL);
  float x[21];
  for (int i = 0; i < 21; i++) x[i] = (float)(i % 5) - 2;
  kva_tensor in = {.dtype = KVA_F32, .rank = 2, .dims = {3, 7}, .data = x};
  check_merge(m, load_text(transposed, diag), &in, diag);
  kva_diag_destroy(diag);
}

/* The updates of a weight without weight decay have none either. */
static void test_lora_keeps_decay(void **state) {
  (void)state;
  static const char text[] = "module \"t\"\n"
                             "state float[2, 2] \"u\" : param ~ normal(0.4)\n"
                             "state float[2, 2] \"w\" : param ~ normal(0.4) nodecay\n"
                             "main (float[3, 2] x) => (float[3, 2] y) {\n"
                             "  u = kv.state_read <state = \"u\"> ()\n"
                             "  w = kv.state_read <state = \"w\"> ()\n"
                             "  y = kv.matmul (kv.matmul (x, u), w)\n"
                             "}\n";
  kva_diag *diag = kva_diag_create();
  kva_module *m = load_text(text, diag);
  const char *const lora[] = {"?"};
  kva_tune_options o = {.lora = {1, lora}, .lora_rank = 2, .lora_alpha = 2};
  assert_int_equal(kva_fine_tune(m, &(kva_pass_options){.tune = &o}), KVA_OK);
  assert_true(kva_module_find_state(m, "u.lora_a")->decay && kva_module_find_state(m, "u.lora_b")->decay);
  assert_false(kva_module_find_state(m, "w.lora_a")->decay || kva_module_find_state(m, "w.lora_b")->decay);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

/* The product, its transpose, a product from the left and an embedding share a weight. */
static const char shared[] = "module \"t\"\n"
                             "state float[6, 6] \"w\" : param ~ normal(0.4)\n"
                             "main (int64[5] ids) => (float[5, 6] y) {\n"
                             "  w = kv.state_read <state = \"w\"> ()\n"
                             "  x = kv.gather <axis = 0> (w, ids)\n"
                             "  t = kv.transpose <perm = [1, 0]> (w)\n"
                             "  h = kv.tanh (kv.matmul (x, w))\n"
                             "  z = kv.matmul <transpose_b = true> (w, kv.matmul (h, t))\n"
                             "  y = kv.matmul <transpose_a = true, transpose_b = true> (z, t)\n"
                             "}\n";

static void test_lora_of_a_shared_weight(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_module *m = load_text(shared, diag);
  const char *const lora[] = {"w"};
  kva_tune_options o = {.lora = {1, lora}, .lora_rank = 2, .lora_alpha = 20};
  assert_int_equal(kva_fine_tune(m, &(kva_pass_options){.tune = &o}), KVA_OK);
  int64_t ids[5] = {4, 0, 5, 0, 2};
  kva_tensor in = {.dtype = KVA_I64, .rank = 1, .dims = {5}, .data = ids};
  check_merge(m, load_text(shared, diag), &in, diag);
  kva_diag_destroy(diag);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static const char convolution[] =
    "<ir_version: 10, opset_import: [\"\" : 17]>\n"
    "net (float[1, 2, 4, 4] x) => (float[1, 3, 1, 1] y)\n"
    "<float[4, 2, 1, 1] \"body/w\" = {1, 2, 3, 4, 5, 6, 7, 8}, float[3, 4, 1, 1] \"head/w\" = {1, 0, 0, 0, 0, 1, 0, 0, "
    "0, 0, 1, 0}, float[3] \"head/b\" = {0.5, 0, -0.5}> {\n"
    "  h = Relu(Conv(x, \"body/w\"))\n"
    "  g = GlobalAveragePool(Conv(h, \"head/w\", \"head/b\"))\n"
    "  y = Softmax <axis = 1> (g)\n"
    "}\n";

static const char *message(const kva_diag *diag) {
  assert_true(kva_diag_count(diag) > 0);
  return kva_diag_message(diag, 0, NULL, NULL);
}

static void test_initialisers_train_by_name(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_module *m = load_text(convolution, diag);
  const char *const train[] = {"head*"}, *const freeze[] = {"*/b"};
  kva_tune_init init = {.pattern = "body/w", .kind = KVA_INIT_NORMAL, .he = true};
  kva_tune_options o = {.train = {1, train}, .freeze = {1, freeze}, .n_init = 1, .init = &init};
  assert_int_equal(kva_fine_tune(m, &(kva_pass_options){.tune = &o}), KVA_OK);
  assert_int_equal(m->states.len, 2); /* head/b stays a constant */
  const kva_state *head = kva_module_find_state(m, "head/w"), *body = kva_module_find_state(m, "body/w");
  assert_true(head && !head->frozen && head->init == KVA_INIT_DATA);
  assert_true(body && body->frozen && body->init == KVA_INIT_NORMAL);
  assert_float_equal(body->init_a, 1, 1e-12); /* sqrt(2 / 2) */

  kva_train_spec spec = {.optimizer = "sgd", .lr = 0.1, .schedule = "constant"};
  kva_loss_options cross_entropy = {"cross_entropy", KVA_I64, &spec};
  assert_int_equal(kva_fine_tune(m, &(kva_pass_options){.loss = &cross_entropy}), KVA_OK);
  const kva_function *loss = kva_module_find_function(m, "loss");
  const kva_type *labels = loss->graph->inputs.data[1]->type;
  assert_true(labels->dtype == KVA_I64 && labels->rank == 1);
  assert_string_equal(loss->output_names[1], "accuracy");
  assert_int_equal(kva_make_training(m, &(kva_pass_options){.control = &(kva_pass_control){.verify_each = true}}),
                   KVA_OK);
  assert_null(kva_module_find_state(m, "body/w.velocity"));
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

/* A loss alone trains tensors of the file; zeros that a node makes train if a pattern names them. */
static void test_zeros_train_by_name(void **state) {
  (void)state;
  static const char text[] = "<ir_version: 10, opset_import: [\"\" : 13]>\n"
                             "zeros (float[2, 3] x) => (float[2, 3] y) <float[3] w = {1, 2, 3}, int64[1] three = {3}>\n"
                             "{\n"
                             "  start = ConstantOfShape (three)\n"
                             "  bias = Constant <value = float[3] {4, 5, 6}> ()\n"
                             "  product = Mul (x, w)\n"
                             "  sum = Add (product, bias)\n"
                             "  y = Add (sum, start)\n"
                             "}\n";
  static const char *const all[] = {"*"};
  kva_train_spec spec = {.optimizer = "sgd", .lr = 0.1, .schedule = "constant"};
  kva_loss_options mse = {"mse", KVA_I64, &spec};
  for (uint32_t n = 0; n < 2; n++) {
    kva_diag *diag = kva_diag_create();
    kva_module *m = load_text(text, diag);
    kva_tune_options o = {.train = {n, all}};
    if (kva_fine_tune(m, &(kva_pass_options){.tune = &o, .loss = &mse})) fail_msg("%s", message(diag));
    assert_true(kva_module_find_state(m, "w") && kva_module_find_state(m, "bias"));
    assert_int_equal(kva_module_find_state(m, "start") != NULL, n);
    kva_module_destroy(m);
    kva_diag_destroy(diag);
  }
}

/* Data have the names of inputs, so two inputs of one name could not be fed. */
static void test_names_that_a_loss_needs(void **state) {
  (void)state;
  static const char text[] =
      "<ir_version: 10, opset_import: [\"\" : 13]>\n"
      "taken (float[2, 3] labels, float[2, 3] target) => (float[2, 3] y) <float[3] w = {1, 2, 3}>\n"
      "{\n"
      "  y = Mul (labels, w)\n"
      "}\n";
  static const struct {
    const char *loss, *said;
  } cases[] = {
      {"cross_entropy", "--loss adds an input 'labels', and the model has one of that name; rename it"},
      {"mse", "--loss adds an input 'target', and the model has one of that name; rename it"},
  };
  kva_train_spec spec = {.optimizer = "sgd", .lr = 0.1, .schedule = "constant"};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    kva_diag *diag = kva_diag_create();
    kva_module *m = load_text(text, diag);
    kva_loss_options loss = {cases[i].loss, KVA_I64, &spec};
    assert_int_equal(kva_fine_tune(m, &(kva_pass_options){.loss = &loss}), KVA_INVALID);
    assert_string_equal(message(diag), cases[i].said);
    kva_module_destroy(m);
    kva_diag_destroy(diag);
  }
}

static void test_patterns_without_match(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_module *m = load_text(convolution, diag);
  const char *const train[] = {"haed*"};
  kva_tune_options misspelt = {.train = {1, train}};
  assert_int_equal(kva_fine_tune(m, &(kva_pass_options){.tune = &misspelt}), KVA_INVALID);
  assert_string_equal(message(diag), "--train: no parameter's name matches 'haed*'; there are: head/w, head/b, body/w");
  kva_diag_clear(diag);
  const char *const lora[] = {"body/w"};
  kva_tune_options no_product = {.lora = {1, lora}, .lora_rank = 1};
  assert_int_equal(kva_fine_tune(m, &(kva_pass_options){.tune = &no_product}), KVA_INVALID);
  assert_string_equal(message(diag), "--lora: what it matches is the second operand of no matrix product");
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static const kva_tensor_data *wrong_shape(void *user, const char *name) {
  static const int64_t dims[] = {3, 4};
  static const float zeros[12];
  static const kva_tensor_data t = {KVA_F32, 2, dims, zeros, sizeof zeros, false, false};
  (void)user;
  return strcmp(name, "head/w") ? NULL : &t;
}

static void test_weights_of_another_shape(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_module *m = load_text(convolution, diag);
  int64_t used;
  assert_int_equal(kva_set_weights(m, wrong_shape, NULL, &used), KVA_INVALID);
  assert_string_equal(message(diag),
                      "weights: tensor 'head/w' is float[3, 4], the model's parameter float[3, 4, 1, 1]");
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

typedef struct other_type {
  kva_dtype dtype;
  double value;
} other_type;

static const char scaling[] =
    "model scaling (float[12] x) => (float[12] y) {\n  param float[12] w ~ ones\n  y = x * w\n}\n";

/* Parameter w in the type, all elements the same. */
static const kva_tensor_data *of_other_type(void *user, const char *name) {
  static const int64_t dims[] = {12};
  static double room[12];
  static kva_tensor_data t;
  const other_type *o = user;
  for (int64_t i = 0; i < 12; i++) kva_store_f64(o->dtype, room, i, o->value);
  t = (kva_tensor_data){
      .dtype = o->dtype, .rank = 1, .dims = dims, .data = room, .bytes = 12 * kva_dtype_bits(o->dtype) / 8};
  return strcmp(name, "w") ? NULL : &t;
}

static void test_weights_of_another_type(void **state) {
  (void)state;
  static const kva_dtype types[] = {KVA_BF16, KVA_F16, KVA_F64};
  kva_diag *diag = kva_diag_create();
  int64_t used;
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    kva_module *m = load_text(scaling, diag);
    assert_int_equal(kva_set_weights(m, of_other_type, &(other_type){types[i], -1.25}, &used), KVA_OK);
    assert_int_equal(used, 1);
    const kva_state *w = kva_module_find_state(m, "w");
    assert_int_equal(w->data->dtype, KVA_F32);
    assert_int_equal(w->data->bytes, 12 * sizeof(float));
    for (int k = 0; k < 12; k++) assert_true(((const float *)w->data->data)[k] == -1.25f);
    kva_module_destroy(m);
  }
  kva_module *m = load_text(scaling, diag);
  assert_int_equal(kva_set_weights(m, of_other_type, &(other_type){KVA_F64, 1e39}, &used), KVA_INVALID);
  assert_string_equal(message(diag),
                      "weights: tensor 'w' has the number 1e+39, which the model's type float cannot hold");
  kva_diag_clear(diag);
  assert_int_equal(kva_set_weights(m, of_other_type, &(other_type){KVA_F8E4M3FN, 1}, &used), KVA_INVALID);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

/* Branches and bodies of loops read weights of the graph around them. */
static void test_weights_of_branches(void **state) {
  (void)state;
  static const char text[] =
      "<ir_version: 10, opset_import: [\"\" : 17]>\n"
      "either (float[12] x, bool b) => (float[12] y) <float[12] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}>\n"
      "{\n"
      "  y = If (b) <then_branch = t () => (float[12] p) { p = Mul (x, w) },\n"
      "              else_branch = e () => (float[12] q) { q = Add (x, w) }>\n"
      "}\n";
  kva_diag *diag = kva_diag_create();
  kva_module *m = load_text(text, diag);
  int64_t used;
  int found = 0;
  assert_int_equal(kva_set_weights(m, of_other_type, &(other_type){KVA_F32, -1.25}, &used), KVA_OK);
  for (const kva_node *n = m->functions.data[0]->graph->first; n; n = n->next)
    for (uint32_t i = 0; i < n->n_graphs; i++)
      for (const kva_node *inner = n->graphs[i]->first; inner; inner = inner->next) {
        const kva_tensor_data *w = inner->n_results ? kva_constant_of(&inner->results[0]) : NULL;
        if (!w) continue;
        for (int k = 0; k < 12; k++) assert_true(((const float *)w->data)[k] == -1.25f);
        found++;
      }
  assert_int_equal(found, 2);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

/* A weight of double and its low-rank update, all of one element. */
static const kva_tensor_data *with_update(void *user, const char *name) {
  static const char *const names[] = {"w", "w" KVA_LORA_A, "w" KVA_LORA_B, "w" KVA_LORA_SCALE};
  static const int64_t dims[] = {1, 1};
  static kva_tensor_data all[4];
  for (int i = 0; i < 4; i++) {
    all[i] = (kva_tensor_data){.dtype = KVA_F64, .rank = 2, .dims = dims, .data = (const double *)user + i, .bytes = 8};
    if (!strcmp(name, names[i])) return &all[i];
  }
  return NULL;
}

/* Rounded once, and nothing becomes infinite. */
static void test_update_of_another_type(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  int64_t used;
  kva_module *m = load_text("model product (float16[1, 1] x) => (float16[1, 1] y) {\n"
                            "  param float16[1, 1] w ~ ones\n  y = x @ w\n}\n",
                            diag);
  double tie[] = {1 + 0x1p-11, 0x1p-10, 0x1p-10, 1}, large[] = {60000, 60000, 1, 1};
  assert_int_equal(kva_set_weights(m, with_update, tie, &used), KVA_OK);
  assert_true(kva_load_f64(KVA_F16, kva_module_find_state(m, "w")->data->data, 0) == 1 + 0x1p-10);
  assert_int_equal(kva_set_weights(m, with_update, large, &used), KVA_INVALID);
  assert_string_equal(message(diag),
                      "weights: tensor 'w' has the number 120000, which the model's type float16 cannot hold");
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_lora_language_model),        cmocka_unit_test(test_lora_of_a_transposed_weight),
      cmocka_unit_test(test_lora_keeps_decay),           cmocka_unit_test(test_lora_of_a_shared_weight),
      cmocka_unit_test(test_initialisers_train_by_name), cmocka_unit_test(test_zeros_train_by_name),
      cmocka_unit_test(test_names_that_a_loss_needs),    cmocka_unit_test(test_patterns_without_match),
      cmocka_unit_test(test_weights_of_another_shape),   cmocka_unit_test(test_weights_of_another_type),
      cmocka_unit_test(test_weights_of_branches),        cmocka_unit_test(test_update_of_another_type),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
