/* Steps that depend on data, on every device: sizes that a step binds, branches, loops, calls of the host. */
#include "tests/runtime/control_sample.h"

static kva_session *open_for(const kva_device_class *class) {
  static kva_artifact a; /* sessions borrow it */
  a = control_artifact_for(class);
  kva_diag *diag = kva_diag_create();
  kva_session *s = NULL;
  if (open_control(&a, class, diag, &s) != KVA_OK) kva_diag_print(diag, stderr);
  assert_non_null(s);
  kva_diag_destroy(diag);
  return s;
}

static void run(kva_session *s, const char *program, const kva_tensor *in, kva_tensor *out) {
  if (kva_session_run(s, kva_session_program(s, program), in, out) != KVA_OK) fail_msg("%s", kva_session_error(s));
}

static void expect(const kva_tensor *t, int64_t n, const float *values) {
  assert_int_equal(elements(t), n);
  for (int64_t i = 0; i < n; i++) assert_true(((const float *)t->data)[i] == values[i]);
}

/* Larger, smaller, empty and equal again: memory grows, places change. */
static void sizes_depend_on_data(void **state) {
  const kva_device_class *class = require(state);
  kva_session *s = open_for(class);
  static float rows[][6] = {{1, 0, 2, 0, 0, 3}, {0, 0, 0, 0, 0, 0}, {1, 2, 3, 4, 5, 6}, {0, 7, 0, 0, 0, 0}};
  static const float want[][6] = {{2, 4, 6}, {0}, {2, 4, 6, 8, 10, 12}, {14}};
  static const int64_t counts[] = {3, 0, 6, 1};
  for (int k = 0; k < 8; k++) {
    kva_tensor in = vector_of(rows[k % 4], 6), out[2] = {{.data = NULL}, {.data = NULL}};
    run(s, "nonzero", &in, out);
    expect(&out[0], counts[k % 4], want[k % 4]);
    assert_int_equal(*(const int64_t *)out[1].data, counts[k % 4]);
  }
  float mine[6] = {0}; /* the caller's memory, for the bound */
  kva_tensor in = vector_of(rows[0], 6), out[2] = {{.data = mine}, {.data = NULL}};
  run(s, "nonzero", &in, out);
  assert_ptr_equal(out[0].data, mine);
  expect(&out[0], 3, want[0]);
  in.dims[0] = 3; /* other inputs, other bound */
  out[0].data = out[1].data = NULL;
  run(s, "nonzero", &in, out);
  expect(&out[0], 2, want[0]);
  kva_session_destroy(s);
}

/* A symbol of a program's inputs is its own, although another program binds one of that name. */
static void inputs_have_their_own_symbols(void **state) {
  const kva_device_class *class = require(state);
  kva_session *s = open_for(class);
  static float x[] = {1, 0, 3, 0, 5};
  for (int64_t n = 5; n > 0; n -= 2) {
    kva_tensor in[2] = {vector_of(x, n), vector_of(x, 4)}, out[2] = {{.data = NULL}, {.data = NULL}};
    run(s, "double", in, out);
    expect(&out[0], n, (const float[]){2, 0, 6, 0, 10});
    out[0].data = NULL;
    run(s, "nonzero", in, out);
    expect(&out[0], (n + 1) / 2, (const float[]){2, 6, 10});
  }
  kva_session_destroy(s);
}

/* A bound that no memory holds is no error, as long as sizes stay small. */
static void bounds_are_wishes(void **state) {
  const kva_device_class *class = require(state);
  static kva_artifact a;
  static kva_program programs_[N_CONTROL];
  static kva_step_desc steps_[COUNT(nonzero_steps)];
  const kva_bind_desc huge = {.symbol = X_K, .bound = FORMULA(NUMBER(INT64_MAX / 8))};
  a = control_artifact_for(class);
  memcpy(programs_, control_programs, sizeof programs_);
  memcpy(steps_, nonzero_steps, sizeof steps_);
  steps_[1].desc = &huge;
  programs_[C_NONZERO].steps = steps_;
  a.programs = programs_;
  kva_session *s;
  assert_int_equal(open_control(&a, class, NULL, &s), KVA_OK);
  static float x[] = {0, 4};
  kva_tensor in = vector_of(x, 2), out[2] = {{.data = NULL}, {.data = NULL}};
  run(s, "nonzero", &in, out);
  expect(&out[0], 1, (const float[]){8});
  assert_string_equal(kva_session_error(s), "");
  kva_session_destroy(s);
}

