/* kvasir.h: training steps, weights in and out, ONNX models that are fine-tuned. */
#include "tests/support/library_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- training ---------------------------------------------------------------------------------------------------- */

static void take_steps(kvasir_session *s, int first, int n, double *values) {
  float x[ROWS * 3], target[ROWS * 2];
  const kvasir_tensor in[] = {floats(2, ROWS, 3, x), floats(2, ROWS, 2, target)};
  for (int i = first; i < first + n; i++) {
    make_batch((unsigned)i, x, target);
    assert_ok(kvasir_session_train(s, in, 2, 0.05, values, &messages));
  }
}

static void test_train(void **state) {
  (void)state;
  kvasir_session *s = session_of(line_model, true);
  const kvasir_program *p = s->program;
  assert_int_equal(kvasir_program_train_input_count(p), 2);
  assert_string_equal(kvasir_program_train_input(p, 1)->name, "target");
  assert_string_equal(kvasir_program_train_input(p, 1)->symbols[0], "B");
  assert_null(kvasir_program_train_input(p, 2));
  assert_true(kvasir_program_value_count(p) >= 2);
  assert_string_equal(kvasir_program_value_name(p, 0), "loss");
  assert_string_equal(kvasir_program_value_name(p, 1), "worst");
  assert_true(fabs(kvasir_program_rate(p, 1) - 1e-2) < 1e-9);

  double first[8], last[8], evaluated[8];
  float x[ROWS * 3], target[ROWS * 2], y[ROWS * 2];
  const kvasir_tensor in[] = {floats(2, ROWS, 3, x), floats(2, ROWS, 2, target)};
  take_steps(s, 0, 1, first);
  take_steps(s, 1, 300, last);
  assert_true(first[0] > 0.1 && last[0] < 1e-3);
  make_batch(500, x, target);
  assert_ok(kvasir_session_evaluate(s, in, 2, evaluated, &messages));
  assert_true(evaluated[0] < 1e-3 && evaluated[1] < 0.1);

  /* The model itself runs with what was learned, at any number of rows. */
  kvasir_tensor out = floats(2, 5, 2, y);
  kvasir_tensor five = floats(2, 5, 3, x);
  assert_ok(kvasir_session_run(s, &five, 1, &out, 1, &messages));
  for (int i = 0; i < 10; i++) assert_true(fabsf(y[i] - target[i]) < 0.1f);
  kvasir_session_destroy(s);
}

/* The seed is that of dropout, too: every step draws anew, equal seeds draw the same. */
static void test_seed(void **state) {
  (void)state;
  static const char text[] = "model m (float[B, 3] x) => (float[B, 2] y) {\n"
                             "  param float[3, 2] w ~ zeros\n"
                             "  y = kv.dropout <ratio = 0.5> (x) @ (w + 1.0)\n"
                             "}\n"
                             "train m (float[B, 2] target) {\n"
                             "  loss = kv.reduce_mean <keepdims = false> ((y - target) * (y - target))\n"
                             "  optimizer = AdamW <lr = 1e-2>\n"
                             "}\n";
  const uint64_t seeds[] = {1, 1, 2};
  double loss[3][2];
  kvasir_model *m = open_text(text);
  kvasir_program *p;
  assert_ok(kvasir_compile_training(m, &uncached, NULL, &p, &messages));
  for (int i = 0; i < 3; i++) {
    const kvasir_session_options options = {.seed = seeds[i]};
    float x[ROWS * 3], target[ROWS * 2];
    const kvasir_tensor in[] = {floats(2, ROWS, 3, x), floats(2, ROWS, 2, target)};
    kvasir_session *s;
    make_batch(1, x, target);
    assert_ok(kvasir_session_create(p, &options, &s, &messages));
    for (int k = 0; k < 2; k++) {
      double values[8];
      assert_ok(kvasir_session_train(s, in, 2, 0, values, &messages));
      loss[i][k] = values[0];
    }
    kvasir_session_destroy(s);
  }
  assert_true(loss[0][0] == loss[1][0] && loss[0][1] == loss[1][1]);
  assert_true(loss[0][0] != loss[2][0]);
  assert_true(loss[0][0] != loss[0][1]);
  kvasir_program_destroy(p);
  kvasir_model_destroy(m);
}

