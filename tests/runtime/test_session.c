/* Sessions: initial states, binding of symbols, execution, threads, memory. */
#include "runtime/runtime.h"
#include "runtime/base/cpu.h"
#include "tests/runtime/sample.h"

#include <setjmp.h>
#include <cmocka.h>

static kva_session *open_session(int threads, uint64_t seed, bool profile) {
  kva_session_options options = {.threads = threads, .seed = seed, .profile = profile};
  kva_session *s = NULL;
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_session_create(&sample_artifact, &options, diag, &s), KVA_OK);
  assert_int_equal(kva_diag_count(diag), 0);
  kva_diag_destroy(diag);
  return s;
}

static float *state_data(kva_session *s, const char *name) {
  kva_tensor t;
  assert_true(kva_session_state(s, name, &t));
  return t.data;
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

static void states_follow_their_initialisers(void **unused) {
  (void)unused;
  kva_session *s = open_session(1, 7, false);
  assert_true(state_data(s, "a")[0] == 3 && state_data(s, "b")[0] == -1);
  for (int i = 0; i < 3; i++) assert_true(state_data(s, "w.m")[i] == 0);
  assert_memory_equal(state_data(s, "table"), sample_table, sizeof sample_table);
  const float *first = state_data(s, "first"), *second = state_data(s, "second");
  for (int i = 0; i < 10; i++) {
    assert_true(second[i] > 0 && second[i] < 1);
    assert_true(first[i] == 1 - second[i]);
    assert_true(i == 0 || second[i] != second[i - 1]);
  }
  assert_int_equal((uintptr_t)first % 64, 0);
  kva_tensor t;
  assert_false(kva_session_state(s, "nobody", &t));
  assert_int_equal(kva_session_state_count(s), N_STATES);
  assert_string_equal(kva_session_state_desc(s, S_STEP, &t)->name, "step");
  assert_int_equal(t.dtype, KVA_I64);
  kva_session_destroy(s);
}

/* Values beyond int64 are its ends, and NaN is 0, as in casts. */
static void integers_are_clamped(void **unused) {
  (void)unused;
  static const double values[] = {7.9, -7.9, 1e30, -1e30, INFINITY, NAN};
  static const int64_t expected[] = {7, -7, INT64_MAX, INT64_MIN, INT64_MAX, 0};
  kva_state_desc states[N_STATES];
  kva_artifact a = sample_artifact;
  memcpy(states, sample_states, sizeof states);
  a.states = states;
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    states[S_STEP].init = KVA_STATE_INIT_CONSTANT;
    states[S_STEP].init_a = values[i];
    kva_session *s = NULL;
    kva_tensor step;
    assert_int_equal(kva_session_create(&a, NULL, NULL, &s), KVA_OK);
    assert_true(kva_session_state(s, "step", &step));
    assert_true(*(const int64_t *)step.data == expected[i]);
    kva_session_destroy(s);
  }
}

/* "w", which a program writes, is the session's own. */
static void read_only_states_may_stay_in_the_artifact(void **unused) {
  (void)unused;
  static const float w[3] = {1, 2, 3};
  kva_state_desc states[N_STATES];
  kva_artifact a = sample_artifact;
  memcpy(states, sample_states, sizeof states);
  states[S_W].init = KVA_STATE_INIT_DATA;
  states[S_W].data = w;
  a.states = states;
  for (int borrow = 0; borrow < 2; borrow++) {
    kva_session *s = NULL;
    assert_int_equal(kva_session_create(&a, &(kva_session_options){.borrow_states = borrow}, NULL, &s), KVA_OK);
    assert_int_equal((const void *)state_data(s, "table") == (const void *)sample_table, borrow);
    assert_memory_equal(state_data(s, "table"), sample_table, sizeof sample_table);
    assert_ptr_not_equal(state_data(s, "w"), w);
    assert_memory_equal(state_data(s, "w"), w, sizeof w);
    assert_true(state_data(s, "a")[0] == 3);
    kva_session_destroy(s);
  }
}

/* "b" is a copy of "a": y = a x + a, also after a caller has set "a", and from memory that it was lent before. */
static void copies_follow_what_a_caller_writes(void **unused) {
  (void)unused;
  kva_state_desc states[N_STATES];
  kva_artifact a = sample_artifact;
  memcpy(states, sample_states, sizeof states);
  states[S_B].init = KVA_STATE_INIT_COPY;
  states[S_B].of = S_A;
  states[S_B].role = KVA_ROLE_CACHE;
  a.states = states;
  kva_session *s = NULL;
  assert_int_equal(kva_session_create(&a, NULL, NULL, &s), KVA_OK);
  float x[1] = {5}, y[1];
  for (int value = 3; value < 6; value++) {
    kva_tensor in = sample_matrix(x, 1, 1), out = {.data = y};
    if (value > 3) state_data(s, "a")[0] = (float)value;
    assert_int_equal(kva_session_run(s, P_SCALE, &in, &out), KVA_OK);
    assert_true(y[0] == (float)(6 * value));
  }
  kva_session_destroy(s);
}