static int64_t lie;

static void expect_bad_size(kva_session *s, int64_t value, const char *message) {
  static float x[4] = {1, 2, 3, 4};
  kva_tensor in = vector_of(x, 4), out[2] = {{.data = NULL}, {.data = NULL}};
  lie = value;
  host_functions[0].user = &lie;
  kva_status status = kva_session_run(s, kva_session_program(s, "nonzero"), &in, out);
  host_functions[0].user = NULL;
  assert_int_equal(status, KVA_INVALID);
  assert_string_equal(kva_session_error(s), message);
}

static void bad_sizes_are_errors(void **state) {
  kva_session *s = open_for(require(state));
  expect_bad_size(s, -1, "nonzero: step 1 (BIND): size 'K' is negative: -1");
  expect_bad_size(s, 5, "nonzero: step 1 (BIND): size 'K' is 5, more than its bound");
  static float x[2] = {1, 0};
  kva_tensor in = vector_of(x, 2), out[2] = {{.data = NULL}, {.data = NULL}};
  run(s, "nonzero", &in, out);
  expect(&out[0], 1, (const float[]){2});
  kva_session_destroy(s);
}

static void branches_may_differ_in_shape(void **state) {
  kva_session *s = open_for(require(state));
  static float x[] = {1, 2, 4};
  for (int k = 0; k < 6; k++) {
    bool c = k % 2;
    const kva_tensor in[] = {{.dtype = KVA_BOOL, .data = &c}, vector_of(x, 3)};
    kva_tensor out[2] = {{.data = NULL}, {.data = NULL}};
    run(s, "choose", in, out);
    expect(&out[0], c ? 3 : 1, c ? (const float[]){2, 4, 8} : (const float[]){14});
    expect(&out[1], 3, c ? (const float[]){2, 4, 8} : x);
  }
  kva_session_destroy(s);
}

static void loops_end_by_count_or_condition(void **state) {
  kva_session *s = open_for(require(state));
  static float v[] = {1, 0}, x[] = {3, 1};
  static const float rows[] = {4, 1, 14, 4, 30, 9};
  static const struct {
    int64_t count;
    bool cond;
    int64_t runs;
    float final[2];
  } cases[] = {{2, true, 2, {7, 2}},  {100, true, 3, {10, 3}}, {100, false, 0, {1, 0}},
               {-3, true, 0, {1, 0}}, {1, true, 1, {4, 1}},    {INT64_MAX, true, 3, {10, 3}}};
  for (size_t k = 0; k < 2 * sizeof cases / sizeof *cases; k++) {
    size_t i = k % (sizeof cases / sizeof *cases);
    int64_t count = cases[i].count;
    bool cond = cases[i].cond;
    const kva_tensor in[] = {{.dtype = KVA_I64, .data = &count},
                             {.dtype = KVA_BOOL, .data = &cond},
                             vector_of(v, 2),
                             vector_of(x, 2),
                             vector_of(x, 1)};
    kva_tensor out[2] = {{.data = NULL}, {.data = NULL}};
    run(s, "repeat", in, out);
    expect(&out[0], 2, cases[i].final);
    assert_int_equal(out[1].dims[0], cases[i].runs);
    expect(&out[1], 2 * cases[i].runs, rows);
  }
  kva_session_destroy(s);
}