static void test_wrong_steps(void **state) {
  (void)state;
  kvasir_session *s = session_of(line_model, true), *inference = session_of(twice_model, false);
  float x[ROWS * 3], target[ROWS * 2];
  kvasir_tensor in[] = {floats(2, ROWS, 3, x), floats(2, ROWS, 2, target)};
  make_batch(1, x, target);
  const double rates[] = {-1, NAN, INFINITY};
  for (int i = 0; i < 3; i++)
    assert_fails(KVASIR_INVALID, "learning rate", kvasir_session_train(s, in, 2, rates[i], NULL, &messages));
  assert_fails(KVASIR_INVALID, "expected 2 inputs", kvasir_session_train(s, in, 1, 0.1, NULL, &messages));
  assert_fails(KVASIR_INVALID, "inference alone", kvasir_session_train(inference, in, 2, 0.1, NULL, &messages));
  assert_fails(KVASIR_INVALID, "inference alone", kvasir_session_evaluate(inference, in, 2, NULL, &messages));
  assert_fails(KVASIR_INVALID, "null pointer", kvasir_session_train(NULL, in, 2, 0.1, NULL, &messages));
  assert_int_equal(kvasir_program_rate(inference->program, 1), 0);

  /* A loss that is not finite leaves every state as it was. */
  kvasir_tensor w;
  double before[8], after[8];
  assert_ok(kvasir_session_evaluate(s, in, 2, before, &messages));
  target[3] = NAN;
  assert_fails(KVASIR_NOT_FINITE, "step 1", kvasir_session_train(s, in, 2, 0.1, NULL, &messages));
  make_batch(1, x, target);
  assert_ok(kvasir_session_evaluate(s, in, 2, after, &messages));
  assert_true(before[0] == after[0]);
  assert_non_null(kvasir_session_state(s, 0, NULL, &w));
  kvasir_session_destroy(s);
  kvasir_session_destroy(inference);
}

static int find_state(kvasir_session *s, const char *name, kvasir_tensor *out) {
  for (size_t i = 0; i < kvasir_session_state_count(s); i++)
    if (!strcmp(kvasir_session_state(s, i, NULL, out), name)) return (int)i;
  return -1;
}

