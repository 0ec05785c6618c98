/* A damaged artefact is refused with a message, whatever is damaged. */
#include "runtime/session.h"
#include "tests/runtime/sample.h"

#include <setjmp.h>
#include <cmocka.h>

/* A copy of the sample that may be spoilt. */
typedef struct copy {
  kva_artifact a;
  kva_state_desc states[N_STATES];
  kva_kernel_desc kernels[N_KERNELS];
  kva_program programs[N_PROGRAMS];
  kva_buffer_desc buffers[COUNT(total_buffers)]; /* of program "total" */
  kva_step_desc steps[COUNT(total_steps)];
} copy;

static void make_copy(copy *c) {
  c->a = sample_artifact;
  memcpy(c->states, sample_states, sizeof c->states);
  memcpy(c->kernels, sample_kernels, sizeof c->kernels);
  memcpy(c->programs, sample_programs, sizeof c->programs);
  memcpy(c->buffers, total_buffers, sizeof c->buffers);
  memcpy(c->steps, total_steps, sizeof c->steps);
  c->programs[P_TOTAL].buffers = c->buffers;
  c->programs[P_TOTAL].steps = c->steps;
  c->a.states = c->states;
  c->a.kernels = c->kernels;
  c->a.programs = c->programs;
}

static void expect(const copy *c, const char *message) {
  kva_diag *diag = kva_diag_create();
  kva_session *s;
  assert_int_equal(kva_session_create(&c->a, NULL, diag, &s), KVA_INVALID);
  assert_null(s);
  assert_int_equal(kva_diag_errors(diag), 1);
  const char *text = kva_diag_message(diag, 0, NULL, NULL);
  if (!strstr(text, message) || (!*message && *text)) fail_msg("expected '%s' in '%s'", message, text);
  kva_diag_destroy(diag);
}

#define SPOIL(field, value, message) \
  do {                               \
    copy c;                          \
    make_copy(&c);                   \
    c.field = value;                 \
    expect(&c, message);             \
  } while (0)

static void the_sample_is_sound(void **unused) {
  (void)unused;
  copy c;
  make_copy(&c);
  kva_session *s;
  assert_int_equal(kva_session_create(&c.a, NULL, NULL, &s), KVA_OK);
  kva_session_destroy(s);
  kva_session_destroy(NULL);
}

static void header(void **unused) {
  (void)unused;
  SPOIL(a.magic, 1, "no Kvasir artefact");
  SPOIL(a.abi_version, KVA_ABI_VERSION + 1, "build it again");
  SPOIL(a.n_states, -1, "lacks a table");
  SPOIL(a.kernels, NULL, "lacks a table");
  SPOIL(a.n_codes, 0, "lacks a table");
  SPOIL(a.codes, (&(const kva_code){.format = 9}), "its code 0 has format 9");
  SPOIL(a.codes, (&(const kva_code){.format = KVA_CODE_PTX}), "another architecture");
  SPOIL(a.codes, (&(const kva_code){.format = KVA_CODE_PTX, .arch = "sm_80"}), "its code 0 is missing");
}

static void alternatives(void **unused) {
  (void)unused;
  copy c, other;
  make_copy(&c);
  make_copy(&other);
  c.a.next = &other.a;
  other.a.n_kernels = -1;
  expect(&c, "lacks a table");
  make_copy(&other);
  other.a.next = &c.a;
  expect(&c, "has no end");
}

static void states(void **unused) {
  (void)unused;
  SPOIL(states[1].name, NULL, "state 1 has no name");
  SPOIL(states[S_A].dtype, 99, "state 'a' has type 99");
  SPOIL(states[S_A].dtype, KVA_STRING, "state 'a' has type 8");
  SPOIL(states[S_A].rank, 9, "state 'a' has rank 9");
  SPOIL(states[S_A].role, 4, "state 'a' has role 4");
  SPOIL(states[S_A].dims[0], -1, "state 'a' has 4 bytes");
  SPOIL(states[S_W].dims[0], INT64_MAX, "state 'w' has 12 bytes");
  SPOIL(states[S_W].bytes, 8, "state 'w' has 8 bytes");
  SPOIL(states[S_W].init, 77, "state 'w' has initialiser 77");
  SPOIL(states[S_TABLE].data, NULL, "has none");
  SPOIL(states[S_FIRST].of, N_STATES, "is initialised from state 9 of 9");
  SPOIL(states[S_FIRST].of, S_W, "a state of another size");
  SPOIL(states[S_FIRST].of, S_FIRST, "goes round in a circle");
  SPOIL(states[S_FIRST].init, KVA_STATE_INIT_COPY, "is a copy, and no cache");
}

