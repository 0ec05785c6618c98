/* An artefact written by hand whose sizes and steps depend on data. All work is done by functions of the host, so that
 * it runs on every device.
 *
 *   nonzero (x float[N]) -> y float[K] = 2 * the elements that are not 0, n int64[] = K <= N
 *   choose  (c bool[], x float[N]) -> z float[C]: 2 * x if c, else 2 * [sum of x]; w float[N]: 2 * x if c, else x
 *   repeat  (count int64[], cond bool[], v float[2], x float[2], t float[N]) -> final float[2], rows float[R, 2]
 *           while i < count and cond: v = v + x, row = (i + 1) * v, cond = v[0] < 10
 *   times   (count int64[], v float[2], x float[2], t float[N]) -> final, rows float[N, 2]: the same, without cond
 *   double  (x float[K], t float[N]) -> y float[K] = 2 * x: its own K, not the one that nonzero binds
 *   nest    (count int64[], x float[N]) -> final float[N]: x doubled in every even iteration */
#ifndef KVA_TESTS_RUNTIME_CONTROL_SAMPLE_H
#define KVA_TESTS_RUNTIME_CONTROL_SAMPLE_H

#include "tests/runtime/device_sample.h"

/* ---- functions --------------------------------------------------------------------------------------------------- */

static inline int64_t elements(const kva_tensor *t) {
  int64_t n = 1;
  for (int32_t d = 0; d < t->rank; d++) n *= t->dims[d];
  return n;
}

/* x -> n */
static inline kva_status count_nonzero(void *user, int n_args, const kva_tensor *a) {
  const float *x = a[0].data;
  int64_t n = 0;
  for (int64_t i = 0; i < elements(&a[0]); i++) n += x[i] != 0;
  *(int64_t *)a[1].data = user ? *(const int64_t *)user : n;
  return n_args == 2 ? KVA_OK : KVA_INVALID;
}
/* x -> y */
static inline kva_status compact(void *user, int n_args, const kva_tensor *a) {
  const float *x = a[0].data;
  float *y = a[1].data;
  (void)user;
  for (int64_t i = 0, n = 0; i < elements(&a[0]); i++)
    if (x[i] != 0 && n < elements(&a[1])) y[n++] = x[i];
  return n_args == 2 ? KVA_OK : KVA_INVALID;
}
static inline kva_status twice(void *user, int n_args, const kva_tensor *a) {
  (void)user;
  for (int64_t i = 0; i < elements(&a[0]); i++) ((float *)a[1].data)[i] = 2 * ((const float *)a[0].data)[i];
  return n_args == 2 && elements(&a[0]) == elements(&a[1]) ? KVA_OK : KVA_INVALID;
}
static inline kva_status total(void *user, int n_args, const kva_tensor *a) {
  float sum = 0;
  (void)user;
  for (int64_t i = 0; i < elements(&a[0]); i++) sum += ((const float *)a[0].data)[i];
  *(float *)a[1].data = sum;
  return n_args == 2 ? KVA_OK : KVA_INVALID;
}
/* i, v, x -> go_on, v, row */
static inline kva_status advance(void *user, int n_args, const kva_tensor *a) {
  const float *v = a[1].data, *x = a[2].data;
  float *next = a[4].data, *row = a[5].data;
  (void)user;
  for (int k = 0; k < 2; k++) {
    next[k] = v[k] + x[k];
    row[k] = next[k] * (float)(*(const int64_t *)a[0].data + 1);
  }
  *(bool *)a[3].data = next[0] < 10;
  return n_args == 6 ? KVA_OK : KVA_INVALID;
}
/* i -> is it even */
static inline kva_status is_even(void *user, int n_args, const kva_tensor *a) {
  (void)user;
  *(bool *)a[1].data = *(const int64_t *)a[0].data % 2 == 0;
  return n_args == 2 ? KVA_OK : KVA_INVALID;
}

/* `user` of the first is what it says instead of the truth, where a test sets it. */
static kva_host_function host_functions[] = {{"count_nonzero", count_nonzero, NULL},
                                             {"compact", compact, NULL},
                                             {"twice", twice, NULL},
                                             {"total", total, NULL},
                                             {"advance", advance, NULL},
                                             {"is_even", is_even, NULL}};

/* ---- programs ---------------------------------------------------------------------------------------------------- */

enum { X_N, X_K, X_C, X_R, N_CONTROL_SYMBOLS };
static const char *const control_symbols[] = {"N", "K", "C", "R"};
#define HOST(function, results, ...)                                                                            \
  {                                                                                                             \
    .kind = KVA_STEP_CALL, .call = KVA_CALL_HOST, .kernel = -1, .n_args = sizeof((int32_t[]){__VA_ARGS__}) / 4, \
    .n_results = results, .args = LIST(__VA_ARGS__), .origin = function, .desc = &(const kva_host_desc) {       \
      function                                                                                                  \
    }                                                                                                           \
  }
#define CONTROL(k, description, results, ...)                                                                 \
  {                                                                                                           \
    .kind = KVA_STEP_##k, .kernel = -1, .n_args = sizeof((int32_t[]){__VA_ARGS__}) / 4, .n_results = results, \
    .args = LIST(__VA_ARGS__), .origin = #k, .desc = description                                              \
  }