/* Statistics of one large state; and that its values depend on seed and name only. */
static void fill_large(const char *name, uint64_t seed, int threads, int32_t before, int32_t init, float *out,
                       int64_t n) {
  kva_state_desc states[3] = {sample_states[S_SECOND], sample_states[S_TABLE], sample_states[S_W]};
  states[before] = (kva_state_desc){.name = name,
                                    .dtype = KVA_F32,
                                    .rank = 1,
                                    .dims = {n},
                                    .bytes = 4 * n,
                                    .of = -1,
                                    .init = init,
                                    .init_a = init == KVA_STATE_INIT_NORMAL ? 0.02 : -1,
                                    .init_b = 3};
  kva_artifact a = sample_artifact;
  a.n_states = 3;
  a.states = states;
  a.n_programs = 0;
  kva_session *s;
  assert_int_equal(kva_session_create(&a, &(kva_session_options){.threads = threads, .seed = seed}, NULL, &s), KVA_OK);
  memcpy(out, state_data(s, name), (size_t)n * sizeof *out);
  kva_session_destroy(s);
}

static void normal_and_uniform_have_their_moments(void **unused) {
  (void)unused;
  enum { N = 100001 };
  float *x = malloc(4 * N), *y = malloc(4 * N);
  fill_large("big", 1, 1, 0, KVA_STATE_INIT_NORMAL, x, N);
  double mean = 0, square = 0, product = 0;
  int beyond = 0;
  for (int i = 0; i < N; i++) {
    mean += x[i] / N;
    square += (double)x[i] * x[i] / N;
    beyond += fabsf(x[i]) > 2 * 0.02f;
    if (i) product += (double)x[i] * x[i - 1] / N;
  }
  assert_true(fabs(mean) < 3e-4 && fabs(sqrt(square) - 0.02) < 2e-4);
  assert_true(fabs(product) < 6e-6);
  assert_true(fabs((double)beyond / N - 0.0455) < 0.003);
  fill_large("big", 1, 3, 1, KVA_STATE_INIT_NORMAL, y, N);
  assert_memory_equal(x, y, 4 * N);
  fill_large("big", 2, 1, 0, KVA_STATE_INIT_NORMAL, y, N);
  assert_true(x[0] != y[0] && x[N - 1] != y[N - 1]);
  fill_large("other", 1, 1, 0, KVA_STATE_INIT_NORMAL, y, N);
  assert_true(x[0] != y[0] && x[N - 1] != y[N - 1]);
  fill_large("big", 1, 1, 0, KVA_STATE_INIT_UNIFORM, y, N);
  mean = 0;
  for (int i = 0; i < N; i++) {
    assert_true(y[i] >= -1 && y[i] <= 3);
    mean += y[i] / N;
  }
  assert_true(fabs(mean - 1) < 0.015);
  free(x);
  free(y);
}

/* ---- execution --------------------------------------------------------------------------------------------------- */

static void scale_runs_and_rebinds(void **unused) {
  (void)unused;
  kva_session *s = open_session(2, 0, false);
  int program = kva_session_program(s, "scale");
  assert_int_equal(program, P_SCALE);
  assert_int_equal(kva_session_program(s, "nothing"), -1);
  assert_string_equal(kva_session_program_desc(s, program)->name, "scale");
  float x[6] = {1, 2, 3, 4, 5, 6}, y[6];
  for (int64_t rows = 1; rows <= 3; rows++) {
    kva_tensor in = sample_matrix(x, rows, 2), out = {.data = y};
    memset(y, 0, sizeof y);
    assert_int_equal(kva_session_run(s, program, &in, &out), KVA_OK);
    assert_int_equal(out.dtype, KVA_F32);
    assert_int_equal(out.rank, 2);
    assert_int_equal(out.dims[0], rows);
    for (int i = 0; i < 6; i++) assert_true(y[i] == (i < 2 * rows ? 3 * x[i] - 1 : 0));
  }
  state_data(s, "a")[0] = 10;
  kva_tensor in = sample_matrix(x, 2, 3), out = {0};
  assert_int_equal(kva_session_run(s, program, &in, &out), KVA_OK);
  assert_int_equal(out.dims[1], 3);
  assert_true(((float *)out.data)[5] == 59);
  in = sample_matrix(NULL, 0, 3);
  out = (kva_tensor){0};
  assert_int_equal(kva_session_run(s, program, &in, &out), KVA_OK);
  assert_int_equal(out.dims[0], 0);
  kva_session_destroy(s);
}

