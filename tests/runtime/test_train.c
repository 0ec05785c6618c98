/* Training: linear regression converges, runs resume bit for bit, failures name the step; schedules. */
#include "runtime/base/platform.h"
#include "tests/runtime/sample.h"

#include <setjmp.h>
#include <cmocka.h>

/* y = 2 x0 - x1 + 0.5 x2 + 3. `blow_up` > 0: infinite inputs from that step on. */
static kva_status fill_line(void *self, uint64_t seed, int64_t step, bool evaluation, int n, kva_tensor *tensors,
                            kva_diag *diag) {
  (void)diag;
  const int64_t *blow_up = self;
  assert_int_equal(n, 2);
  float *x = tensors[0].data, *y = tensors[1].data;
  for (int64_t i = 0; i < tensors[0].dims[0]; i++) {
    kva_philox r = kva_philox4x32((uint64_t)i, (uint64_t)step << 1 | evaluation, seed);
    for (int j = 0; j < 3; j++) x[3 * i + j] = (float)(2 * kva_uniform01(r.v[j]) - 1);
    y[i] = 2 * x[3 * i] - x[3 * i + 1] + 0.5f * x[3 * i + 2] + 3;
    if (*blow_up && step >= *blow_up && !evaluation) y[i] = INFINITY;
  }
  return KVA_OK;
}

typedef struct record {
  int steps, evaluations;
  int64_t last_step, stop_at;
  double loss, eval_loss, count, seconds, lr;
} record;

static bool note(void *user, const kva_train_event *event) {
  record *r = user;
  assert_string_equal(event->names[0], "loss");
  if (event->evaluation) {
    assert_int_equal(event->n, 1);
    r->evaluations++;
    r->eval_loss = event->values[0];
    assert_int_equal(event->step, r->last_step);
    return true;
  }
  assert_int_equal(event->n, 2);
  assert_string_equal(event->names[1], "count");
  assert_int_equal(event->step, r->last_step + 1);
  assert_true(event->seconds >= r->seconds);
  r->steps++;
  r->last_step = event->step;
  r->loss = event->values[0];
  r->count = event->values[1];
  r->seconds = event->seconds;
  r->lr = event->lr;
  return event->step != r->stop_at;
}

static kva_session *open_session(int threads) {
  kva_session *s;
  assert_int_equal(
      kva_session_create(&sample_artifact, &(kva_session_options){.threads = threads, .seed = 3}, NULL, &s), KVA_OK);
  return s;
}

static kva_train_options options_for(record *r) {
  return (kva_train_options){.steps = 200,
                             .batch = 32,
                             .eval_every = 60,
                             .eval_batches = 4,
                             .schedule = {.kind = KVA_SCHEDULE_WARMUP, .lr = 0.2, .warmup = 10},
                             .seed = 5,
                             .progress = note,
                             .user = r};
}

static void linear_regression_converges(void **unused) {
  (void)unused;
  kva_session *s = open_session(2);
  int64_t never = 0;
  kva_data_source line = {.name = "line", .fill = fill_line, .self = &never};
  record r = {0};
  kva_train_options options = options_for(&r);
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_train(s, &line, &options, diag), KVA_OK);
  assert_int_equal(kva_diag_count(diag), 0);
  assert_int_equal(r.steps, 200);
  assert_int_equal(r.evaluations, 4); /* at 60, 120, 180 and after the last step */
  assert_true(r.loss < 1e-6 && r.eval_loss < 1e-6 && r.count == 200 && r.lr == 0.2);
  kva_tensor w;
  assert_true(kva_session_state(s, "w", &w));
  const float expected[] = {2, -1, 0.5f};
  for (int i = 0; i < 3; i++) assert_true(fabsf(((float *)w.data)[i] - expected[i]) < 1e-3f);
  kva_diag_destroy(diag);
  kva_session_destroy(s);
}