static void rows_may_be_known_before(void **state) {
  kva_session *s = open_for(require(state));
  static float v[] = {1, 0}, x[] = {3, 1}, t[4];
  for (int64_t count = 0; count < 5; count++) {
    const kva_tensor in[] = {{.dtype = KVA_I64, .data = &count}, vector_of(v, 2), vector_of(x, 2), vector_of(t, 4)};
    kva_tensor out[2] = {{.data = NULL}, {.data = NULL}};
    kva_status status = kva_session_run(s, kva_session_program(s, "times"), in, out);
    assert_int_equal(status, count == 4 ? KVA_OK : KVA_INVALID);
    if (count < 4) assert_non_null(strstr(kva_session_error(s), "more or less often than its results say"));
    if (count == 4) expect(&out[1], 8, (const float[]){4, 1, 14, 4, 30, 9, 52, 16});
  }
  kva_session_destroy(s);
}

static void programs_nest(void **state) {
  kva_session *s = open_for(require(state));
  static float x[] = {1, 3};
  for (int64_t count = 0; count < 6; count++) {
    const kva_tensor in[] = {{.dtype = KVA_I64, .data = &count}, vector_of(x, 2)};
    kva_tensor out = {.data = NULL};
    run(s, "nest", in, &out);
    float factor = (float)(1 << (count + 1) / 2);
    expect(&out, 2, (const float[]){factor, 3 * factor});
  }
  kva_session_destroy(s);
}

static void internal_programs_are_not_shown(void **state) {
  kva_session *s = open_for(require(state));
  assert_int_equal(kva_session_program(s, "then"), -1);
  assert_int_equal(kva_session_run(s, C_THEN, NULL, NULL), KVA_INVALID);
  kva_session_destroy(s);
}

static void functions_must_be_given(void **state) {
  const kva_device_class *class = require(state);
  const kva_artifact a = control_artifact_for(class);
  kva_session *s;
  assert_int_equal(kva_session_create(&a, &(kva_session_options){.device = class->name}, NULL, &s), KVA_OK);
  static float x[2] = {1, 0};
  kva_tensor in = vector_of(x, 2), out[2] = {{.data = NULL}, {.data = NULL}};
  assert_int_equal(kva_session_run(s, C_NONZERO, &in, out), KVA_MISSING);
  assert_non_null(strstr(kva_session_error(s), "the program calls 'count_nonzero'"));
  kva_session_destroy(s);
}

/* ---- damaged artefacts ------------------------------------------------------------------------------------------- */

typedef struct control_copy {
  kva_artifact a;
  kva_program programs[N_CONTROL];
  kva_buffer_desc buffers[COUNT(repeat_buffers)];
  kva_step_desc nonzero[COUNT(nonzero_steps)], choose[COUNT(choose_steps)], repeat[COUNT(repeat_steps)];
  kva_bind_desc bind;
  kva_branch_desc branch;
  kva_loop_desc loop;
} control_copy;

static void make_copy(control_copy *c) {
  c->a = control_artifact_for(&kva_device_cpu);
  memcpy(c->programs, control_programs, sizeof c->programs);
  memcpy(c->buffers, repeat_buffers, sizeof c->buffers);
  memcpy(c->nonzero, nonzero_steps, sizeof c->nonzero);
  memcpy(c->choose, choose_steps, sizeof c->choose);
  memcpy(c->repeat, repeat_steps, sizeof c->repeat);
  c->bind = bind_k, c->branch = choice, c->loop = repetition;
  c->nonzero[1].desc = &c->bind, c->choose[0].desc = &c->branch, c->repeat[0].desc = &c->loop;
  c->programs[C_NONZERO].steps = c->nonzero;
  c->programs[C_CHOOSE].steps = c->choose;
  c->programs[C_REPEAT].steps = c->repeat;
  c->programs[C_REPEAT].buffers = c->buffers;
  c->a.programs = c->programs;
}