static void buffers(void **unused) {
  (void)unused;
  SPOIL(buffers[1].kind, 5, "buffer 1 of 'total' has kind 5");
  SPOIL(buffers[1].dtype, 0, "buffer 1 of 'total' has type 0");
  SPOIL(buffers[1].rank, -1, "buffer 1 of 'total' has rank -1");
  SPOIL(buffers[0].dims[1].n, 0, "dim 1 of buffer 0 of 'total' is no formula");
  SPOIL(buffers[2].bytes.words, NULL, "the size of buffer 2 of 'total' is no formula");
  SPOIL(programs[P_TOTAL].n_symbols, 1, "is no formula");
  SPOIL(buffers[1].last_step, 4, "lives from step 0 to 4 of 4");
  SPOIL(buffers[2].first_step, 3 + 1, "lives from step 4 to 3 of 4");
  SPOIL(buffers[1].last_step, 1, "step 2 of 'total' uses buffer 1, which lives from step 0 to 1");
  SPOIL(buffers[1].kind, KVA_BUFFER_STATE, "buffer 1 of 'total' is state -1 of 9");
}

static void steps_and_signatures(void **unused) {
  (void)unused;
  SPOIL(steps[0].kind, KVA_STEP_WAIT + 1, "step 0 of 'total' has kind");
  SPOIL(steps[0].kind, KVA_STEP_CALL, "step 0 of 'total' has 2 arguments");
  SPOIL(steps[0].n_args, -1, "step 0 of 'total' has -1 arguments");
  SPOIL(steps[0].n_results, 9, "step 0 of 'total' has 9 results");
  SPOIL(steps[2].n_args, 1, "step 2 of 'total' has 1 arguments");
  SPOIL(steps[2].args, NULL, "step 2 of 'total' has 2 arguments");
  SPOIL(steps[3].args, LIST(4, 5), "step 3 of 'total' uses buffer 5 of 5");
  SPOIL(steps[0].kernel, N_KERNELS, "calls kernel 7 of 7");
  SPOIL(kernels[K_SUM].fn, NULL, "calls kernel 2 of 7");
  SPOIL(kernels[K_SUM].cooperating, 1025, "1025 blocks cooperate in step");
  SPOIL(steps[0].n_symbols, 1, "symbols of the kernel in step 0 of 'total' are damaged");
  SPOIL(steps[0].n_symbols, KVA_ABI_STEP_SYMBOLS + 1, "symbols of the kernel in step 0 of 'total' are damaged");
  SPOIL(steps[1].grid.n, 0, "the grid of step 1 of 'total' is no formula");
  SPOIL(programs[P_TOTAL].name, NULL, "program 1 has no name");
  SPOIL(programs[P_TOTAL].steps, NULL, "program 'total' lacks a table");
  SPOIL(programs[P_TOTAL].symbols, ((const char *const[]){"B", NULL}), "symbol 1 of 'total' has no name");
  SPOIL(programs[P_TOTAL].inputs, LIST(1), "input 0 of 'total' is buffer 1");
  SPOIL(programs[P_TOTAL].inputs, LIST(-1), "input 0 of 'total' is buffer -1");
  SPOIL(programs[P_TOTAL].outputs, LIST(3, 2), "output 1 of 'total' is buffer 2");
  SPOIL(programs[P_TOTAL].output_roles, LIST(0, 4), "output 1 of 'total' has role 4");
}

/* ---- exchange that goes on while steps run ----------------------------------------------------------------------- */

/* Steps 1 and 3 begin and end a sum over two processes of what step 0 makes; step 2 reads that beside. */
enum { X, A, SUM, B, Y, N_WAITING };
#define FLOAT .bytes = FORMULA(NUMBER(4))
static const kva_exchange_desc pair = {.parts = 2, .stride = 1}, single = {.parts = 1, .stride = 1};
static const kva_wait_desc waits_for_1 = {.start = 1}, waits_for_0 = {.start = 0};
static const kva_buffer_desc waiting_buffers[N_WAITING] = {[X] = {BUFFER("x", INPUT, KVA_F32, 0), FLOAT},
                                                           [A] = {TEMP(0, 3), .dtype = KVA_F32, FLOAT},
                                                           [SUM] = {TEMP(1, 4), .dtype = KVA_F32, FLOAT},
                                                           [B] = {TEMP(2, 4), .dtype = KVA_F32, FLOAT},
                                                           [Y] = {BUFFER("y", OUTPUT, KVA_F32, 0), FLOAT}};