#define VECTOR(n, k, symbol) \
  { BUFFER(n, k, KVA_F32, 1), .dims = {FORMULA(SYMBOL(symbol))}, .bytes = FORMULA(SYMBOL(symbol), NUMBER(4), OP(MUL)) }
#define VECTOR_TEMP(first, last, symbol)                                               \
  {                                                                                    \
    TEMP(first, last), .dtype = KVA_F32, .rank = 1, .dims = {FORMULA(SYMBOL(symbol))}, \
                       .bytes = FORMULA(SYMBOL(symbol), NUMBER(4), OP(MUL))            \
  }
#define PAIR(n, k) \
  { BUFFER(n, k, KVA_F32, 1), .dims = {FORMULA(NUMBER(2))}, .bytes = FORMULA(NUMBER(8)) }
#define ROWS_OF(n, k, symbol)                                                        \
  {                                                                                  \
    BUFFER(n, k, KVA_F32, 2), .dims = {FORMULA(SYMBOL(symbol)), FORMULA(NUMBER(2))}, \
                              .bytes = FORMULA(SYMBOL(symbol), NUMBER(8), OP(MUL))   \
  }
#define SCALAR(n, k, t, size) \
  { BUFFER(n, k, t, 0), .bytes = FORMULA(NUMBER(size)) }

enum {
  C_NONZERO,
  C_CHOOSE,
  C_REPEAT,
  C_TIMES,
  C_NEST,
  C_DOUBLE,
  C_THEN,
  C_ELSE,
  C_BODY,
  C_NEST_BODY,
  C_EVEN,
  C_ODD,
  N_CONTROL
};

static const kva_buffer_desc nonzero_buffers[] = {
    VECTOR("x", INPUT, X_N),
    SCALAR("n", OUTPUT, KVA_I64, 8),
    VECTOR("y", OUTPUT, X_K),
    VECTOR_TEMP(2, 3, X_K),
};
static const kva_bind_desc bind_k = {.symbol = X_K, .bound = FORMULA(SYMBOL(X_N))};
static const kva_step_desc nonzero_steps[] = {
    HOST("count_nonzero", 1, 0, 1),
    CONTROL(BIND, &bind_k, 0, 1),
    HOST("compact", 1, 0, 3),
    HOST("twice", 1, 3, 2),
};

static const kva_buffer_desc choose_buffers[] = {
    SCALAR("c", INPUT, KVA_BOOL, 1), VECTOR("x", INPUT, X_N),  VECTOR_TEMP(0, 1, X_C),
    VECTOR("z", OUTPUT, X_C),        VECTOR("w", OUTPUT, X_N),
};
static const kva_branch_desc choice = {C_THEN, C_ELSE, 3, LIST(X_C, 0, 0)};
static const kva_step_desc choose_steps[] = {
    CONTROL(BRANCH, &choice, 2, 0, 1, 2, 4),
    HOST("twice", 1, 2, 3),
};
static const kva_buffer_desc then_buffers[] = {VECTOR("x", INPUT, X_N), VECTOR("a", OUTPUT, X_N),
                                               VECTOR("w", OUTPUT, X_N)};
static const kva_step_desc then_steps[] = {COPY(1, 0), HOST("twice", 1, 0, 2)};
static const kva_buffer_desc else_buffers[] = {VECTOR("x", INPUT, X_N),
                                               {BUFFER("a", OUTPUT, KVA_F32, 1), .dims = {F_ONE}, .bytes = F_4},
                                               VECTOR("w", OUTPUT, X_N)};
static const kva_step_desc else_steps[] = {HOST("total", 1, 0, 1), COPY(2, 0)};

static const kva_buffer_desc repeat_buffers[] = {SCALAR("count", INPUT, KVA_I64, 8),
                                                 SCALAR("cond", INPUT, KVA_BOOL, 1),
                                                 PAIR("v", INPUT),
                                                 PAIR("x", INPUT),
                                                 PAIR("final", OUTPUT),
                                                 ROWS_OF("rows", OUTPUT, X_R),
                                                 VECTOR("t", INPUT, X_N)};
static const kva_loop_desc repetition = {C_BODY, 1, true, true, X_R, 0}, fixed = {C_BODY, 1, true, false, -1, 0};
static const kva_step_desc repeat_steps[] = {CONTROL(LOOP, &repetition, 2, 0, 1, 2, 3, 4, 5)};
static const kva_buffer_desc times_buffers[] = {
    SCALAR("count", INPUT, KVA_I64, 8),
    PAIR("v", INPUT),
    PAIR("x", INPUT),
    VECTOR("t", INPUT, X_N),
    PAIR("final", OUTPUT),
    ROWS_OF("rows", OUTPUT, X_N),
};
static const kva_step_desc times_steps[] = {CONTROL(LOOP, &fixed, 2, 0, 1, 2, 4, 5)};
static const kva_buffer_desc body_buffers[] = {
    SCALAR("i", INPUT, KVA_I64, 8),       PAIR("v", INPUT),  PAIR("x", INPUT),
    SCALAR("go_on", OUTPUT, KVA_BOOL, 1), PAIR("v", OUTPUT), PAIR("row", OUTPUT),
};
static const kva_step_desc body_steps[] = {HOST("advance", 3, 0, 1, 2, 3, 4, 5)};