static void expect_refusal(const control_copy *c, const char *message) {
  kva_diag *diag = kva_diag_create();
  kva_session *s;
  assert_int_equal(open_control(&c->a, &kva_device_cpu, diag, &s), KVA_INVALID);
  assert_int_equal(kva_diag_errors(diag), 1);
  const char *text = kva_diag_message(diag, 0, NULL, NULL);
  if (!strstr(text, message)) fail_msg("expected '%s' in '%s'", message, text);
  kva_diag_destroy(diag);
}
#define SPOIL(field, value, message) \
  do {                               \
    control_copy c;                  \
    make_copy(&c);                   \
    c.field = value;                 \
    expect_refusal(&c, message);     \
  } while (0)

static void damaged_control_is_refused(void **unused) {
  (void)unused;
  const kva_step_desc circle[] = {HOST("is_even", 1, 0, 2), CONTROL(LOOP, &nesting, 1, 0, 1, 3)};
  SPOIL(nonzero[1].desc, NULL, "step 1 of 'nonzero' has no description");
  SPOIL(nonzero[1].args, LIST(0), "an argument of step 1 of 'nonzero' is of the wrong kind");
  SPOIL(bind.symbol, 4, "step 1 of 'nonzero' binds symbol 4 of 4");
  SPOIL(bind.symbol, X_N, "the size of input 0 of 'nonzero' is bound by a step");
  SPOIL(nonzero[0].args, LIST(2, 1), "step 0 of 'nonzero' uses a size before it is bound");
  SPOIL(bind.bound.words, ((const kva_formula_word[]){SYMBOL(X_K)}), "step 1 of 'nonzero' uses a size before");
  SPOIL(nonzero[2], nonzero_steps[1], "symbol 1 of 'nonzero' is bound twice");
  SPOIL(branch.then, C_CHOOSE, "step 0 of 'choose' runs program 1, which does not fit it");
  SPOIL(branch.orelse, N_CONTROL, "step 0 of 'choose' runs program 12");
  SPOIL(branch.then, C_EVEN, "step 0 of 'choose' runs program 10");
  SPOIL(choose[0].args, LIST(1, 1, 2, 4), "an argument of step 0 of 'choose'");
  SPOIL(branch.binds, LIST(X_C, 2, 0), "step 0 of 'choose' binds what it has not");
  SPOIL(branch.binds, LIST(X_C, 0, 1), "step 0 of 'choose' binds what it has not");
  SPOIL(branch.n_binds, 2, "step 0 of 'choose' binds what it has not");
  SPOIL(loop.body, C_NEST_BODY, "step 0 of 'repeat' runs program 9");
  SPOIL(loop.n_carried, 3, "an argument of step 0 of 'repeat'");
  SPOIL(loop.has_cond, false, "step 0 of 'repeat' runs program 8");
  SPOIL(loop.symbol, 9, "step 0 of 'repeat' binds symbol 9 of 4");
  SPOIL(buffers[0].dtype, KVA_I32, "an argument of step 0 of 'repeat'");
  SPOIL(programs[C_BODY].is_internal, false, "program 8 stands after one that only steps run");
  SPOIL(programs[C_THEN].outputs, LIST(1, 1), "step 0 of 'choose' runs program 6");
  SPOIL(programs[C_THEN].outputs, LIST(0, 2), "step 0 of 'choose' runs program 6");
  SPOIL(programs[C_THEN].n_symbols, 3, "step 0 of 'choose' runs program 6");
  SPOIL(programs[C_NEST_BODY].steps, circle, "programs run each other in a circle");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      ALL(sizes_depend_on_data),
      ALL(inputs_have_their_own_symbols),
      ALL(bad_sizes_are_errors),
      ALL(branches_may_differ_in_shape),
      ALL(loops_end_by_count_or_condition),
      ALL(rows_may_be_known_before),
      ALL(programs_nest),
      ALL(bounds_are_wishes),
      ALL(internal_programs_are_not_shown),
      ALL(functions_must_be_given),
      cmocka_unit_test(damaged_control_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