static void temporaries_copies_and_own_outputs(void **unused) {
  (void)unused;
  kva_session *s = open_session(2, 0, true);
  enum { ROWS = 300, COLUMNS = 70 };
  float *x = malloc(ROWS * COLUMNS * sizeof *x), grand;
  for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)(i % 11);
  kva_tensor in = sample_matrix(x, ROWS, COLUMNS), out[2] = {{0}, {.data = &grand}};
  for (int repeat = 0; repeat < 3; repeat++) {
    out[0].data = NULL;
    assert_int_equal(kva_session_run(s, P_TOTAL, &in, out), KVA_OK);
    double sum = 0;
    for (int r = 0; r < ROWS; r++) sum += ((float *)out[0].data)[r];
    assert_true(fabs(sum - grand) < 1e-6 * sum && sum > 100);
  }
  kva_memory_report memory;
  kva_session_memory(s, P_TOTAL, &memory);
  assert_int_equal(memory.inputs, 4 * ROWS * COLUMNS);
  assert_int_equal(memory.outputs, 4 * ROWS + 4);
  assert_true(memory.temps >= 4 * ROWS + 4 && memory.temps < 4 * ROWS + 256);
  assert_int_equal(memory.moments, 12);
  assert_int_equal(memory.params, 4 + 4 + 12 + 4 + 40 + 40);
  assert_int_equal(memory.other_state, 8 + 12);
  const double *seconds;
  const int64_t *calls;
  assert_int_equal(kva_session_profile(s, P_TOTAL, &seconds, &calls), COUNT(total_steps));
  for (int i = 0; i < COUNT(total_steps); i++) {
    assert_int_equal(calls[i], 3);
    assert_true(seconds[i] >= 0 && seconds[i] < 60);
  }
  free(x);
  kva_session_destroy(s);
}

static void sums_are_solved(void **unused) {
  (void)unused;
  kva_session *s = open_session(1, 0, false);
  float x[64] = {0}, n[4];
  kva_tensor in[3] = {sample_matrix(x, 2, 5), sample_matrix(x, 2, 12), {KVA_F32, 1, {6}, x}}, out = {.data = n};
  assert_int_equal(kva_session_run(s, P_PAIRS, in, &out), KVA_OK);
  assert_true(n[0] == 2 && n[1] == 5 && n[2] == 7 && n[3] == 3);
  kva_session_destroy(s);
}

