/* An artefact written by hand, with kernels in C: what codegen makes, small enough to reason about.
 *
 *   scale   (x float[B, T]) -> y float[B, T] = a * x + b, for states a [1] and b [1]
 *   total   (x float[B, T]) -> sums float[B], grand float[]: through temporaries and a copy
 *   pairs   (past float[B, P], whole float[B, P + T], half float[2 * H]) -> n float[4] = B, P, T, H
 *   train_step (x float[B, 3], y float[B], lr float[]) -> loss, step: one step of SGD on linear regression
 *   eval       (x float[B, 3], y float[B]) -> loss */
#ifndef KVA_TESTS_RUNTIME_SAMPLE_H
#define KVA_TESTS_RUNTIME_SAMPLE_H

#include "runtime/runtime.h"

#include <math.h>
#include <stdlib.h>

#define WORDS(...) ((const kva_formula_word[]){__VA_ARGS__})
#define FORMULA(...) \
  { WORDS(__VA_ARGS__), sizeof WORDS(__VA_ARGS__) / sizeof(kva_formula_word) }
#define NUMBER(v) \
  { KVA_FORMULA_CONST, v }
#define SYMBOL(i) \
  { KVA_FORMULA_SYMBOL, i }
#define OP(name) \
  { KVA_FORMULA_##name, 0 }
#define COUNT(array)       ((int32_t)(sizeof(array) / sizeof *(array)))
#define BUFFER(n, k, t, r) .name = n, .kind = KVA_BUFFER_##k, .dtype = t, .rank = r, .state = -1
#define TEMP(first, last)  .kind = KVA_BUFFER_TEMP, .state = -1, .first_step = first, .last_step = last
#define KERNEL(k, g, ...)                                                                 \
  {                                                                                       \
    .kind = KVA_STEP_KERNEL, .kernel = k, .n_args = sizeof((int32_t[]){__VA_ARGS__}) / 4, \
    .args = (const int32_t[]){__VA_ARGS__}, .grid = g                                     \
  }
/* The last n arguments are written. */
#define WRITES(n, from, k, g, ...)                                                        \
  {                                                                                       \
    .kind = KVA_STEP_KERNEL, .kernel = k, .n_args = sizeof((int32_t[]){__VA_ARGS__}) / 4, \
    .args = (const int32_t[]){__VA_ARGS__}, .grid = g, .n_results = n, .origin = from     \
  }
#define COPY(to, from)                                              \
  {                                                                 \
    .kind = KVA_STEP_COPY, .n_args = 2, .args = (const int32_t[]) { \
      to, from                                                      \
    }                                                               \
  }

enum { S_A, S_B, S_W, S_BIAS, S_M, S_STEP, S_FIRST, S_SECOND, S_TABLE, N_STATES };
enum { K_SCALE, K_ROW_SUM, K_SUM, K_DIMS, K_PREDICT, K_LOSS, K_UPDATE, N_KERNELS };

static const float sample_table[3] = {1.5f, -2, 7};
static const kva_state_desc sample_states[N_STATES] = {
    [S_A] = {.name = "a", .dtype = KVA_F32, .rank = 1, .dims = {1}, .bytes = 4, .of = -1, .init_a = 3},
    [S_B] = {.name = "b", .dtype = KVA_F32, .rank = 1, .dims = {1}, .bytes = 4, .of = -1, .init_a = -1},
    [S_W] = {.name = "w",
             .dtype = KVA_F32,
             .rank = 1,
             .dims = {3},
             .bytes = 12,
             .of = -1,
             .init = KVA_STATE_INIT_NORMAL,
             .init_a = 0.5},
    [S_BIAS] = {.name = "bias", .dtype = KVA_F32, .rank = 1, .dims = {1}, .bytes = 4, .of = -1},
    [S_M] = {.name = "w.m",
             .role = KVA_ROLE_MOMENT,
             .dtype = KVA_F32,
             .rank = 1,
             .dims = {3},
             .bytes = 12,
             .of = S_W,
             .init = KVA_STATE_INIT_CONSTANT,
             .init_a = 9},
    [S_STEP] = {.name = "step", .role = KVA_ROLE_BUFFER, .dtype = KVA_I64, .rank = 0, .bytes = 8, .of = -1},
    /* out of order on purpose: its source comes after it */
    [S_FIRST] = {.name = "first",
                 .dtype = KVA_F32,
                 .rank = 2,
                 .dims = {2, 5},
                 .bytes = 40,
                 .init = KVA_STATE_INIT_ONE_MINUS,
                 .of = S_SECOND},
    [S_SECOND] = {.name = "second",
                  .dtype = KVA_F32,
                  .rank = 1,
                  .dims = {10},
                  .bytes = 40,
                  .of = -1,
                  .init = KVA_STATE_INIT_UNIFORM,
                  .init_a = 0,
                  .init_b = 1},
    [S_TABLE] = {.name = "table",
                 .role = KVA_ROLE_CACHE,
                 .dtype = KVA_F32,
                 .rank = 1,
                 .dims = {3},
                 .bytes = 12,
                 .of = -1,
                 .init = KVA_STATE_INIT_DATA,
                 .data = sample_table},
};

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Items are rows: x, a, b -> y. symbols: B, T. */
static inline void sample_scale(void *const *p, const int64_t *symbols, int64_t begin, int64_t end) {
  const float *x = p[0], *a = p[1], *b = p[2];
  float *y = p[3];
  for (int64_t i = begin * symbols[1]; i < end * symbols[1]; i++) y[i] = a[0] * x[i] + b[0];
}
static inline void sample_row_sum(void *const *p, const int64_t *symbols, int64_t begin, int64_t end) {
  const float *x = p[0];
  float *sums = p[1];
  for (int64_t r = begin; r < end; r++) {
    float sum = 0;
    for (int64_t t = 0; t < symbols[1]; t++) sum += x[r * symbols[1] + t];
    sums[r] = sum;
  }
}
static inline void sample_sum(void *const *p, const int64_t *symbols, int64_t begin, int64_t end) {
  const float *x = p[0];
  float sum = 0;
  for (int64_t i = 0; begin < end && i < symbols[0]; i++) sum += x[i];
  *(float *)p[1] = sum;
}
static inline void sample_dims(void *const *p, const int64_t *symbols, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i++) ((float *)p[0])[i] = (float)symbols[i];
}
/* x, w, bias, y -> residual */
static inline void sample_predict(void *const *p, const int64_t *symbols, int64_t begin, int64_t end) {
  const float *x = p[0], *w = p[1], *bias = p[2], *y = p[3];
  (void)symbols;
  for (int64_t i = begin; i < end; i++)
    ((float *)p[4])[i] = x[3 * i] * w[0] + x[3 * i + 1] * w[1] + x[3 * i + 2] * w[2] + bias[0] - y[i];
}
static inline void sample_loss(void *const *p, const int64_t *symbols, int64_t begin, int64_t end) {
  const float *residual = p[0];
  float sum = 0;
  for (int64_t i = 0; begin < end && i < symbols[0]; i++) sum += residual[i] * residual[i];
  *(float *)p[1] = sum / (float)symbols[0];
}
/* x, residual, lr, w, bias, step -> w, bias, step, step output */
static inline void sample_update(void *const *p, const int64_t *symbols, int64_t begin, int64_t end) {
  const float *x = p[0], *residual = p[1];
  float lr = *(const float *)p[2], *w = p[3], *bias = p[4], scale = 2 * lr / (float)symbols[0];
  for (int64_t i = 0; begin < end && i < symbols[0]; i++) {
    for (int j = 0; j < 3; j++) w[j] -= scale * residual[i] * x[3 * i + j];
    bias[0] -= scale * residual[i];
  }
  *(int64_t *)p[6] = ++*(int64_t *)p[5];
}

