/* kvasir.h: models from files and from memory, runs, messages, failures. */
#include "tests/support/library_fixture.h"

#include <math.h>
#include <stdlib.h>

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
  static const char strings[] = "<ir_version: 8, opset_import: [\"\" : 17]>\n"
                                "g (string[N] x, int64[1] i) => (string[1] y) { y = Gather(x, i) }\n";
  assert_fails(KVASIR_UNSUPPORTED, "input 'x' is of strings",
               kvasir_model_open_bytes(strings, strlen(strings), NULL, NULL, &m, &messages));
  assert_null(m);
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
               {{.target = "sm_80"}, "is a GPU"},    {{.target = "aarch64-linux-gnu"}, "in this process"},
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

/* No CPU has both AMX and SSE4a. */
static void test_other_cpus(void **state) {
  (void)state;
  static const char *const cpus[] = {"sapphirerapids", "znver4"};
  kvasir_model *m = open_text(twice_model);
  int refused = 0;
  for (int i = 0; i < 2; i++) {
    const kvasir_compile_options o = {.cache = "off", .target = cpus[i]};
    kvasir_program *p;
    kvasir_messages *messages;
    kvasir_status status = kvasir_compile(m, &o, &p, &messages);
    if (status != KVASIR_OK) assert_int_equal(status, KVASIR_MISSING);
    if (status != KVASIR_OK) assert_non_null(strstr(kvasir_messages_text(messages), "does not run"));
    refused += status != KVASIR_OK;
    kvasir_messages_destroy(messages);
    kvasir_program_destroy(p);
  }
  assert_true(refused);
  kvasir_model_destroy(m);
}

/* A model may be compiled again, also after a failure, and for another device. */
static void test_compile_again(void **state) {
  (void)state;
  kvasir_model *m = open_text(twice_model);
  float x[] = {1, 2, 3, 4}, scale[] = {10, 100};
  const kvasir_tensor in[] = {floats(2, 2, 2, x), floats(1, 2, 0, scale)};
  const kvasir_compile_options choices[] = {
    uncached,
    {.cache = "off", .precision = "bf16"},
    {.cache = "off", .target = "x86-64-v2"},
    {.device = "ptxsim"},
#if defined __x86_64__
    {.cache = "off", .target = "x86_64-linux-gnu"},
#endif
  };
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
  run_fails("'x' must be float[");
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
  const int32_t types[] = {99, -1, KVASIR_FLOAT}, ranks[] = {2, 2, INT32_MAX};
  for (int i = 0; i < 3; i++) {
    out[0] = floats(2, 2, 3, y), out[0].type = types[i], out[0].rank = ranks[i];
    run_fails("output 'y' has a type");
  }
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

int main(void) {
  const struct CMUnitTest tests[] = {
      silent(test_inspect),
      silent(test_pins_and_defines),
      silent(test_messages_have_places),
      silent(test_wrong_models),
      silent(test_wrong_choices),
      silent(test_other_cpus),
      silent(test_compile_again),
      silent(test_run),
      silent(test_wrong_tensors),
      silent(test_check_indices),
      silent(test_devices),
      silent(test_unknown_shape),
      silent(test_own_failures),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