static const kva_step_desc waiting_steps[] = {
    WRITES(1, "a", K_SCALE, FORMULA(NUMBER(1)), X, A),
    {.kind = KVA_STEP_CALL,
     .call = KVA_CALL_ALL_REDUCE,
     .n_args = 2,
     .n_results = 1,
     .wait = 3,
     .args = LIST(A, SUM),
     .desc = &pair},
    WRITES(1, "b", K_SCALE, FORMULA(NUMBER(1)), A, B),
    {.kind = KVA_STEP_WAIT, .n_args = 2, .n_results = 1, .args = LIST(A, SUM), .desc = &waits_for_1},
    WRITES(1, "y", K_SCALE, FORMULA(NUMBER(1)), SUM, B, Y),
};

typedef struct waiting {
  kva_artifact a;
  kva_program program;
  kva_buffer_desc buffers[N_WAITING];
  kva_step_desc steps[COUNT(waiting_steps)];
} waiting;

static const int32_t waiting_inputs[] = {X}, waiting_outputs[] = {Y};

static void make_waiting(waiting *w) {
  w->a = sample_artifact;
  memcpy(w->buffers, waiting_buffers, sizeof w->buffers);
  memcpy(w->steps, waiting_steps, sizeof w->steps);
  w->program = (kva_program){.name = "waits",
                             .n_buffers = N_WAITING,
                             .n_steps = COUNT(waiting_steps),
                             .n_inputs = 1,
                             .n_outputs = 1,
                             .buffers = w->buffers,
                             .steps = w->steps,
                             .inputs = waiting_inputs,
                             .outputs = waiting_outputs};
  w->a.programs = &w->program;
  w->a.n_programs = 1;
}

static void expect_waiting(const waiting *w, const char *message) {
  kva_diag *diag = kva_diag_create();
  kva_status status = kva_artifact_check(&w->a, diag);
  const char *text = kva_diag_count(diag) ? kva_diag_message(diag, 0, NULL, NULL) : "";
  if (!strstr(text, message) || (!*message && *text)) fail_msg("expected '%s' in '%s'", message, text);
  assert_int_equal(status, *message ? KVA_INVALID : KVA_OK);
  kva_diag_destroy(diag);
}

#define SPOIL_WAITING(field, value, message) \
  do {                                       \
    waiting w;                               \
    make_waiting(&w);                        \
    w.field = value;                         \
    expect_waiting(&w, message);             \
  } while (0)

static void waits(void **unused) {
  (void)unused;
  SPOIL_WAITING(a.model, "as it is", "");
  SPOIL_WAITING(steps[1].wait, 0, "step 3 of 'waits' waits for step 1, which does not start anything for it");
  SPOIL_WAITING(steps[1].wait, 2, "step 1 of 'waits' ends in step 2, which does not wait for it");
  SPOIL_WAITING(steps[1].wait, 9, "step 1 of 'waits' ends in step 9, which");
  SPOIL_WAITING(steps[1].wait, -1, "step 1 of 'waits' ends in step -1, which");
  SPOIL_WAITING(steps[0].wait, 3, "step 0 of 'waits' ends in step 3, which");
  SPOIL_WAITING(steps[1].desc, &single, "step 1 of 'waits' ends in step 3, which");
  SPOIL_WAITING(steps[3].desc, &waits_for_0, "step 1 of 'waits' ends in step 3, which");
  SPOIL_WAITING(steps[3].desc, NULL, "step 3 of 'waits' has no description");
  SPOIL_WAITING(steps[3].args, LIST(A, A), "step 1 of 'waits' ends in step 3, which");
  SPOIL_WAITING(steps[3].n_results, 0, "step 1 of 'waits' ends in step 3, which");
  SPOIL_WAITING(program.is_internal, 1, "step 1 of 'waits' ends in step 3, which");
  SPOIL_WAITING(buffers[A].last_step, 2, "step 3 of 'waits' uses buffer 1, which lives from step 0 to 2");
  SPOIL_WAITING(steps[2].args, LIST(B, A),
                "step 2 of 'waits' uses what step 1, which ends in step 3, still sends or gets");
  SPOIL_WAITING(steps[2].args, LIST(SUM, B), "step 2 of 'waits' uses what step 1");
  SPOIL_WAITING(steps[2].kind, KVA_STEP_BRANCH, "step 2 of 'waits'");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_sample_is_sound),
      cmocka_unit_test(header),
      cmocka_unit_test(alternatives),
      cmocka_unit_test(states),
      cmocka_unit_test(buffers),
      cmocka_unit_test(steps_and_signatures),
      cmocka_unit_test(waits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