static const kva_kernel_desc sample_kernels[N_KERNELS] = {
    [K_SCALE] = {.name = "scale", .fn = sample_scale},
    [K_ROW_SUM] = {.name = "row_sum", .fn = sample_row_sum},
    [K_SUM] = {.name = "sum", .fn = sample_sum},
    [K_DIMS] = {.name = "dims", .fn = sample_dims},
    [K_PREDICT] = {.name = "predict", .fn = sample_predict},
    [K_LOSS] = {.name = "loss", .fn = sample_loss},
    [K_UPDATE] = {.name = "update", .fn = sample_update},
};

/* ---- programs ---------------------------------------------------------------------------------------------------- */

#define F_B   FORMULA(SYMBOL(0))
#define F_T   FORMULA(SYMBOL(1))
#define F_BT4 FORMULA(SYMBOL(0), SYMBOL(1), OP(MUL), NUMBER(4), OP(MUL))
#define F_B4  FORMULA(SYMBOL(0), NUMBER(4), OP(MUL))
#define F_ONE FORMULA(NUMBER(1))
#define F_4   FORMULA(NUMBER(4))
#define STATE(i, n)                                                                                  \
  {                                                                                                  \
    .kind = KVA_BUFFER_STATE, .dtype = KVA_F32, .rank = 1, .state = i, .dims = {FORMULA(NUMBER(n))}, \
    .bytes = FORMULA(NUMBER(4 * n))                                                                  \
  }

