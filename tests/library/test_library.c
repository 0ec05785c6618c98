/* kvasir.h: models from files and from memory, runs, training steps, weights, DLPack, threads, messages. Nothing is
 * printed by any of it. */
#include "tools/library/library.h"

#include <pthread.h>
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

static const char line_model[] = "model line (float[B, 3] x) => (float[B, 2] y) {\n"
                                 "  param float[3, 2] w ~ normal(1)\n"
                                 "  param float[2] b ~ zeros\n"
                                 "  y = x @ w + b\n"
                                 "}\n"
                                 "train line (float[B, 2] target) {\n"
                                 "  d = y - target\n"
                                 "  loss = kv.reduce_mean <keepdims = false> (d * d)\n"
                                 "  metric worst = kv.reduce_max <keepdims = false> (kv.abs(d))\n"
                                 "  optimizer = AdamW <lr = 1e-2>\n"
                                 "  steps = 10\n"
                                 "  batch = 4\n"
                                 "}\n";

static const char twice_model[] = "model twice (float[B, T] x, float[T] scale) => (float[B, T] y, float[B] s) {\n"
                                  "  y = x * scale + x\n"
                                  "  s = kv.reduce_sum <axes = [1], keepdims = false> (y)\n"
                                  "}\n";

static const kvasir_compile_options uncached = {.cache = "off"};

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

static void print_failure(kvasir_status status, kvasir_messages *messages) {
  if (status != KVASIR_OK) print_error("%s\n", kvasir_messages_text(messages));
  kvasir_messages_destroy(messages);
}

#define assert_ok(call_with_messages)             \
  do {                                            \
    kvasir_messages *messages = NULL;             \
    kvasir_status status_ = (call_with_messages); \
    print_failure(status_, messages);             \
    assert_int_equal(status_, KVASIR_OK);         \
  } while (0)

/* The call fails with this status, and its messages have this text. */
#define assert_fails(expected, text, call_with_messages)                                                      \
  do {                                                                                                        \
    kvasir_messages *messages = NULL;                                                                         \
    assert_int_equal((call_with_messages), (expected));                                                       \
    if (!strstr(kvasir_messages_text(messages), (text))) print_error("%s\n", kvasir_messages_text(messages)); \
    assert_non_null(strstr(kvasir_messages_text(messages), (text)));                                          \
    kvasir_messages_destroy(messages);                                                                        \
  } while (0)

static kvasir_model *open_text(const char *text) {
  kvasir_model *model;
  assert_ok(kvasir_model_open_bytes(text, strlen(text), NULL, NULL, &model, &messages));
  return model;
}

static kvasir_session *session_of(const char *text, bool training) {
  kvasir_model *model = open_text(text);
  kvasir_program *program;
  kvasir_session *session;
  if (training)
    assert_ok(kvasir_compile_training(model, &uncached, NULL, &program, &messages));
  else
    assert_ok(kvasir_compile(model, &uncached, &program, &messages));
  const kvasir_session_options options = {.threads = 2, .seed = 7};
  assert_ok(kvasir_session_create(program, &options, &session, &messages));
  kvasir_model_destroy(model);
  kvasir_program_destroy(program);
  return session;
}