static void bad_calls_say_what_is_wrong(void **unused) {
  (void)unused;
  kva_session *s = open_session(1, 0, false);
  float x[64] = {0}, n[4];
  const kva_tensor good[3] = {sample_matrix(x, 2, 5), sample_matrix(x, 2, 12), {KVA_F32, 1, {6}, x}};
  const struct {
    int input;
    kva_tensor tensor;
    const char *message;
  } cases[] = {
      {1, sample_matrix(x, 3, 12),
       "pairs: dimension 0 of input 'whole' must be B = 2, found 3 (symbol 'B' is 2 by dimension 0 of input 'past')"},
      {2, {KVA_F32, 1, {7}, x}, "pairs: the shapes of the inputs do not determine symbol 'H'; pin it when compiling"},
      {1, sample_matrix(x, 2, 4), "pairs: the shapes of the inputs do not determine symbol 'T'; pin it when compiling"},
      {0, {KVA_F32, 1, {5}, x}, "pairs: input 'past' must be float[B, P], found float[5]"},
      {0, {KVA_I32, 2, {2, 5}, x}, "pairs: input 'past' must be float[B, P], found int32[2, 5]"},
      {0, {KVA_F32, 2, {2, -5}, x}, "pairs: dimension 1 of input 'past' is negative: -5"},
      {0, {KVA_F32, 2, {2, 5}, NULL}, "pairs: input 'past' has no data"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    kva_tensor in[3] = {good[0], good[1], good[2]}, out = {.data = n};
    in[cases[i].input] = cases[i].tensor;
    assert_int_equal(kva_session_run(s, P_PAIRS, in, &out), KVA_INVALID);
    assert_string_equal(kva_session_error(s), cases[i].message);
  }
  kva_tensor out = {.data = n}, in[3] = {good[0], good[1], good[2]};
  assert_int_equal(kva_session_run(s, P_PAIRS, in, &out), KVA_OK);
  assert_string_equal(kva_session_error(s), "");
  assert_int_equal(kva_session_run(s, N_PROGRAMS, in, &out), KVA_INVALID);
  assert_non_null(strstr(kva_session_error(s), "does not exist"));
  kva_session_destroy(s);
}

/* A constant dimension has no symbol to blame. Sizes that overflow are refused before memory is asked for. */
static void constants_and_overflow(void **unused) {
  (void)unused;
  kva_session *s = open_session(1, 0, false);
  float x[8] = {0};
  kva_tensor in[2] = {sample_matrix(x, 2, 4), {KVA_F32, 1, {2}, x}}, out = {0};
  assert_int_equal(kva_session_run(s, P_EVAL, in, &out), KVA_INVALID);
  assert_string_equal(kva_session_error(s), "eval: dimension 1 of input 'x' must be 3, found 4");
  kva_tensor huge = sample_matrix(x, INT64_MAX / 2, 8);
  assert_int_equal(kva_session_run(s, P_SCALE, &huge, &out), KVA_INVALID);
  assert_non_null(strstr(kva_session_error(s), "overflows"));
  huge = sample_matrix(x, (int64_t)1 << 58, 1);
  assert_int_equal(kva_session_run(s, P_SCALE, &huge, &out), KVA_NO_MEMORY);
  kva_session_destroy(s);
}

/* An output may be a state, or name a buffer that another output names. */
static void outputs_may_alias(void **unused) {
  (void)unused;
  kva_program p = sample_programs[P_SCALE];
  p.n_outputs = 3;
  p.outputs = LIST(3, 3, 1);
  kva_artifact artifact = sample_artifact;
  artifact.n_programs = 1;
  artifact.programs = &p;
  kva_session *s;
  assert_int_equal(kva_session_create(&artifact, NULL, NULL, &s), KVA_OK);
  float x[2] = {1, 2}, y[2], again[2], a[1];
  kva_tensor in = sample_matrix(x, 1, 2), out[3] = {{.data = y}, {.data = again}, {.data = a}};
  assert_int_equal(kva_session_run(s, 0, &in, out), KVA_OK);
  assert_true(y[1] == 5 && again[1] == 5 && a[0] == 3 && out[2].rank == 1);
  out[2].data = NULL;
  assert_int_equal(kva_session_run(s, 0, &in, out), KVA_OK);
  assert_ptr_equal(out[2].data, state_data(s, "a"));
  kva_session_destroy(s);
}

static void code_for_another_cpu_is_refused(void **unused) {
  (void)unused;
  kva_artifact a = sample_artifact;
  a.codes = &(const kva_code){.format = KVA_CODE_FUNCTIONS, .needs = ~kva_cpu_features()};
  kva_diag *diag = kva_diag_create();
  kva_session *s;
  assert_int_equal(kva_session_create(&a, NULL, diag, &s), KVA_MISSING);
  assert_null(s);
  const char *text = kva_diag_message(diag, 0, NULL, NULL);
  assert_non_null(strstr(text, "code for c does not run on this machine, which has no "));
  kva_diag_destroy(diag);
}

static void threads_do_not_change_bits(void **unused) {
  (void)unused;
  enum { ROWS = 1001, COLUMNS = 97, BYTES = ROWS * COLUMNS * 4 };
  float *x = malloc(BYTES), *y[2] = {malloc(BYTES), malloc(BYTES)}, sums[2][ROWS], grand[2];
  for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)sin(i);
  for (int k = 0; k < 2; k++) {
    kva_session *s = open_session(k ? 3 : 1, 0, false);
    kva_tensor in = sample_matrix(x, ROWS, COLUMNS), out = {.data = y[k]};
    kva_tensor both[2] = {{.data = sums[k]}, {.data = &grand[k]}};
    assert_int_equal(kva_session_run(s, P_SCALE, &in, &out), KVA_OK);
    assert_int_equal(kva_session_run(s, P_TOTAL, &in, both), KVA_OK);
    kva_session_destroy(s);
  }
  assert_memory_equal(y[0], y[1], BYTES);
  assert_memory_equal(sums[0], sums[1], sizeof sums[0]);
  assert_true(grand[0] == grand[1] && sums[0][0] != 0);
  free(x);
  free(y[0]);
  free(y[1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(states_follow_their_initialisers),
      cmocka_unit_test(integers_are_clamped),
      cmocka_unit_test(read_only_states_may_stay_in_the_artifact),
      cmocka_unit_test(copies_follow_what_a_caller_writes),
      cmocka_unit_test(normal_and_uniform_have_their_moments),
      cmocka_unit_test(scale_runs_and_rebinds),
      cmocka_unit_test(temporaries_copies_and_own_outputs),
      cmocka_unit_test(sums_are_solved),
      cmocka_unit_test(bad_calls_say_what_is_wrong),
      cmocka_unit_test(constants_and_overflow),
      cmocka_unit_test(outputs_may_alias),
      cmocka_unit_test(code_for_another_cpu_is_refused),
      cmocka_unit_test(threads_do_not_change_bits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