static const kva_buffer_desc scale_buffers[] = {
    {BUFFER("x", INPUT, KVA_F32, 2), .dims = {F_B, F_T}, .bytes = F_BT4},
    STATE(S_A, 1),
    STATE(S_B, 1),
    {BUFFER("y", OUTPUT, KVA_F32, 2), .dims = {F_B, F_T}, .bytes = F_BT4},
};
static const kva_step_desc scale_steps[] = {KERNEL(K_SCALE, F_B, 0, 1, 2, 3)};

static const kva_buffer_desc total_buffers[] = {
    {BUFFER("x", INPUT, KVA_F32, 2), .dims = {F_B, F_T}, .bytes = F_BT4},
    {TEMP(0, 2), .dtype = KVA_F32, .rank = 1, .dims = {F_B}, .bytes = F_B4},
    {TEMP(1, 3), .dtype = KVA_F32, .bytes = F_4},
    {BUFFER("sums", OUTPUT, KVA_F32, 1), .dims = {F_B}, .bytes = F_B4},
    {BUFFER("grand", OUTPUT, KVA_F32, 0), .bytes = F_4},
};
static const kva_step_desc total_steps[] = {
    KERNEL(K_ROW_SUM, F_B, 0, 1),
    KERNEL(K_SUM, F_ONE, 1, 2),
    COPY(3, 1),
    COPY(4, 2),
};

static const kva_buffer_desc pairs_buffers[] = {
    {BUFFER("past", INPUT, KVA_F32, 2), .dims = {F_B, F_T}, .bytes = F_BT4},
    {BUFFER("whole", INPUT, KVA_F32, 2), .dims = {F_B, FORMULA(SYMBOL(1), SYMBOL(2), OP(ADD))},
     .bytes = FORMULA(SYMBOL(1), SYMBOL(2), OP(ADD), SYMBOL(0), OP(MUL), NUMBER(4), OP(MUL))},
    {BUFFER("half", INPUT, KVA_F32, 1), .dims = {FORMULA(NUMBER(2), SYMBOL(3), OP(MUL))},
     .bytes = FORMULA(SYMBOL(3), NUMBER(8), OP(MUL))},
    {BUFFER("n", OUTPUT, KVA_F32, 1), .dims = {FORMULA(NUMBER(4))}, .bytes = FORMULA(NUMBER(16))},
};
static const kva_step_desc pairs_steps[] = {KERNEL(K_DIMS, FORMULA(NUMBER(4)), 3)};

#define X_INPUT                                                                      \
  {                                                                                  \
    BUFFER("x", INPUT, KVA_F32, 2), .dims = {F_B, FORMULA(NUMBER(3))},               \
                                    .bytes = FORMULA(SYMBOL(0), NUMBER(12), OP(MUL)) \
  }
#define Y_INPUT \
  { BUFFER("y", INPUT, KVA_F32, 1), .dims = {F_B}, .bytes = F_B4 }