static void stopping_and_resuming_gives_the_same_bits(void **unused) {
  (void)unused;
  int64_t never = 0;
  kva_data_source line = {.name = "line", .fill = fill_line, .self = &never};
  kva_session *whole = open_session(1), *parts = open_session(3);
  record a = {0}, b = {.stop_at = 70};
  kva_train_options options = options_for(&a);
  assert_int_equal(kva_train(whole, &line, &options, NULL), KVA_OK);
  options.user = &b;
  assert_int_equal(kva_train(parts, &line, &options, NULL), KVA_OK);
  assert_int_equal(b.last_step, 70);
  options.done = 70;
  b.stop_at = b.evaluations = 0;
  b.seconds = 0;
  assert_int_equal(kva_train(parts, &line, &options, NULL), KVA_OK);
  assert_int_equal(b.steps, 200);
  assert_int_equal(b.evaluations, 3);
  assert_true(a.loss == b.loss && a.eval_loss == b.eval_loss);
  kva_tensor wa, wb;
  assert_true(kva_session_state(whole, "w", &wa) && kva_session_state(parts, "w", &wb));
  assert_memory_equal(wa.data, wb.data, 12);
  kva_session_destroy(whole);
  kva_session_destroy(parts);
}

static void a_loss_that_is_not_finite_stops_the_run(void **unused) {
  (void)unused;
  int64_t at = 17;
  kva_data_source line = {.name = "line", .fill = fill_line, .self = &at};
  kva_session *s = open_session(1);
  record r = {0};
  kva_train_options options = options_for(&r);
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_train(s, &line, &options, diag), KVA_NOT_FINITE);
  assert_int_equal(r.last_step, 16);
  const char *message = kva_diag_message(diag, 0, NULL, NULL);
  assert_non_null(strstr(message, "the loss is infinite at step 17"));
  assert_non_null(strstr(message, "the first infinity is element 0 of input 'y', before any step"));
  kva_tensor w, step;
  assert_true(kva_session_state(s, "w", &w) && kva_session_state(s, "step", &step));
  for (int i = 0; i < 3; i++) assert_true(isfinite(((float *)w.data)[i])); /* the step changed nothing */
  assert_int_equal(*(int64_t *)step.data, 16);
  kva_diag_destroy(diag);
  kva_session_destroy(s);
}

static void expect_failure(const kva_artifact *a, const kva_train_options *options, const char *message) {
  kva_session *s;
  assert_int_equal(kva_session_create(a, NULL, NULL, &s), KVA_OK);
  int64_t never = 0;
  kva_data_source line = {.name = "line", .fill = fill_line, .self = &never};
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_train(s, &line, options, diag), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), message));
  kva_diag_destroy(diag);
  kva_session_destroy(s);
}

static void misfits_are_explained(void **unused) {
  (void)unused;
  kva_program programs[2] = {sample_programs[P_TRAIN], sample_programs[P_EVAL]};
  kva_artifact a = sample_artifact;
  a.programs = programs;
  a.n_programs = 1;
  kva_train_options options = {.steps = 1, .batch = 4, .eval_every = 1, .eval_batches = 1};
  expect_failure(&a, &options, "no program 'eval'");
  programs[0].n_inputs = 2;
  expect_failure(&a, &options, "the last input must be the learning rate, a floating-point scalar; found 'y'");
  programs[0] = sample_programs[P_TRAIN];
  kva_buffer_desc buffers[COUNT(train_buffers)];
  memcpy(buffers, train_buffers, sizeof buffers);
  buffers[1].dims[0] = (kva_formula)FORMULA(NUMBER(4)); /* so that N is not the first extent of all inputs */
  programs[0].buffers = buffers;
  programs[0].symbols = (const char *const[]){"N"};
  expect_failure(&a, &options, "depends on symbol 'N', which has no value; give one (N=64)");
  programs[0] = sample_programs[P_TRAIN];
  programs[0].outputs = LIST(3, 7);
  expect_failure(&a, &options, "outputs must be scalars");
  programs[0].output_roles = NULL;
  expect_failure(&a, &options, "no output to take the loss from");
  options.batch = 0;
  expect_failure(&a, &options, "at least one row");
}