static char *in_folder(const char *folder, const char *name) {
  static char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

/* Training goes on from a file with the same bits; inference takes its weights. */
static void test_weights(void **state) {
  const char *path = in_folder(*state, "weights.safetensors");
  kvasir_session *a = session_of(line_model, true), *b = session_of(line_model, true);
  double values_a[8], values_b[8];
  kvasir_state_kind kind;
  kvasir_tensor w;
  int index = find_state(a, "w", &w);
  assert_true(index >= 0);
  assert_non_null(kvasir_session_state(a, (size_t)index, &kind, NULL));
  assert_int_equal(kind, KVASIR_PARAMETER);
  assert_null(kvasir_session_state(a, kvasir_session_state_count(a), NULL, NULL));
  take_steps(a, 0, 20, values_a);
  assert_ok(kvasir_session_save(a, path, &messages));
  assert_ok(kvasir_session_load(b, path, &messages));
  float nan[ROWS * 3] = {NAN}, target[ROWS * 2] = {0};
  const kvasir_tensor bad[] = {floats(2, ROWS, 3, nan), floats(2, ROWS, 2, target)};
  assert_fails(KVASIR_NOT_FINITE, "step 21", kvasir_session_train(b, bad, 2, 0.1, NULL, &messages));
  take_steps(a, 20, 20, values_a);
  take_steps(b, 20, 20, values_b);
  assert_true(values_a[0] == values_b[0]);

  kvasir_model *m;
  kvasir_program *p;
  kvasir_session *inference;
  const kvasir_model_options trained = {.weights = path};
  assert_ok(kvasir_session_save(a, path, &messages));
  assert_ok(kvasir_model_open_bytes(line_model, strlen(line_model), NULL, &trained, &m, &messages));
  assert_ok(kvasir_compile(m, &uncached, &p, &messages));
  assert_ok(kvasir_session_create(p, NULL, &inference, &messages));
  float x[3] = {1, 2, 3};
  const kvasir_tensor in = floats(2, 1, 3, x);
  kvasir_tensor ya = {0}, yi = {0};
  assert_ok(kvasir_session_run(a, &in, 1, &ya, 1, &messages));
  assert_ok(kvasir_session_run(inference, &in, 1, &yi, 1, &messages));
  assert_memory_equal(ya.data, yi.data, 8);

  kvasir_session *other = session_of(twice_model, false);
  assert_fails(KVASIR_INVALID, "none of its tensors", kvasir_session_load(other, path, &messages));
  assert_fails(KVASIR_INVALID, "no states to save", kvasir_session_save(other, path, &messages));
  assert_fails(KVASIR_IO, "no/such", kvasir_session_load(a, "no/such", &messages));
  assert_fails(KVASIR_IO, "no/such", kvasir_session_save(a, "no/such/file", &messages));
  assert_fails(KVASIR_INVALID, "null pointer", kvasir_session_save(a, NULL, &messages));
  kvasir_session *const sessions[] = {a, b, inference, other};
  for (int i = 0; i < 4; i++) kvasir_session_destroy(sessions[i]);
  kvasir_model_destroy(m);
  kvasir_program_destroy(p);
}

/* ---- ONNX -------------------------------------------------------------------------------------------------------- */

/* Weights of an exported model: 0.1, 0.2, ... */
static const void *ramp(void *user, const kva_state *s) {
  float *data = user;
  (void)s;
  for (int i = 0; i < 64; i++) data[i] = (float)(i + 1) / 10;
  return data;
}

static const char *export_line(const char *folder, bool fixed_batch) {
  static const kva_define pin = {"B", "1"};
  const char *path = in_folder(folder, "line.onnx");
  kva_diag *diag = kva_diag_create();
  kva_module *m;
  float data[64];
  const kva_load_options o = {.n_pins = fixed_batch, .pins = &pin};
  assert_int_equal(kva_load_text(line_model, "line.kv", &o, diag, &m), KVA_OK);
  assert_int_equal(kva_export_onnx(m, path, ramp, data, diag), KVA_OK);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  return path;
}

static void test_onnx_bytes(void **state) {
  const char *path = export_line(*state, false);
  kva_file file;
  assert_int_equal(kva_file_map(path, NULL, &file), KVA_OK);
  char *bytes = malloc(file.size);
  memcpy(bytes, file.data, file.size);
  kvasir_model *models[2];
  float y[2][2];
  assert_ok(kvasir_model_open(path, NULL, &models[0], &messages));
  assert_ok(kvasir_model_open_bytes(bytes, file.size, "bytes", NULL, &models[1], &messages));
  for (int i = 0; i < 2; i++) {
    kvasir_program *p;
    kvasir_session *s;
    float x[3] = {1, 2, 3};
    const kvasir_tensor in = floats(2, 1, 3, x);
    kvasir_tensor out = floats(2, 1, 2, y[i]);
    assert_ok(kvasir_compile(models[i], &uncached, &p, &messages));
    kvasir_model_destroy(models[i]);
    assert_ok(kvasir_session_create(p, NULL, &s, &messages));
    kvasir_program_destroy(p);
    assert_ok(kvasir_session_run(s, &in, 1, &out, 1, &messages));
    kvasir_session_destroy(s);
  }
  assert_true(fabsf(y[0][0] - (0.1f + 0.6f + 1.5f + 0.1f)) < 1e-5f);
  assert_memory_equal(y[0], y[1], sizeof y[0]);
  free(bytes);
  kva_file_unmap(&file);
}

static void test_fine_tune_onnx(void **state) {
  const char *path = export_line(*state, true);
  const kvasir_model_options any_batch = {.free_batch = 1};
  static const char *const every[] = {"*"}, *const only_b[] = {"b"};
  const kvasir_training all = {.loss = "mse", .n_train = 1, .train = every},
                        part = {.loss = "mse", .n_train = 1, .train = only_b};
  kvasir_model *m;
  kvasir_program *p;
  kvasir_session *s;
  assert_ok(kvasir_model_open(path, &any_batch, &m, &messages));
  assert_string_equal(kvasir_model_input(m, 0)->symbols[0], "B");
  assert_ok(kvasir_compile_training(m, &uncached, &all, &p, &messages));
  assert_string_equal(kvasir_program_train_input(p, 1)->name, "target");
  assert_ok(kvasir_session_create(p, NULL, &s, &messages));
  double first[8], last[8];
  take_steps(s, 0, 1, first);
  take_steps(s, 1, 200, last);
  assert_true(last[0] < first[0] / 10);
  kvasir_session_destroy(s);
  kvasir_program_destroy(p);

  kvasir_tensor b, w;
  assert_ok(kvasir_compile_training(m, &uncached, &part, &p, &messages));
  assert_ok(kvasir_session_create(p, NULL, &s, &messages));
  take_steps(s, 0, 1, first);
  assert_true(find_state(s, "b", &b) >= 0);
  assert_true(((const float *)b.data)[0] != 0.1f);
  assert_int_equal(find_state(s, "w", &w), -1);
  kvasir_session_destroy(s);
  kvasir_program_destroy(p);

  const struct {
    kvasir_training t;
    const char *says;
  } wrong[] = {{{.loss = "hinge"}, "hinge"},
               {{.loss = "mse", .optimizer = "none"}, "none"},
               {{.loss = "mse", .weight_decay = NAN}, "weight_decay"},
               {{.loss = "mse", .lora_rank = -1}, "lora_rank"},
               {{.loss = "mse", .n_train = 1}, "announced"},
               {{.loss = "mse", .n_train = 1000, .train = only_b}, "at most 64"},
               {{.loss = "mse", .n_freeze = 1, .freeze = &path}, "line.onnx"},
               {{.optimizer = "adamw"}, "go with a loss"},
               {{.loss = "mse", .lora_rank = 2}, "low-rank"},
               {{0}, "no train block"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    assert_fails(KVASIR_INVALID, wrong[i].says, kvasir_compile_training(m, &uncached, &wrong[i].t, &p, &messages));
  kvasir_model_destroy(m);
}

/* ---- a folder for files ------------------------------------------------------------------------------------------ */

static char folder[] = "/tmp/kvasir-library-XXXXXX";

static int make_folder(void **state) {
  *state = mkdtemp(folder);
  return *state ? 0 : -1;
}

static int remove_folder(void **state) {
  unlink(in_folder(*state, "weights.safetensors"));
  unlink(in_folder(*state, "line.onnx"));
  return rmdir(*state);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      silent(test_train),   silent(test_seed),       silent(test_wrong_steps),
      silent(test_weights), silent(test_onnx_bytes), silent(test_fine_tune_onnx),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