static kvasir_tensor floats(int32_t rank, int64_t d0, int64_t d1, float *data) {
  return (kvasir_tensor){.type = KVASIR_FLOAT, .rank = rank, .dims = {d0, d1}, .data = data};
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

static void test_inspect(void **state) {
  (void)state;
  kvasir_model *m = open_text(twice_model);
  assert_string_equal(kvasir_model_name(m), "twice");
  assert_int_equal(kvasir_model_input_count(m), 2);
  assert_int_equal(kvasir_model_output_count(m), 2);
  const kvasir_port *x = kvasir_model_input(m, 0), *s = kvasir_model_output(m, 1);
  assert_string_equal(x->name, "x");
  assert_int_equal(x->type, KVASIR_FLOAT);
  assert_int_equal(x->rank, 2);
  assert_int_equal(x->dims[0], -1);
  assert_string_equal(x->symbols[0], "B");
  assert_string_equal(s->name, "s");
  assert_int_equal(s->rank, 1);
  assert_null(kvasir_model_input(m, 2));
  assert_null(kvasir_model_output(m, 2));
  kvasir_model_destroy(m);
}

static void test_pins_and_defines(void **state) {
  (void)state;
  static const char text[] = "model m <n = 2> (float[B, n] x) => (float[B, n] y) { y = x + x }\n";
  const kvasir_setting defines[] = {{"n", "5"}}, pins[] = {{"B", "3"}}, wrong[] = {{"unknown", "3"}};
  kvasir_model_options o = {.n_defines = 1, .defines = defines, .n_pins = 1, .pins = pins};
  kvasir_model *m;
  assert_ok(kvasir_model_open_bytes(text, strlen(text), NULL, &o, &m, &messages));
  assert_int_equal(kvasir_model_input(m, 0)->dims[0], 3);
  assert_int_equal(kvasir_model_input(m, 0)->dims[1], 5);
  kvasir_model_destroy(m);
  o.defines = wrong;
  assert_fails(KVASIR_INVALID, "unknown", kvasir_model_open_bytes(text, strlen(text), NULL, &o, &m, &messages));
  assert_null(m);
  o.defines = NULL;
  assert_fails(KVASIR_INVALID, "announced", kvasir_model_open_bytes(text, strlen(text), NULL, &o, &m, &messages));
}

static void test_messages_have_places(void **state) {
  (void)state;
  static const char text[] = "model m (float[2] x) => (float[3] y) {\n  y = x + nothing\n}\n";
  kvasir_model *m;
  kvasir_messages *messages;
  assert_int_equal(kvasir_model_open_bytes(text, strlen(text), "my.kv", NULL, &m, &messages), KVASIR_INVALID);
  assert_true(kvasir_messages_count(messages) > 0);
  kvasir_message first = kvasir_messages_at(messages, 0);
  assert_int_equal(first.severity, KVASIR_ERROR);
  assert_string_equal(first.file, "my.kv");
  assert_int_equal(first.line, 2);
  assert_int_equal(first.column, 11);
  assert_non_null(strstr(first.text, "nothing"));
  assert_non_null(strstr(kvasir_messages_text(messages), "my.kv:2:11: error: "));
  assert_null(kvasir_messages_at(messages, 1000).text);
  kvasir_messages_destroy(messages);
  assert_int_equal(kvasir_model_open_bytes(text, strlen(text), "my.kv", NULL, &m, NULL), KVASIR_INVALID);
}

static void test_wrong_models(void **state) {
  (void)state;
  kvasir_model *m;
  assert_fails(KVASIR_IO, "no/such", kvasir_model_open("no/such.onnx", NULL, &m, &messages));
  assert_fails(KVASIR_INVALID, "null pointer", kvasir_model_open(NULL, NULL, &m, &messages));
  assert_fails(KVASIR_INVALID, "", kvasir_model_open_bytes(NULL, 0, NULL, NULL, &m, &messages));
  assert_fails(KVASIR_INVALID, "", kvasir_model_open_bytes("\x08\x07\xff", 3, NULL, NULL, &m, &messages));
  static const char external[] =
      "model m (float[2] x) => (float[2] y) { y = x + float[2] c [\"location\": \"README.md\"] }\n";
  assert_fails(KVASIR_INVALID, "memory",
               kvasir_model_open_bytes(external, strlen(external), NULL, NULL, &m, &messages));
}

static void test_wrong_choices(void **state) {
  (void)state;
  kvasir_model *m = open_text(twice_model);
  kvasir_program *p;
  const struct {
    kvasir_compile_options o;
    const char *says;
  } cases[] = {{{.device = "tpu"}, "tpu"},           {{.precision = "f7"}, "f7"},
               {{.target = "sm_80"}, "is a GPU"},    {{.target = "aarch64-linux-gnu"}, "another machine"},
               {{.target = "z80"}, "z80"},           {{.device = "ptxsim", .target = "x86-64-v3"}, "must be a GPU"},
               {{.gemm = "library"}, "is for GPUs"}, {{.device = "ptxsim", .target = "sm_1"}, "sm_1"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_fails(KVASIR_INVALID, cases[i].says, kvasir_compile(m, &cases[i].o, &p, &messages));
    assert_null(p);
  }
  assert_fails(KVASIR_INVALID, "null pointer", kvasir_compile(NULL, NULL, &p, &messages));
  assert_fails(KVASIR_INVALID, "no train block", kvasir_compile_training(m, &uncached, NULL, &p, &messages));
  kvasir_model_destroy(m);
}

/* A model may be compiled again, also after a failure, and for another device. */
static void test_compile_again(void **state) {
  (void)state;
  kvasir_model *m = open_text(twice_model);
  float x[] = {1, 2, 3, 4}, scale[] = {10, 100};
  const kvasir_tensor in[] = {floats(2, 2, 2, x), floats(1, 2, 0, scale)};
  const kvasir_compile_options choices[] = {
      uncached, {.cache = "off", .precision = "bf16"}, {.cache = "off", .target = "x86-64-v2"}, {.device = "ptxsim"}};
  for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
    kvasir_program *p;
    kvasir_session *s;
    kvasir_tensor out[2] = {{0}};
    assert_ok(kvasir_compile(m, &choices[i], &p, &messages));
    assert_ok(kvasir_session_create(p, NULL, &s, &messages));
    assert_ok(kvasir_session_run(s, in, 2, out, 2, &messages));
    assert_true(((const float *)out[0].data)[3] == 404);
    kvasir_program_destroy(p);
    kvasir_session_destroy(s);
  }
  kvasir_model_destroy(m);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static void test_run(void **state) {
  (void)state;
  kvasir_session *s = session_of(twice_model, false);
  float x[6] = {1, 2, 3, 4, 5, 6}, scale[3] = {1, 2, 3}, y[6], sums[2];
  const kvasir_tensor in[] = {floats(2, 2, 3, x), floats(1, 3, 0, scale)};
  kvasir_tensor out[2] = {{0}};
  assert_ok(kvasir_session_run(s, in, 2, out, 2, &messages));
  assert_int_equal(out[0].rank, 2);
  assert_int_equal(out[0].dims[1], 3);
  assert_true(((const float *)out[0].data)[5] == 24);
  assert_true(((const float *)out[1].data)[1] == 8 + 15 + 24);

  kvasir_tensor own[2];
  assert_ok(kvasir_session_shapes(s, in, 2, own, 2, &messages));
  assert_int_equal(own[0].dims[0], 2);
  assert_int_equal(kvasir_tensor_bytes(&own[1]), 8);
  own[0].data = y;
  own[1].data = sums;
  assert_ok(kvasir_session_run(s, in, 2, own, 2, &messages));
  assert_true(own[0].data == y && y[5] == 24 && sums[0] == 2 + 6 + 12);
  assert_int_equal(kvasir_session_run(s, in, 2, own, 2, NULL), KVASIR_OK);
  kvasir_session_destroy(s);
}

static void test_wrong_tensors(void **state) {
  (void)state;
  kvasir_session *s = session_of(twice_model, false);
  float x[8] = {0}, scale[3] = {0}, y[6];
  kvasir_tensor in[] = {floats(2, 2, 3, x), floats(1, 3, 0, scale)}, out[2] = {{0}}, saved = in[0];
#define run_fails(text) assert_fails(KVASIR_INVALID, text, kvasir_session_run(s, in, 2, out, 2, &messages))
  assert_fails(KVASIR_INVALID, "expected 2 inputs, found 1", kvasir_session_run(s, in, 1, out, 2, &messages));
  assert_fails(KVASIR_INVALID, "expected 2 outputs, found 3", kvasir_session_run(s, in, 2, out, 3, &messages));
  assert_fails(KVASIR_INVALID, "null pointer", kvasir_session_run(s, NULL, 2, out, 2, &messages));
  assert_fails(KVASIR_INVALID, "null pointer", kvasir_session_run(s, in, 2, NULL, 2, &messages));
  assert_fails(KVASIR_INVALID, "null pointer", kvasir_session_run(NULL, in, 2, out, 2, &messages));
  in[0].type = KVASIR_INT64;
  run_fails("'x' must be of type float, found int64");
  in[0].type = 99;
  run_fails("that no tensor has");
  in[0] = saved, in[0].rank = 9;
  run_fails("that no tensor has");
  in[0] = saved, in[0].dims[1] = -3;
  run_fails("that no tensor has");
  in[0] = saved, in[0].dims[1] = INT64_MAX / 4;
  run_fails("that no tensor has");
  in[0] = saved, in[0].dims[1] = 2;
  run_fails("must be");
  in[0] = saved, in[0].data = NULL;
  run_fails("'x' has no data");
  in[0].data = (char *)x + 2;
  run_fails("not aligned");
  in[0] = saved;
  out[0] = floats(2, 3, 2, y);
  run_fails("must be float[2, 3], found float[3, 2]");
  out[0] = floats(2, 2, 3, y), out[0].type = KVASIR_INT32;
  run_fails("must be float[2, 3], found int32[2, 3]");
  out[0] = floats(2, 2, 3, x + 1);
  run_fails("overlaps input 'x'");
  out[0] = floats(2, 2, 3, y), out[1] = floats(1, 2, 0, y + 5);
  run_fails("overlaps that for 'y'");
#undef run_fails
  kvasir_session_destroy(s);
}

/* An index of the data: clamped, or the run fails. */
static void test_check_indices(void **state) {
  (void)state;
  static const char text[] = "model m (float[3] x, int64[2] i) => (float[2] y) { y = kv.gather(x, i) }\n";
  const kvasir_compile_options choices[] = {uncached, {.cache = "off", .check_indices = 1}};
  float x[3] = {1, 2, 3};
  int64_t i[2] = {1, 7};
  const kvasir_tensor in[] = {floats(1, 3, 0, x), {.type = KVASIR_INT64, .rank = 1, .dims = {2}, .data = i}};
  kvasir_model *m = open_text(text);
  for (int k = 0; k < 2; k++) {
    kvasir_program *p;
    kvasir_session *s;
    kvasir_tensor out = {0};
    assert_ok(kvasir_compile(m, &choices[k], &p, &messages));
    assert_ok(kvasir_session_create(p, NULL, &s, &messages));
    if (k)
      assert_fails(KVASIR_INVALID, "7", kvasir_session_run(s, in, 2, &out, 1, &messages));
    else
      assert_ok(kvasir_session_run(s, in, 2, &out, 1, &messages));
    kvasir_session_destroy(s);
    kvasir_program_destroy(p);
  }
  kvasir_model_destroy(m);
}

static void test_devices(void **state) {
  (void)state;
  assert_ok(kvasir_device_check("cpu", &messages));
  assert_ok(kvasir_device_check(NULL, &messages));
  assert_ok(kvasir_device_check("ptxsim", &messages));
  assert_fails(KVASIR_INVALID, "abacus", kvasir_device_check("abacus", &messages));
}

/* A dimension that only the run finds. */
static void test_unknown_shape(void **state) {
  (void)state;
  static const char text[] = "model m (float[N] x) => (int64[1, K] places) { places = ai.onnx.NonZero(x) }\n";
  kvasir_session *s = session_of(text, false);
  float x[4] = {0, 1, 0, 2};
  const kvasir_tensor in = floats(1, 4, 0, x);
  kvasir_tensor out = {0};
  assert_ok(kvasir_session_shapes(s, &in, 1, &out, 1, &messages));
  assert_int_equal(out.rank, 2);
  assert_int_equal(out.dims[0], 1);
  assert_int_equal(out.dims[1], -1);
  int64_t room[4];
  out = (kvasir_tensor){.type = KVASIR_INT64, .rank = 2, .dims = {1, 2}, .data = room};
  assert_fails(KVASIR_INVALID, "known only after the run", kvasir_session_run(s, &in, 1, &out, 1, &messages));
  out.data = NULL;
  assert_ok(kvasir_session_run(s, &in, 1, &out, 1, &messages));
  assert_int_equal(out.dims[1], 2);
  assert_int_equal(((const int64_t *)out.data)[1], 3);
  kvasir_session_destroy(s);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

enum { ROWS = 8 };

/* A batch of y = x @ W, for which the loss can become zero. */
static void make_batch(unsigned seed, float *x, float *target) {
  static const float w[3][2] = {{1, -1}, {0.5f, 2}, {-2, 0.25f}};
  for (int i = 0; i < ROWS * 3; i++) x[i] = (float)(kva_uniform01(kva_philox4x32((uint64_t)i, seed, 1).v[0]) - 0.5);
  for (int r = 0; r < ROWS; r++)
    for (int c = 0; c < 2; c++)
      target[2 * r + c] = x[3 * r] * w[0][c] + x[3 * r + 1] * w[1][c] + x[3 * r + 2] * w[2][c];
}

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
               {{0}, "no train block"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    assert_fails(KVASIR_INVALID, wrong[i].says, kvasir_compile_training(m, &uncached, &wrong[i].t, &p, &messages));
  kvasir_model_destroy(m);
}

/* ---- DLPack ------------------------------------------------------------------------------------------------------ */

static void test_dlpack_in(void **state) {
  (void)state;
  float data[7] = {0, 1, 2, 3, 4, 5, 6};
  int64_t dims[] = {2, 3}, rows[] = {3, 1}, columns[] = {1, 2}, one[] = {1, 3}, any[] = {99, 1};
  kvasir_dl_tensor dl = {.data = data,
                         .device_type = 1,
                         .rank = 2,
                         .type_code = 2,
                         .type_bits = 32,
                         .type_lanes = 1,
                         .dims = dims,
                         .byte_offset = 4},
                   saved = dl;
  kvasir_tensor t;
  assert_ok(kvasir_tensor_from_dlpack(&dl, &t, &messages));
  assert_true(t.data == data + 1 && t.type == KVASIR_FLOAT && t.rank == 2 && t.dims[1] == 3);
  dl.strides = rows;
  assert_ok(kvasir_tensor_from_dlpack(&dl, &t, &messages));
  dl.dims = one, dl.strides = any;
  assert_ok(kvasir_tensor_from_dlpack(&dl, &t, &messages));
#define dl_fails(status, text) assert_fails(status, text, kvasir_tensor_from_dlpack(&dl, &t, &messages))
  dl = saved, dl.strides = columns;
  dl_fails(KVASIR_UNSUPPORTED, "strides");
  dl = saved, dl.device_type = 2;
  dl_fails(KVASIR_UNSUPPORTED, "device of type 2");
  dl = saved, dl.type_lanes = 4;
  dl_fails(KVASIR_UNSUPPORTED, "4 lanes");
  dl = saved, dl.type_bits = 31;
  dl_fails(KVASIR_UNSUPPORTED, "31 bits");
  dl = saved, dl.rank = 9;
  dl_fails(KVASIR_UNSUPPORTED, "9 dimensions");
  dl = saved, dims[0] = -2;
  dl_fails(KVASIR_INVALID, "negative");
  dims[0] = INT64_MAX;
  dl_fails(KVASIR_INVALID, "overflows");
#undef dl_fails
  assert_fails(KVASIR_INVALID, "null pointer", kvasir_tensor_from_dlpack(NULL, &t, &messages));
}

static void test_dlpack_out(void **state) {
  (void)state;
  float data[6] = {0, 1, 2, 3, 4, 5};
  kvasir_tensor t = floats(2, 2, 3, data), back;
  kvasir_dl_managed *managed;
  assert_ok(kvasir_tensor_to_dlpack(&t, &managed, &messages));
  assert_ok(kvasir_tensor_from_dlpack(&managed->tensor, &back, &messages));
  assert_true(back.data != data && (uintptr_t)back.data % 64 == 0);
  assert_int_equal(back.dims[0], 2);
  assert_memory_equal(back.data, data, sizeof data);
  managed->destroy(managed);
  for (int32_t type = KVASIR_FLOAT; type <= KVASIR_INT2; type++) {
    char room[64] = {0};
    bool packed = type == KVASIR_UINT4 || type == KVASIR_INT4 || type == KVASIR_FLOAT4E2M1 || type >= KVASIR_UINT2;
    t = (kvasir_tensor){.type = type, .rank = 1, .dims = {2}, .data = room};
    if (!kvasir_type_name(type)) continue;
    if (packed) {
      assert_fails(KVASIR_UNSUPPORTED, kvasir_type_name(type), kvasir_tensor_to_dlpack(&t, &managed, &messages));
      continue;
    }
    assert_ok(kvasir_tensor_to_dlpack(&t, &managed, &messages));
    assert_ok(kvasir_tensor_from_dlpack(&managed->tensor, &back, &messages));
    assert_int_equal(back.type, type);
    managed->destroy(managed);
  }
  t.type = 8;
  assert_fails(KVASIR_INVALID, "wrong type", kvasir_tensor_to_dlpack(&t, &managed, &messages));
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

typedef struct worker {
  kvasir_program *shared;
  pthread_barrier_t *all_compiled; /* so that the steps of all threads run at the same time */
  int index;
  kvasir_session *s, *own; /* of the shared program, and of one that the thread compiled */
  bool ok;
} worker;

static bool prepare(worker *w) {
  kvasir_model *m;
  kvasir_program *p;
  const kvasir_session_options options = {.threads = 1, .seed = 3};
  if (kvasir_session_create(w->shared, &options, &w->s, NULL)) return false;
  if (kvasir_model_open_bytes(line_model, strlen(line_model), NULL, NULL, &m, NULL)) return false;
  if (kvasir_compile_training(m, &uncached, NULL, &p, NULL)) return false;
  if (kvasir_session_create(p, &options, &w->own, NULL)) return false;
  kvasir_program_destroy(p);
  kvasir_model_destroy(m);
  return true;
}

static bool take_equal_steps(const worker *w) {
  float x[ROWS * 3], target[ROWS * 2];
  const kvasir_tensor in[] = {floats(2, ROWS, 3, x), floats(2, ROWS, 2, target)};
  double shared[8], alone[8];
  for (int i = 0; i < 500; i++) {
    make_batch((unsigned)(1000 * w->index + i), x, target);
    if (kvasir_session_train(w->s, in, 2, 0.05, shared, NULL)) return false;
    if (kvasir_session_train(w->own, in, 2, 0.05, alone, NULL)) return false;
    if (shared[0] != alone[0]) return false;
  }
  target[0] = NAN; /* messages, too */
  kvasir_messages *messages;
  bool refused = kvasir_session_train(w->s, in, 2, 0.05, shared, &messages) == KVASIR_NOT_FINITE;
  kvasir_messages_destroy(messages);
  return refused;
}

static void *run_worker(void *user) {
  worker *w = user;
  w->ok = prepare(w);
  pthread_barrier_wait(w->all_compiled);
  w->ok = w->ok && take_equal_steps(w);
  kvasir_session_destroy(w->s);
  kvasir_session_destroy(w->own);
  return NULL;
}

/* Four threads, each with a session of one program and with one of a program of its own. */
static void test_threads(void **state) {
  (void)state;
  enum { N = 4 };
  kvasir_model *m = open_text(line_model);
  kvasir_program *p;
  pthread_t threads[N];
  pthread_barrier_t all_compiled;
  worker workers[N];
  assert_int_equal(pthread_barrier_init(&all_compiled, NULL, N), 0);
  assert_ok(kvasir_compile_training(m, &uncached, NULL, &p, &messages));
  for (int i = 0; i < N; i++) {
    workers[i] = (worker){.shared = p, .all_compiled = &all_compiled, .index = i};
    assert_int_equal(pthread_create(&threads[i], NULL, run_worker, &workers[i]), 0);
  }
  kvasir_model_destroy(m);
  for (int i = 0; i < N; i++) pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&all_compiled);
  kvasir_program_destroy(p);
  for (int i = 0; i < N; i++) assert_true(workers[i].ok);
}

/* ---- failures of Kvasir itself ----------------------------------------------------------------------------------- */

static kva_status break_invariant(void *job, kva_diag *diag) {
  (void)job, (void)diag;
  KVA_ASSERT(!"an invariant");
}

static kva_status want_too_much(void *job, kva_diag *diag) {
  (void)diag;
  kva_arena_alloc(job, SIZE_MAX / 2);
  return KVA_OK;
}

static kva_status fail_silently(void *job, kva_diag *diag) {
  (void)job, (void)diag;
  return KVA_UNSUPPORTED;
}

static void test_own_failures(void **state) {
  (void)state;
  kva_arena *arena = kva_arena_create();
  assert_fails(KVASIR_INTERNAL, "an invariant", kva_library_call(break_invariant, NULL, &messages));
  assert_fails(KVASIR_NO_MEMORY, "out of memory", kva_library_call(want_too_much, arena, &messages));
  kva_arena_destroy(arena);
  assert_fails(KVASIR_UNSUPPORTED, "unsupported", kva_library_call(fail_silently, NULL, &messages));
  assert_int_equal(kva_library_call(break_invariant, NULL, NULL), KVASIR_INTERNAL);
  assert_int_equal(kvasir_messages_count(NULL), 0);
  assert_string_equal(kvasir_messages_text(NULL), "");
  kvasir_tensor t;
  assert_fails(KVASIR_INVALID, "null pointer", kvasir_model_open("m", NULL, NULL, &messages));
  assert_fails(KVASIR_INVALID, "null pointer", kvasir_model_open_bytes("m", 1, NULL, NULL, NULL, &messages));
  assert_fails(KVASIR_INVALID, "null pointer", kvasir_compile(NULL, NULL, NULL, &messages));
  assert_fails(KVASIR_INVALID, "null pointer", kvasir_compile_training(NULL, NULL, NULL, NULL, &messages));
  assert_fails(KVASIR_INVALID, "null pointer", kvasir_session_create(NULL, NULL, NULL, &messages));
  assert_fails(KVASIR_INVALID, "null pointer", kvasir_tensor_from_dlpack(NULL, NULL, &messages));
  assert_fails(KVASIR_INVALID, "null pointer", kvasir_tensor_to_dlpack(NULL, NULL, &messages));
  assert_fails(KVASIR_INVALID, "null pointer", kvasir_session_shapes(NULL, NULL, 0, NULL, 0, &messages));
  assert_fails(KVASIR_INVALID, "null pointer", kvasir_session_load(NULL, "m", &messages));
  assert_int_equal(kvasir_model_input_count(NULL) + kvasir_model_output_count(NULL), 0);
  assert_null(kvasir_model_input(NULL, 0));
  assert_null(kvasir_model_output(NULL, 0));
  assert_string_equal(kvasir_model_name(NULL), "");
  assert_int_equal(kvasir_program_train_input_count(NULL) + kvasir_program_value_count(NULL), 0);
  assert_null(kvasir_program_train_input(NULL, 0));
  assert_null(kvasir_program_value_name(NULL, 0));
  assert_true(kvasir_program_rate(NULL, 1) == 0);
  assert_null(kvasir_session_state(NULL, 0, NULL, &t));
  assert_int_equal(kvasir_tensor_bytes(NULL), -1);
  kvasir_model_destroy(NULL);
  kvasir_program_destroy(NULL);
  kvasir_session_destroy(NULL);
  kvasir_messages_destroy(NULL);
}

/* ---- nothing is printed ------------------------------------------------------------------------------------------ */

static int kept_out, kept_err;
static FILE *printed;
static char folder[] = "/tmp/kvasir-library-XXXXXX";

static int silence(void **state) {
  (void)state;
  printed = tmpfile();
  fflush(NULL);
  kept_out = dup(1);
  kept_err = dup(2);
  return printed && dup2(fileno(printed), 1) == 1 && dup2(fileno(printed), 2) == 2 ? 0 : -1;
}

/* The test fails if anything was printed, and shows it. */
static int listen(void **state) {
  (void)state;
  char text[4096];
  fflush(NULL);
  dup2(kept_out, 1);
  dup2(kept_err, 2);
  close(kept_out);
  close(kept_err);
  rewind(printed);
  size_t n = fread(text, 1, sizeof text - 1, printed);
  text[n] = 0;
  fclose(printed);
  if (n) fprintf(stderr, "printed: %s\n", text);
  return n ? -1 : 0;
}

static int make_folder(void **state) {
  *state = mkdtemp(folder);
  return *state ? 0 : -1;
}

static int remove_folder(void **state) {
  unlink(in_folder(*state, "weights.safetensors"));
  unlink(in_folder(*state, "line.onnx"));
  return rmdir(*state);
}

#define silent(test) cmocka_unit_test_setup_teardown(test, silence, listen)

int main(void) {
  const struct CMUnitTest tests[] = {
      silent(test_inspect),       silent(test_pins_and_defines), silent(test_messages_have_places),
      silent(test_wrong_models),  silent(test_wrong_choices),    silent(test_compile_again),
      silent(test_run),           silent(test_wrong_tensors),    silent(test_unknown_shape),
      silent(test_check_indices), silent(test_devices),          silent(test_train),
      silent(test_seed),          silent(test_wrong_steps),      silent(test_weights),
      silent(test_onnx_bytes),    silent(test_fine_tune_onnx),   silent(test_dlpack_in),
      silent(test_dlpack_out),    silent(test_threads),          silent(test_own_failures),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