/* Trains the sample whose first extent is called `symbol`, and expects inputs of so many rows. */
static void train_rows(const char *symbol, const kva_train_options *options, int64_t rows) {
  kva_program programs[1] = {sample_programs[P_TRAIN]};
  programs[0].symbols = (const char *const[]){symbol};
  kva_artifact a = sample_artifact;
  a.programs = programs;
  a.n_programs = 1;
  kva_session *s;
  assert_int_equal(kva_session_create(&a, NULL, NULL, &s), KVA_OK);
  int64_t never = 0;
  kva_data_source line = {.name = "line", .fill = fill_line, .self = &never};
  assert_int_equal(kva_train(s, &line, options, NULL), KVA_OK);
  kva_memory_report memory;
  kva_session_memory(s, 0, &memory);
  assert_int_equal(memory.inputs, rows * 12 + rows * 4 + 4);
  kva_session_destroy(s);
}

static void symbols_can_be_given(void **unused) {
  (void)unused;
  const kva_symbol_value n = {"N", 12};
  train_rows("N", &(kva_train_options){.steps = 3, .batch = 1, .n_symbols = 1, .symbols = &n, .schedule = {.lr = 0.1}},
             12);
}

/* ONNX files name the batch as they like. */
static void the_first_extent_of_all_inputs_is_the_batch(void **unused) {
  (void)unused;
  train_rows("batch_size", &(kva_train_options){.steps = 3, .batch = 6, .schedule = {.lr = 0.1}}, 6);
}

static void schedules(void **unused) {
  (void)unused;
  const struct {
    kva_schedule s;
    int64_t step;
    double lr;
  } cases[] = {
      {{KVA_SCHEDULE_CONSTANT, 0.5, 0, 100, 10}, 1, 0.5}, {{KVA_SCHEDULE_WARMUP, 2, 0, 100, 0}, 1, 0.02},
      {{KVA_SCHEDULE_WARMUP, 2, 0, 100, 0}, 100, 2},      {{KVA_SCHEDULE_WARMUP, 2, 0, 100, 0}, 5000, 2},
      {{KVA_SCHEDULE_WARMUP, 2, 0, 0, 0}, 1, 2},          {{KVA_SCHEDULE_COSINE, 2, 0.1, 10, 110}, 5, 1},
      {{KVA_SCHEDULE_COSINE, 2, 0.1, 10, 110}, 10, 2},    {{KVA_SCHEDULE_COSINE, 2, 0.1, 10, 110}, 60, 1.1},
      {{KVA_SCHEDULE_COSINE, 2, 0.1, 10, 110}, 110, 0.2}, {{KVA_SCHEDULE_COSINE, 2, 0.1, 10, 110}, 999, 0.2},
      {{KVA_SCHEDULE_LINEAR, 2, 0, 10, 110}, 35, 1.5},    {{KVA_SCHEDULE_LINEAR, 2, 0.5, 10, 110}, 85, 1.25},
      {{KVA_SCHEDULE_LINEAR, 2, 0, 10, 10}, 10, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_true(fabs(kva_schedule_at(&cases[i].s, cases[i].step) - cases[i].lr) < 1e-12);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(linear_regression_converges),
      cmocka_unit_test(stopping_and_resuming_gives_the_same_bits),
      cmocka_unit_test(a_loss_that_is_not_finite_stops_the_run),
      cmocka_unit_test(misfits_are_explained),
      cmocka_unit_test(symbols_can_be_given),
      cmocka_unit_test(the_first_extent_of_all_inputs_is_the_batch),
      cmocka_unit_test(schedules),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