static const kva_buffer_desc nest_buffers[] = {SCALAR("count", INPUT, KVA_I64, 8), VECTOR("x", INPUT, X_N),
                                               VECTOR("final", OUTPUT, X_N)};
static const kva_buffer_desc double_buffers[] = {VECTOR("x", INPUT, X_K), VECTOR("y", OUTPUT, X_K),
                                                 VECTOR_TEMP(0, 1, X_K), VECTOR("t", INPUT, X_N)};
static const kva_step_desc double_steps[] = {COPY(2, 0), HOST("twice", 1, 2, 1)};
static const kva_loop_desc nesting = {C_NEST_BODY, 1, true, false, -1, 0};
static const kva_step_desc nest_steps[] = {CONTROL(LOOP, &nesting, 1, 0, 1, 2)};
static const kva_buffer_desc nest_body_buffers[] = {
    SCALAR("i", INPUT, KVA_I64, 8),
    VECTOR("v", INPUT, X_N),
    SCALAR("go_on", OUTPUT, KVA_BOOL, 1),
    VECTOR("v", OUTPUT, X_N),
};
static const kva_branch_desc parity = {C_EVEN, C_ODD, 0, NULL};
static const kva_step_desc nest_body_steps[] = {HOST("is_even", 1, 0, 2), CONTROL(BRANCH, &parity, 1, 2, 1, 3)};
static const kva_buffer_desc even_buffers[] = {VECTOR("v", INPUT, X_N), VECTOR("w", OUTPUT, X_N)};
static const kva_step_desc even_steps[] = {HOST("twice", 1, 0, 1)};
static const kva_step_desc odd_steps[] = {COPY(1, 0)};

#define CONTROL_PROGRAM(n, b, in, n_in, out, n_out, internal)                                                \
  {                                                                                                          \
    .name = #n, .n_symbols = N_CONTROL_SYMBOLS, .symbols = control_symbols, .n_buffers = COUNT(b##_buffers), \
    .buffers = b##_buffers, .n_steps = COUNT(n##_steps), .steps = n##_steps, .n_inputs = n_in, .inputs = in, \
    .n_outputs = n_out, .outputs = out, .is_internal = internal                                              \
  }
static const kva_program control_programs[N_CONTROL] = {
    [C_NONZERO] = CONTROL_PROGRAM(nonzero, nonzero, LIST(0), 1, LIST(2, 1), 2, false),
    [C_CHOOSE] = CONTROL_PROGRAM(choose, choose, LIST(0, 1), 2, LIST(3, 4), 2, false),
    [C_REPEAT] = CONTROL_PROGRAM(repeat, repeat, LIST(0, 1, 2, 3, 6), 5, LIST(4, 5), 2, false),
    [C_TIMES] = CONTROL_PROGRAM(times, times, LIST(0, 1, 2, 3), 4, LIST(4, 5), 2, false),
    [C_NEST] = CONTROL_PROGRAM(nest, nest, LIST(0, 1), 2, LIST(2), 1, false),
    [C_DOUBLE] = CONTROL_PROGRAM(double, double, LIST(0, 3), 2, LIST(1), 1, false),
    [C_THEN] = CONTROL_PROGRAM(then, then, LIST(0), 1, LIST(1, 2), 2, true),
    [C_ELSE] = CONTROL_PROGRAM(else, else, LIST(0), 1, LIST(1, 2), 2, true),
    [C_BODY] = CONTROL_PROGRAM(body, body, LIST(0, 1, 2), 3, LIST(3, 4, 5), 3, true),
    [C_NEST_BODY] = CONTROL_PROGRAM(nest_body, nest_body, LIST(0, 1), 2, LIST(2, 3), 2, true),
    [C_EVEN] = CONTROL_PROGRAM(even, even, LIST(0), 1, LIST(1), 1, true),
    [C_ODD] = CONTROL_PROGRAM(odd, even, LIST(0), 1, LIST(1), 1, true),
};

static inline kva_artifact control_artifact_for(const kva_device_class *class) {
  kva_artifact a = artifact_for(class);
  a.n_states = a.n_kernels = 0;
  a.kernels = NULL;
  a.n_programs = N_CONTROL;
  a.programs = control_programs;
  return a;
}

static inline kva_status open_control(const kva_artifact *a, const kva_device_class *class, kva_diag *diag,
                                      kva_session **out) {
  const kva_session_options options = {
      .threads = 2, .device = class->name, .n_functions = COUNT(host_functions), .functions = host_functions};
  return kva_session_create(a, &options, diag, out);
}

static inline kva_tensor vector_of(float *data, int64_t n) {
  return (kva_tensor){.dtype = KVA_F32, .rank = 1, .dims = {n}, .data = data};
}

#endif