static const kva_buffer_desc train_buffers[] = {
    X_INPUT,
    Y_INPUT,
    {BUFFER("lr", INPUT, KVA_F32, 0), .bytes = F_4},
    STATE(S_W, 3),
    STATE(S_BIAS, 1),
    {.kind = KVA_BUFFER_STATE, .dtype = KVA_I64, .state = S_STEP, .bytes = FORMULA(NUMBER(8))},
    {TEMP(0, 2), .dtype = KVA_F32, .rank = 1, .dims = {F_B}, .bytes = F_B4},
    {BUFFER("loss", OUTPUT, KVA_F32, 0), .bytes = F_4},
    {BUFFER("count", OUTPUT, KVA_I64, 0), .bytes = FORMULA(NUMBER(8))},
};
static const kva_step_desc train_steps[] = {
    WRITES(1, "predict residual", K_PREDICT, F_B, 0, 3, 4, 1, 6),
    WRITES(1, "loss", K_LOSS, F_ONE, 6, 7),
    WRITES(4, "update", K_UPDATE, F_ONE, 0, 6, 2, 3, 4, 5, 8),
};
static const kva_buffer_desc eval_buffers[] = {
    X_INPUT,
    Y_INPUT,
    STATE(S_W, 3),
    STATE(S_BIAS, 1),
    {TEMP(0, 1), .dtype = KVA_F32, .rank = 1, .dims = {F_B}, .bytes = F_B4},
    {BUFFER("loss", OUTPUT, KVA_F32, 0), .bytes = F_4},
};
static const kva_step_desc eval_steps[] = {
    KERNEL(K_PREDICT, F_B, 0, 2, 3, 1, 4),
    KERNEL(K_LOSS, F_ONE, 4, 5),
};

#define PROGRAM(n, symbol_list, n_symbols_, in, n_in, out, n_out)                                            \
  {                                                                                                          \
    .name = #n, .n_symbols = n_symbols_, .symbols = symbol_list, .n_buffers = COUNT(n##_buffers),            \
    .buffers = n##_buffers, .n_steps = COUNT(n##_steps), .steps = n##_steps, .n_inputs = n_in, .inputs = in, \
    .n_outputs = n_out, .outputs = out                                                                       \
  }
#define LIST(...) ((const int32_t[]){__VA_ARGS__})

static const char *const sample_bt[] = {"B", "T"};
static const char *const sample_bpth[] = {"B", "P", "T", "H"};
enum { P_SCALE, P_TOTAL, P_PAIRS, P_TRAIN, P_EVAL, N_PROGRAMS };
static const kva_program sample_programs[N_PROGRAMS] = {
    [P_SCALE] = PROGRAM(scale, sample_bt, 2, LIST(0), 1, LIST(3), 1),
    [P_TOTAL] = PROGRAM(total, sample_bt, 2, LIST(0), 1, LIST(3, 4), 2),
    [P_PAIRS] = PROGRAM(pairs, sample_bpth, 4, LIST(0, 1, 2), 3, LIST(3), 1),
    [P_TRAIN] = {.name = "train_step",
                 .n_symbols = 1,
                 .symbols = sample_bt,
                 .n_buffers = COUNT(train_buffers),
                 .buffers = train_buffers,
                 .n_steps = COUNT(train_steps),
                 .steps = train_steps,
                 .n_inputs = 3,
                 .inputs = (const int32_t[]){0, 1, 2},
                 .n_outputs = 2,
                 .outputs = (const int32_t[]){7, 8},
                 .output_roles = (const int32_t[]){KVA_OUTPUT_LOSS, KVA_OUTPUT_VALUE}},
    [P_EVAL] = {.name = "eval",
                .n_symbols = 1,
                .symbols = sample_bt,
                .n_buffers = COUNT(eval_buffers),
                .buffers = eval_buffers,
                .n_steps = COUNT(eval_steps),
                .steps = eval_steps,
                .n_inputs = 2,
                .inputs = (const int32_t[]){0, 1},
                .n_outputs = 1,
                .outputs = (const int32_t[]){5},
                .output_roles = (const int32_t[]){KVA_OUTPUT_LOSS}},
};

static const kva_artifact sample_artifact = {
    .magic = KVA_ABI_MAGIC,
    .abi_version = KVA_ABI_VERSION,
    .n_states = N_STATES,
    .n_kernels = N_KERNELS,
    .n_programs = N_PROGRAMS,
    .n_codes = 1,
    .codes = &(const kva_code){.format = KVA_CODE_FUNCTIONS},
    .model = "sample",
    .target = "c",
    .states = sample_states,
    .kernels = sample_kernels,
    .programs = sample_programs,
};

static inline kva_tensor sample_matrix(float *data, int64_t rows, int64_t columns) {
  return (kva_tensor){.dtype = KVA_F32, .rank = 2, .dims = {rows, columns}, .data = data};
}

#endif
