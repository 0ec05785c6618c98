/* What every device must do: memory and copies; programs with inputs, constants, states, temporaries and outputs, for
 * several shapes; states that the host reads and writes between runs; library products and dynamic shared memory on
 * GPUs. Then what each refuses, and what the simulator finds. The kernels are written twice, in C and in PTX; work
 * items are blocks of 32 elements.
 *
 * Device cuda runs twice: on the machine's GPU, skipped with the reason where there is none, and with the stand-in for
 * the driver in $KVASIR_FAKE_CUDA (tests/fake_cuda). */
#include "runtime/device.h"
#include "tests/runtime/sample.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <cmocka.h>

/* ---- the artefact --------------------------------------------------------------------------------------------------
 */

enum { BLOCK = 32, TABLE = 4 };

/* x, table -> y: y[i] = x[i] + table[i % 4] */
static void add(void *const *p, const int64_t *symbols, int64_t begin, int64_t end) {
  const float *x = p[0], *table = p[1];
  for (int64_t i = begin * BLOCK; i < end * BLOCK && i < symbols[1]; i++) ((float *)p[2])[i] = x[i] + table[i % TABLE];
}
/* total += N */
static void count(void *const *p, const int64_t *symbols, int64_t begin, int64_t end) {
  if (begin < end) *(float *)p[0] += (float)symbols[1];
}

#define ADD(name, guard)                                                                                   \
  ".visible .entry " name "(.param .u64 px, .param .u64 pt, .param .u64 py, .param .u64 pn) {\n"           \
  ".reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<8>; .reg .f32 %f<4>;\n"                                 \
  "ld.param.u64 %d1, [px]; ld.param.u64 %d2, [pt]; ld.param.u64 %d3, [py]; ld.param.u64 %d4, [pn];\n"      \
  "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; shl.b32 %r3, %r1, 5; add.u32 %r3, %r3, %r2;\n"              \
  "cvt.u64.u32 %d5, %r3; setp.ge.s64 %p1, %d5, %d4;\n" guard "and.b64 %d6, %d5, 3; shl.b64 %d6, %d6, 2;"   \
  "shl.b64 %d7, %d5, 2; add.u64 %d1, %d1, %d7; add.u64 %d2, %d2, %d6; add.u64 %d3, %d3, %d7;\n"            \
  "ld.global.f32 %f1, [%d1]; ld.global.f32 %f2, [%d2]; add.f32 %f3, %f1, %f2; st.global.f32 [%d3], %f3;\n" \
  "DONE: ret; }\n"

static const char ptx[] = ".version 8.3\n.target sm_80\n.address_size 64\n" ADD("add", "@%p1 bra DONE;\n")
    ADD("beyond",
        "") ".visible .entry count(.param .u64 pt, .param .u64 pn) {\n"
            ".reg .b64 %d<3>; .reg .f32 %f<4>;\n"
            "ld.param.u64 %d1, [pt]; ld.param.u64 %d2, [pn]; ld.global.f32 %f1, [%d1];\n"
            "cvt.rn.f32.s64 %f2, %d2; add.f32 %f3, %f1, %f2; st.global.f32 [%d1], %f3; ret; }\n"
            ".visible .entry spoil(.param .u64 px) {\n"
            ".reg .b64 %d<2>; ld.param.u64 %d1, [px]; st.global.f32 [%d1], 0f3F800000; ret; }\n"
            /* y[i] = x[31 - i] by way of shared memory that the launch adds */
            ".extern .shared .align 16 .b8 dynamic[];\n"
            ".visible .entry turn(.param .u64 px, .param .u64 py) {\n"
            ".reg .b32 %r<6>; .reg .b64 %d<6>; .reg .f32 %f<3>;\n"
            "ld.param.u64 %d1, [px]; ld.param.u64 %d2, [py]; mov.u32 %r1, %tid.x; mov.u32 %r2, dynamic;\n"
            "mul.wide.u32 %d3, %r1, 4; add.u64 %d4, %d1, %d3; ld.global.f32 %f1, [%d4];\n"
            "shl.b32 %r3, %r1, 2; add.u32 %r4, %r2, %r3; st.shared.f32 [%r4+65536], %f1; bar.sync 0;\n"
            "sub.u32 %r5, 124, %r3; add.u32 %r5, %r5, %r2; ld.shared.f32 %f2, [%r5+65536]; add.u64 %d5, %d2, %d3;\n"
            "st.global.f32 [%d5], %f2; ret; }\n";

enum { D_ADD, D_COUNT, D_BEYOND, D_SPOIL, D_TURN, N_DEVICE_KERNELS };
#define N_SYMBOL    .symbols = LIST(1), .n_symbols = 1
#define GPU_THREADS .threads = BLOCK
static const kva_kernel_desc kernels[N_DEVICE_KERNELS] = {
    [D_ADD] = {.name = "add", .fn = add, GPU_THREADS, N_SYMBOL},
    [D_COUNT] = {.name = "count", .fn = count, .threads = 1, N_SYMBOL},
    [D_BEYOND] = {.name = "beyond", .fn = add, GPU_THREADS, N_SYMBOL},
    [D_SPOIL] = {.name = "spoil", .fn = add, .threads = 1},
    [D_TURN] = {.name = "turn", .fn = add, GPU_THREADS, .dynamic_bytes = 65536 + 4 * BLOCK},
};

static const float table[TABLE] = {10, 20, 30, 40};
#define F_N      FORMULA(SYMBOL(1))
#define F_N4     FORMULA(SYMBOL(1), NUMBER(4), OP(MUL))
#define F_BLOCKS FORMULA(SYMBOL(1), NUMBER(BLOCK - 1), OP(ADD), NUMBER(BLOCK), OP(DIV))

/* The order of symbols is not that of the kernels' parameters: "B" stands before "N". */
static const char *const symbols[] = {"B", "N"};
static const kva_buffer_desc device_buffers[] = {
    {BUFFER("x", INPUT, KVA_F32, 2), .dims = {FORMULA(SYMBOL(0)), F_N},
     .bytes = FORMULA(SYMBOL(0), SYMBOL(1), OP(MUL), NUMBER(4), OP(MUL))},
    {BUFFER("table", CONST, KVA_F32, 1), .dims = {FORMULA(NUMBER(TABLE))}, .bytes = FORMULA(NUMBER(16)), .data = table},
    {.name = "total", .kind = KVA_BUFFER_STATE, .dtype = KVA_F32, .state = 1, .bytes = F_4},
    {TEMP(0, 2), .dtype = KVA_F32, .rank = 1, .dims = {F_N}, .bytes = F_N4},
    {BUFFER("y", OUTPUT, KVA_F32, 1), .dims = {F_N}, .bytes = F_N4},
    {BUFFER("z", OUTPUT, KVA_F32, 1), .dims = {F_N}, .bytes = F_N4},
};
enum { B_X, B_TABLE, B_TOTAL, B_TEMP, B_Y, B_Z };

static const kva_step_desc run_steps[] = {
    KERNEL(D_ADD, F_BLOCKS, B_X, B_TABLE, B_TEMP),
    KERNEL(D_COUNT, F_ONE, B_TOTAL),
    KERNEL(D_ADD, F_BLOCKS, B_TEMP, B_TABLE, B_Y),
    COPY(B_Z, B_Y),
};
static const kva_step_desc beyond_steps[] = {
    {.kind = KVA_STEP_KERNEL,
     .kernel = D_BEYOND,
     .n_args = 3,
     .args = LIST(B_X, B_TABLE, B_Y),
     .grid = F_BLOCKS,
     .origin = "kv.add sum"},
    COPY(B_Z, B_Y),
    COPY(B_TEMP, B_Y),
};
static const kva_step_desc spoil_steps[] = {
    KERNEL(D_SPOIL, F_ONE, B_X),
    COPY(B_Z, B_Y),
    COPY(B_TEMP, B_Y),
};
/* On GPUs alone: w = x turned round, then products of the library: p = q r for two types, with transpositions, batches
 * that share an operand, and a depth that may be 0. */
enum { ROWS = 5, COLUMNS = 35, MOST_DEPTH = 150, BATCH = 3 };
#define F_32         FORMULA(NUMBER(4 * BLOCK))
#define F_N_TIMES(k) FORMULA(SYMBOL(0), NUMBER(k), OP(MUL))
static const char *const gpu_symbols[] = {"K"};
#define PRODUCT_BUFFERS(t, size)                                                                                   \
  {BUFFER("a" #t, INPUT, KVA_##t, 1), .dims = {F_N_TIMES(BATCH * ROWS)}, .bytes = F_N_TIMES(BATCH * ROWS * size)}, \
      {BUFFER("b" #t, INPUT, KVA_##t, 1), .dims = {F_N_TIMES(COLUMNS)}, .bytes = F_N_TIMES(COLUMNS * size)}, {     \
    BUFFER("d" #t, OUTPUT, KVA_##t, 1), .dims = {FORMULA(NUMBER(BATCH * ROWS * COLUMNS))},                         \
                                        .bytes = FORMULA(NUMBER(BATCH * ROWS * COLUMNS * size))                    \
  }
static const kva_buffer_desc gpu_buffers[] = {
    {BUFFER("x", INPUT, KVA_F32, 1), .dims = {FORMULA(NUMBER(BLOCK))}, .bytes = F_32},
    {BUFFER("w", OUTPUT, KVA_F32, 1), .dims = {FORMULA(NUMBER(BLOCK))}, .bytes = F_32},
    PRODUCT_BUFFERS(F32, 4),
    PRODUCT_BUFFERS(BF16, 2),
    PRODUCT_BUFFERS(F16, 2),
    {BUFFER("wide", OUTPUT, KVA_F32, 1), .dims = {FORMULA(NUMBER(BATCH * ROWS * COLUMNS))},
     .bytes = FORMULA(NUMBER(BATCH * ROWS * COLUMNS * 4))},
};
#define PRODUCT(ta, tb, t, td)                                                                         \
  &(const kva_gemm_desc) {                                                                             \
    .batch = FORMULA(NUMBER(BATCH)), .m = FORMULA(NUMBER(ROWS)), .n = FORMULA(NUMBER(COLUMNS)),        \
    .k = FORMULA(SYMBOL(0)), .step_a = F_N_TIMES(ROWS), .step_b = FORMULA(NUMBER(0)),                  \
    .step_d = FORMULA(NUMBER(ROWS * COLUMNS)), .transpose_a = ta, .transpose_b = tb, .dtype = KVA_##t, \
    .dtype_d = KVA_##td                                                                                \
  }
#define GEMM(d, a, b, product)                                                                               \
  {                                                                                                          \
    .kind = KVA_STEP_GEMM, .kernel = -1, .n_args = 3, .args = LIST(d, a, b), .grid = F_ONE, .gemm = product, \
    .origin = "kv.matmul"                                                                                    \
  }
static const kva_step_desc gpu_steps[] = {
    KERNEL(D_TURN, F_ONE, 0, 1),
    GEMM(4, 2, 3, PRODUCT(0, 0, F32, F32)),
    GEMM(7, 5, 6, PRODUCT(1, 0, BF16, BF16)),
    GEMM(10, 8, 9, PRODUCT(0, 1, F16, F16)),
    GEMM(11, 5, 6, PRODUCT(1, 1, BF16, F32)),
};

#define DEVICE_PROGRAM(n, outs, n_outs)                                                                            \
  {                                                                                                                \
    .name = #n, .n_symbols = 2, .symbols = symbols, .n_buffers = COUNT(device_buffers), .buffers = device_buffers, \
    .n_steps = COUNT(n##_steps), .steps = n##_steps, .n_inputs = 1, .inputs = LIST(0), .n_outputs = n_outs,        \
    .outputs = outs                                                                                                \
  }
enum { P_RUN, P_BEYOND, P_SPOIL, P_GPU, N_DEVICE_PROGRAMS };
static const kva_program programs[N_DEVICE_PROGRAMS] = {
    [P_RUN] = DEVICE_PROGRAM(run, LIST(B_Y, B_TOTAL, B_Z, B_Y), 4),
    [P_BEYOND] = DEVICE_PROGRAM(beyond, LIST(B_Y), 1),
    [P_SPOIL] = DEVICE_PROGRAM(spoil, LIST(B_Y), 1),
    [P_GPU] = {.name = "gpu",
               .n_symbols = 1,
               .symbols = gpu_symbols,
               .n_buffers = COUNT(gpu_buffers),
               .buffers = gpu_buffers,
               .n_steps = COUNT(gpu_steps),
               .steps = gpu_steps,
               .n_inputs = 7,
               .inputs = LIST(0, 2, 3, 5, 6, 8, 9),
               .n_outputs = 5,
               .outputs = LIST(1, 4, 7, 10, 11)},
};
static const kva_state_desc states[] = {
    {.name = "before", .dtype = KVA_F32, .rank = 1, .dims = {3}, .bytes = 12, .of = -1, .init_a = 7},
    {.name = "total", .dtype = KVA_F32, .bytes = 4, .of = -1, .init_a = 100},
};

static kva_artifact artifact_for(const kva_device_class *class) {
  return (kva_artifact){.magic = KVA_ABI_MAGIC,
                        .abi_version = KVA_ABI_VERSION,
                        .n_states = COUNT(states),
                        .n_kernels = N_DEVICE_KERNELS,
                        .n_programs = class->arch ? N_DEVICE_PROGRAMS : P_GPU,
                        .model = "device",
                        .target = class->arch ? class->arch : "c",
                        .arch = class->arch,
                        .module = class->arch ? ptx : NULL,
                        .module_bytes = class->arch ? (int64_t)sizeof ptx - 1 : 0,
                        .states = states,
                        .kernels = kernels,
                        .programs = programs};
}

static kva_session *open_session(const kva_artifact *a, const kva_device_class *class, int threads) {
  kva_session *s = NULL;
  kva_diag *diag = kva_diag_create();
  kva_session_options options = {.threads = threads, .device = class->name};
  kva_status status = kva_session_create(a, &options, diag, &s);
  if (status != KVA_OK) kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  kva_diag_destroy(diag);
  return s;
}

/* The class of a device that this machine has; else the test is skipped. */
static const kva_device_class *require(void **state) {
  const kva_device_class *class = *state;
  const char *arch;
  kva_diag *diag = kva_diag_create();
  bool missing = kva_device_check(class->name, diag, &arch) == KVA_MISSING;
  if (missing) printf("SKIP: %s\n", kva_diag_message(diag, 0, NULL, NULL));
  kva_diag_destroy(diag);
  if (missing) skip();
  return class;
}

/* ---- every device --------------------------------------------------------------------------------------------------
 */

static void memory_and_copies(void **state) {
  const kva_device_class *class = require(state);
  kva_device *d;
  kva_pool *pool = kva_pool_create(2);
  assert_int_equal(class->create(pool, NULL, &d), KVA_OK);
  enum { N = 300000 }; /* more than one piece of a parallel copy */
  unsigned char *from = malloc(N), *to = calloc(N, 1);
  for (int i = 0; i < N; i++) from[i] = (unsigned char)(i * 7 + i / 256);
  kva_block a, b, empty;
  assert_int_equal(class->allocate(d, N, &a), KVA_OK);
  assert_int_equal(class->allocate(d, N + 1, &b), KVA_OK);
  assert_int_equal(class->allocate(d, 0, &empty), KVA_OK);
  assert_true((uintptr_t)a.data % KVA_ALIGNMENT == 0 && (uintptr_t)b.data % KVA_ALIGNMENT == 0);
  assert_int_equal(class->copy_in(d, a.data, from, N), KVA_OK);
  assert_int_equal(class->copy(d, (char *)b.data + 1, a.data, N), KVA_OK);
  assert_int_equal(class->copy(d, a.data, a.data, N), KVA_OK);
  assert_int_equal(class->copy(d, b.data, a.data, 0), KVA_OK);
  assert_int_equal(class->copy_out(d, to, (char *)b.data + 1, N), KVA_OK);
  assert_int_equal(class->synchronise(d), KVA_OK);
  assert_memory_equal(from, to, N);
  assert_string_equal(class->error(d), "");
  class->free(d, &a);
  class->free(d, &b);
  class->free(d, &empty);
  assert_null(a.data);
  class->destroy(d);
  kva_pool_destroy(pool);
  free(from);
  free(to);
}

static float expected(const float *x, int64_t i) {
  return x[i] + 2 * table[i % TABLE];
}

static void programs_run(void **state) {
  const kva_device_class *class = require(state);
  kva_artifact a = artifact_for(class);
  kva_session *s = open_session(&a, class, 2);
  enum { MOST = 9000 };
  float *x = malloc(MOST * sizeof *x), *y = malloc(MOST * sizeof *y), total, sum = 100;
  for (int i = 0; i < MOST; i++) x[i] = (float)i;
  const int64_t sizes[] = {33, 1, MOST, 0, 64, 33};
  for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
    int64_t n = sizes[k];
    kva_tensor in = {.dtype = KVA_F32, .rank = 2, .dims = {1, n}, .data = x};
    kva_tensor out[4] = {{.data = NULL}, {.data = &total}, {.data = y}, {.data = NULL}};
    assert_int_equal(kva_session_run(s, P_RUN, &in, out), KVA_OK);
    sum += (float)n;
    assert_true(total == sum);
    assert_true(out[0].rank == 1 && out[0].dims[0] == n && out[1].rank == 0 && out[0].dtype == KVA_F32);
    assert_ptr_equal(out[2].data, y);
    for (int64_t i = 0; i < n; i++) {
      assert_true(y[i] == expected(x, i) && ((float *)out[0].data)[i] == y[i] && ((float *)out[3].data)[i] == y[i]);
      assert_true(x[i] == (float)i);
    }
  }
  free(x);
  free(y);
  kva_session_destroy(s);
}

static float read_state(kva_session *s, const char *name) {
  kva_tensor t;
  assert_true(kva_session_state(s, name, &t));
  return *(float *)t.data;
}

static void states_are_current_and_writable(void **state) {
  const kva_device_class *class = require(state);
  kva_artifact a = artifact_for(class);
  kva_session *s = open_session(&a, class, 1);
  float x[5] = {0}, total;
  kva_tensor in = {.dtype = KVA_F32, .rank = 2, .dims = {1, 5}, .data = x}, out[4], t;
  assert_true(read_state(s, "total") == 100 && read_state(s, "before") == 7);
  for (int i = 0; i < 2; i++) {
    memset(out, 0, sizeof out);
    assert_int_equal(kva_session_run(s, P_RUN, &in, out), KVA_OK);
  }
  assert_true(*(float *)out[1].data == 110);
  assert_true(kva_session_state(s, "total", &t));
  assert_true(*(float *)t.data == 110);
  *(float *)t.data = -1;
  memset(out, 0, sizeof out);
  out[1].data = &total;
  assert_int_equal(kva_session_run(s, P_RUN, &in, out), KVA_OK);
  assert_true(total == 4);
  assert_string_equal(kva_session_state_desc(s, 1, &t)->name, "total");
  assert_true(*(float *)t.data == 4 && read_state(s, "before") == 7);
  assert_false(kva_session_state(s, "nobody", &t));
  kva_session_destroy(s);
}

static void wrong_inputs_are_refused_and_change_nothing(void **state) {
  const kva_device_class *class = require(state);
  kva_artifact a = artifact_for(class);
  kva_session *s = open_session(&a, class, 1);
  kva_tensor in = {.dtype = KVA_F32, .rank = 2, .dims = {1, 5}}, out[4] = {{.data = NULL}};
  assert_int_equal(kva_session_run(s, P_RUN, &in, out), KVA_INVALID);
  assert_non_null(strstr(kva_session_error(s), "input 'x' has no data"));
  in.rank = 1;
  assert_int_equal(kva_session_run(s, P_RUN, &in, out), KVA_INVALID);
  assert_true(read_state(s, "total") == 100);
  kva_session_destroy(s);
}

static void other_devices_code_is_refused(void **state) {
  const kva_device_class *class = require(state), *other = class->arch ? &kva_device_cpu : &kva_device_ptxsim;
  kva_artifact a = artifact_for(other);
  kva_session *s;
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_session_create(&a, &(kva_session_options){.device = class->name}, diag, &s), KVA_INVALID);
  assert_null(s);
  assert_int_equal(kva_diag_count(diag), 1);
  const char *text = kva_diag_message(diag, 0, NULL, NULL);
  assert_non_null(strstr(text, class->name));
  assert_non_null(strstr(text, "compile it for"));
  kva_diag_destroy(diag);
}

static void equal_runs_give_equal_results(void **state) {
  const kva_device_class *class = require(state);
  kva_artifact a = artifact_for(class);
  kva_session *s = open_session(&a, class, 1);
  float x[70], sum = 100;
  for (int i = 0; i < 70; i++) x[i] = (float)i;
  for (int i = 0; i < 12; i++) {
    int64_t n = i % 4 == 3 ? 70 : 40; /* a recorded run, another, the first again */
    for (int k = 0; k < n; k++) x[k] += (float)i;
    kva_tensor in = {.dtype = KVA_F32, .rank = 2, .dims = {1, n}, .data = x}, out[4] = {{.data = NULL}};
    assert_int_equal(kva_session_run(s, P_RUN, &in, out), KVA_OK);
    sum += (float)n;
    assert_true(*(float *)out[1].data == sum);
    for (int64_t k = 0; k < n; k++) assert_true(((float *)out[2].data)[k] == expected(x, k));
  }
  kva_session_destroy(s);
}

static void profiles_count_every_step(void **state) {
  const kva_device_class *class = require(state);
  kva_artifact a = artifact_for(class);
  kva_session *s;
  kva_session_options options = {.threads = 1, .device = class->name, .profile = true};
  assert_int_equal(kva_session_create(&a, &options, NULL, &s), KVA_OK);
  float x[40] = {0};
  for (int i = 0; i < 3; i++) {
    kva_tensor in = {.dtype = KVA_F32, .rank = 2, .dims = {1, 40}, .data = x}, out[4] = {{.data = NULL}};
    assert_int_equal(kva_session_run(s, P_RUN, &in, out), KVA_OK);
    assert_true(*(float *)out[1].data == (float)(140 + 40 * i));
  }
  const double *seconds;
  const int64_t *calls;
  assert_int_equal(kva_session_profile(s, P_RUN, &seconds, &calls), COUNT(run_steps));
  double total = 0;
  for (int i = 0; i < COUNT(run_steps); i++) {
    assert_int_equal(calls[i], 3);
    assert_true(seconds[i] >= 0);
    total += seconds[i];
  }
  assert_true(total > 0 && total < 60);
  kva_session_destroy(s);
}

/* ---- GPUs: shared memory, library products ------------------------------------------------------------------------
 */

static double product(kva_dtype t, const void *a, const void *b, int64_t batch, int64_t m, int64_t n, int64_t depth,
                      bool ta, bool tb) {
  double sum = 0;
  for (int64_t k = 0; k < depth; k++)
    sum += kva_load_f64(t, a, batch * ROWS * depth + (ta ? k * ROWS + m : m * depth + k)) *
           kva_load_f64(t, b, tb ? n * depth + k : k * COLUMNS + n);
  return sum;
}

static void check_products(kva_dtype t, kva_dtype td, const void *a, const void *b, const void *d, int64_t depth,
                           bool ta, bool tb) {
  double tolerance = td == KVA_F32 ? 1e-4 : td == KVA_F16 ? 2e-3 : 2e-2;
  for (int64_t i = 0; i < BATCH * ROWS * COLUMNS; i++) {
    double v = product(t, a, b, i / (ROWS * COLUMNS), i / COLUMNS % ROWS, i % COLUMNS, depth, ta, tb);
    double found = kva_load_f64(td, d, i);
    if (!(fabs(found - v) <= tolerance * (1 + fabs(v))))
      fail_msg("element %lld, depth %lld: %g, expected %g", (long long)i, (long long)depth, found, v);
  }
}

static void products_of_the_library(void **state) {
  const kva_device_class *class = require(state);
  kva_artifact artifact = artifact_for(class);
  kva_session *s = open_session(&artifact, class, 2);
  static const kva_dtype types[] = {KVA_F32, KVA_BF16, KVA_F16};
  static const int64_t depths[] = {MOST_DEPTH, 8, 8, 8, 0, 1, 8};
  static uint64_t a[3][BATCH * ROWS * MOST_DEPTH], b[3][COLUMNS * MOST_DEPTH];
  for (int t = 0; t < 3; t++) {
    for (int i = 0; i < BATCH * ROWS * MOST_DEPTH; i++) kva_store_f64(types[t], a[t], i, (i * 7 % 13 - 6) / 8.0);
    for (int i = 0; i < COLUMNS * MOST_DEPTH; i++) kva_store_f64(types[t], b[t], i, (i * 5 % 11 - 5) / 8.0);
  }
  float x[BLOCK];
  for (int i = 0; i < BLOCK; i++) x[i] = (float)i;
  for (size_t k = 0; k < sizeof depths / sizeof *depths; k++) {
    kva_tensor in[7] = {{.dtype = KVA_F32, .rank = 1, .dims = {BLOCK}, .data = x}}, out[5] = {{.data = NULL}};
    for (int t = 0; t < 3; t++) {
      in[1 + 2 * t] = (kva_tensor){.dtype = types[t], .rank = 1, .dims = {BATCH * ROWS * depths[k]}, .data = a[t]};
      in[2 + 2 * t] = (kva_tensor){.dtype = types[t], .rank = 1, .dims = {COLUMNS * depths[k]}, .data = b[t]};
    }
    if (kva_session_run(s, P_GPU, in, out) != KVA_OK) fail_msg("%s", kva_session_error(s));
    for (int i = 0; i < BLOCK; i++) assert_true(((float *)out[0].data)[i] == x[BLOCK - 1 - i]);
    check_products(KVA_F32, KVA_F32, a[0], b[0], out[1].data, depths[k], false, false);
    check_products(KVA_BF16, KVA_BF16, a[1], b[1], out[2].data, depths[k], true, false);
    check_products(KVA_F16, KVA_F16, a[2], b[2], out[3].data, depths[k], false, true);
    check_products(KVA_BF16, KVA_F32, a[1], b[1], out[4].data, depths[k], true, true);
  }
  kva_session_destroy(s);
}

/* A kernel with a tensor map: y = the 8 x 8 box at row 3, column 4 of x [6, N], zeros where x ends. */
static const char box_ptx[] =
    ".version 8.3\n.target sm_90\n.address_size 64\n"
    ".visible .entry box(.param .u64 px, .param .u64 py, .param .align 64 .b8 map[128]) {\n"
    ".reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %d<6>; .reg .f32 %f<2>;\n"
    ".shared .align 128 .b8 tile[256]; .shared .align 8 .b8 arrived[8];\n"
    "mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mov.u32 %r3, arrived; mov.u32 %r4, 4; mov.u32 %r5, 3;\n"
    "setp.ne.u32 %p1, %r1, 0; @%p1 bra READY;\n"
    "mbarrier.init.shared::cta.b64 [%r3], 1; fence.mbarrier_init.release.cluster;\n"
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256; mov.b64 %d1, map; cvta.param.u64 %d2, %d1;\n"
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%d2, {%r4, %r5}], "
    "[%r3];\n"
    "READY: bar.sync 0;\n"
    "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0; @!%p2 bra WAIT;\n"
    "shl.b32 %r6, %r1, 2; add.u32 %r7, %r2, %r6; ld.shared.f32 %f1, [%r7]; ld.param.u64 %d3, [py];\n"
    "cvt.u64.u32 %d4, %r6; add.u64 %d5, %d3, %d4; st.global.f32 [%d5], %f1; ret; }\n";

enum { BOX = 8, BOX_ROWS = 6 };
static const kva_tensor_map_desc box_map = {.argument = 0,
                                            .dtype = KVA_F32,
                                            .rank = 2,
                                            .dims = {FORMULA(SYMBOL(0)), FORMULA(NUMBER(BOX_ROWS))},
                                            .strides = {{0}, FORMULA(SYMBOL(0), NUMBER(4), OP(MUL))},
                                            .box = {BOX, BOX}};
static const kva_kernel_desc box_kernel = {.name = "box", .threads = BOX * BOX, .maps = &box_map, .n_maps = 1};
static const char *const box_symbols[] = {"N"};
static const kva_buffer_desc box_buffers[] = {
    {BUFFER("x", INPUT, KVA_F32, 2), .dims = {FORMULA(NUMBER(BOX_ROWS)), FORMULA(SYMBOL(0))},
     .bytes = FORMULA(SYMBOL(0), NUMBER(4 * BOX_ROWS), OP(MUL))},
    {BUFFER("y", OUTPUT, KVA_F32, 2), .dims = {FORMULA(NUMBER(BOX)), FORMULA(NUMBER(BOX))},
     .bytes = FORMULA(NUMBER(4 * BOX * BOX))},
};
static const kva_step_desc box_steps[] = {KERNEL(0, F_ONE, 0, 1)};
static const kva_program box_program = PROGRAM(box, box_symbols, 1, LIST(0), 1, LIST(1), 1);

static bool runs_sm_90(const kva_device_class *class) {
  const char *arch = NULL;
  return kva_device_check(class->name, NULL, &arch) == KVA_OK &&
         (!strncmp(arch, "sm_9", 4) || class == &kva_device_ptxsim);
}

static void tensor_maps(void **state) {
  const kva_device_class *class = require(state);
  if (!runs_sm_90(class)) {
    printf("SKIP: tensor maps need compute capability 9.0\n");
    skip();
  }
  kva_artifact a = artifact_for(class);
  a.arch = a.target = "sm_90", a.module = box_ptx, a.module_bytes = (int64_t)sizeof box_ptx - 1;
  a.kernels = &box_kernel, a.n_kernels = 1, a.programs = &box_program, a.n_programs = 1, a.n_states = 0;
  kva_session *s = open_session(&a, class, 1);
  static float x[BOX_ROWS * 64];
  for (int i = 0; i < BOX_ROWS * 64; i++) x[i] = (float)(i + 1);
  static const int64_t widths[] = {8, 64, 8, 8, 64, 12};
  for (size_t k = 0; k < sizeof widths / sizeof *widths; k++) {
    int64_t n = widths[k];
    kva_tensor in = {.dtype = KVA_F32, .rank = 2, .dims = {BOX_ROWS, n}, .data = x}, out = {.data = NULL};
    if (kva_session_run(s, 0, &in, &out) != KVA_OK) fail_msg("%s", kva_session_error(s));
    for (int64_t i = 0; i < BOX * BOX; i++) {
      int64_t row = 3 + i / BOX, column = 4 + i % BOX;
      float want = row < BOX_ROWS && column < n ? x[row * n + column] : 0;
      assert_true(((float *)out.data)[i] == want);
    }
  }
  kva_session_destroy(s);
}

/* ---- one device, or none -------------------------------------------------------------------------------------------
 */

static void names_of_devices(void **unused) {
  (void)unused;
  kva_diag *diag = kva_diag_create();
  const char *arch = "?";
  assert_int_equal(kva_device_check(NULL, diag, &arch), KVA_OK);
  assert_null(arch);
  assert_int_equal(kva_device_check("ptxsim", diag, &arch), KVA_OK);
  assert_string_equal(arch, "sm_80");
  assert_int_equal(kva_diag_count(diag), 0);
  assert_int_equal(kva_device_check("gpu", diag, &arch), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), "there are: cpu, ptxsim, cuda"));
  kva_diag_destroy(diag);
}

static void findings_fail_the_run(void **unused) {
  (void)unused;
  kva_artifact a = artifact_for(&kva_device_ptxsim);
  kva_session *s = open_session(&a, &kva_device_ptxsim, 1);
  float x[64] = {0};
  kva_tensor in = {.dtype = KVA_F32, .rank = 2, .dims = {1, 33}, .data = x}, out = {.data = NULL};
  assert_int_equal(kva_session_run(s, P_BEYOND, &in, &out), KVA_INVALID);
  static const char *const parts[] = {"beyond: step 0 (kv.add sum) on device ptxsim", "findings of the simulator",
                                      "global access out of bounds", "beyond:"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) assert_non_null(strstr(kva_session_error(s), parts[i]));
  in.dims[1] = 64;
  out.data = NULL;
  assert_int_equal(kva_session_run(s, P_BEYOND, &in, &out), KVA_OK);
  assert_string_equal(kva_session_error(s), "");
  out.data = NULL;
  assert_int_equal(kva_session_run(s, P_SPOIL, &in, &out), KVA_INVALID);
  assert_non_null(strstr(kva_session_error(s), "store to read-only memory"));
  assert_true(x[0] == 0);
  kva_session_destroy(s);
}

static void damaged_modules_are_refused(void **unused) {
  (void)unused;
  kva_artifact good = artifact_for(&kva_device_ptxsim), a = good;
  kva_kernel_desc spoilt[N_DEVICE_KERNELS];
  memcpy(spoilt, kernels, sizeof spoilt);
  spoilt[D_SPOIL].name = "nowhere";
  kva_diag *diag = kva_diag_create();
  kva_session *s;
  const kva_session_options options = {.device = "ptxsim"};
  a.kernels = spoilt;
  assert_int_equal(kva_session_create(&a, &options, diag, &s), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), "no kernel 'nowhere'"));
  spoilt[D_SPOIL] = kernels[D_SPOIL];
  spoilt[D_ADD].symbols = LIST(2);
  assert_int_equal(kva_session_create(&a, &options, diag, &s), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 1, NULL, NULL), "calls kernel 0"));
  a = good;
  a.module = "this is no PTX";
  a.module_bytes = 14;
  assert_int_not_equal(kva_session_create(&a, &options, diag, &s), KVA_OK);
  a.module = NULL;
  assert_int_equal(kva_session_create(&a, &options, diag, &s), KVA_INVALID);
  kva_diag_destroy(diag);
}

/* ---- device cuda ---------------------------------------------------------------------------------------------------
 */

static int with_fake(void **state) {
  (void)state;
  const char *fake = getenv("KVASIR_FAKE_CUDA");
  if (!fake) return 0; /* by hand, without ctest: the driver, if there is one */
  setenv("KVASIR_CUDA_LIBRARY", fake, 1);
  setenv("KVASIR_CUBLASLT_LIBRARY", fake, 1);
  return 0;
}

static int ask_fake(const char *function) {
  void *library = dlopen(getenv("KVASIR_FAKE_CUDA"), RTLD_LAZY | RTLD_NOLOAD);
  int (*f)(void) = NULL;
  void *symbol = library ? dlsym(library, function) : NULL;
  memcpy(&f, &symbol, sizeof f);
  return f ? f() : -1;
}

/* Whatever a test did, the driver's contract held. */
static int without_fake(void **state) {
  (void)state;
  if (!getenv("KVASIR_FAKE_CUDA")) return 0;
  for (const char *const *name = (const char *const[]){"CUDA_LIBRARY", "CUBLASLT_LIBRARY", "CUDA_GRAPHS", NULL}; *name;
       name++) {
    char variable[64];
    snprintf(variable, sizeof variable, "KVASIR_%s", *name);
    unsetenv(variable);
  }
  unsetenv("FAKE_CUDA_DEVICES");
  unsetenv("FAKE_CUDA_CAPABILITY");
  return ask_fake("fake_cuda_violations") == 0 ? 0 : -1;
}

/* Both ways of running give the same. What is not recorded: the first run of either length, and the one after the
 * longer one made the session's memory grow. */
static void runs_are_recorded(void **state) {
  if (!getenv("KVASIR_FAKE_CUDA")) skip();
  int before = ask_fake("fake_cuda_graph_launches");
  equal_runs_give_equal_results(state);
  assert_int_equal(ask_fake("fake_cuda_graph_launches") - before, 12 - 3);
  setenv("KVASIR_CUDA_GRAPHS", "off", 1);
  before = ask_fake("fake_cuda_graph_launches");
  equal_runs_give_equal_results(state);
  assert_int_equal(ask_fake("fake_cuda_graph_launches") - before, 0);
}

static void expect_missing(const char *what) {
  kva_diag *diag = kva_diag_create();
  const char *arch;
  kva_artifact a = artifact_for(&kva_device_cuda);
  kva_session *s;
  assert_int_equal(kva_device_check("cuda", diag, &arch), KVA_MISSING);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), what));
  assert_int_equal(kva_session_create(&a, &(kva_session_options){.device = "cuda"}, diag, &s), KVA_MISSING);
  assert_null(s);
  kva_diag_destroy(diag);
}

static void what_is_missing_is_told(void **state) {
  (void)state;
  if (!getenv("KVASIR_FAKE_CUDA")) skip();
  setenv("FAKE_CUDA_DEVICES", "0", 1);
  expect_missing("finds no NVIDIA GPU");
  setenv("FAKE_CUDA_DEVICES", "1", 1);
  setenv("FAKE_CUDA_CAPABILITY", "75", 1);
  expect_missing("compute capability 7.5");
  setenv("KVASIR_CUDA_LIBRARY", "libm.so.6", 1);
  expect_missing("has no function cuInit");
  setenv("KVASIR_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1);
  expect_missing("install the driver");
}

static void missing_library_of_products(void **state) {
  if (!getenv("KVASIR_FAKE_CUDA")) skip();
  const kva_device_class *class = require(state);
  setenv("KVASIR_CUBLASLT_LIBRARY", "/nowhere/libcublasLt.so", 1);
  kva_artifact a = artifact_for(class);
  kva_diag *diag = kva_diag_create();
  kva_session *s;
  assert_int_equal(kva_session_create(&a, &(kva_session_options){.device = "cuda"}, diag, &s), KVA_MISSING);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), "--gemm generated"));
  a.n_programs = P_GPU; /* without products nobody asks for it */
  assert_int_equal(kva_session_create(&a, &(kva_session_options){.device = "cuda"}, diag, &s), KVA_OK);
  kva_session_destroy(s);
  kva_diag_destroy(diag);
}

static void what_the_device_targets(void **state) {
  (void)state;
  if (!getenv("KVASIR_FAKE_CUDA")) skip();
  static const char *const rows[][2] = {{"80", "sm_80"},  {"86", "sm_86"},  {"87", "sm_86"}, {"89", "sm_89"},
                                        {"90", "sm_90a"}, {"100", "sm_90"}, {"120", "sm_90"}};
  kva_diag *diag = kva_diag_create();
  const char *arch;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    setenv("FAKE_CUDA_CAPABILITY", rows[i][0], 1);
    assert_int_equal(kva_device_check("cuda", diag, &arch), KVA_OK);
    assert_string_equal(arch, rows[i][1]);
  }
  kva_artifact a = artifact_for(&kva_device_cuda);
  kva_session *s;
  a.arch = "sm_90a"; /* on 12.0 */
  assert_int_equal(kva_session_create(&a, &(kva_session_options){.device = "cuda"}, diag, &s), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), "sm_90a, which this GPU (sm_120)"));
  kva_diag_destroy(diag);
}

static void bad_code_is_refused(void **state) {
  if (!getenv("KVASIR_FAKE_CUDA")) skip();
  const kva_device_class *class = require(state);
  kva_artifact a = artifact_for(class);
  kva_kernel_desc spoilt[N_DEVICE_KERNELS];
  memcpy(spoilt, kernels, sizeof spoilt);
  spoilt[D_SPOIL].name = "nowhere";
  kva_diag *diag = kva_diag_create();
  kva_session *s;
  const kva_session_options options = {.device = "cuda"};
  a.kernels = spoilt;
  assert_int_equal(kva_session_create(&a, &options, diag, &s), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), "no kernel 'nowhere'"));
  a = artifact_for(class);
  a.module = "this is no PTX, and has no end";
  a.module_bytes = 14;
  assert_int_equal(kva_session_create(&a, &options, diag, &s), KVA_INVALID);
  const char *text = kva_diag_message(diag, 1, NULL, NULL);
  assert_non_null(strstr(text, "the driver refuses the artefact's code: CUDA_ERROR_INVALID_PTX"));
  assert_non_null(strstr(text, ":\n")); /* the compiler's log */
  kva_diag_destroy(diag);
}

/* A kernel that leaves the device's memory breaks the context: that run and all later ones fail and say so. */
static void faults_are_reported(void **state) {
  if (!getenv("KVASIR_FAKE_CUDA")) skip();
  const kva_device_class *class = require(state);
  kva_artifact a = artifact_for(class);
  kva_kernel_desc spoilt[N_DEVICE_KERNELS];
  memcpy(spoilt, kernels, sizeof spoilt);
  spoilt[D_SPOIL].threads = 1;
  kva_step_desc step = spoil_steps[0];
  step.args = LIST(B_TEMP); /* of no bytes, at no address */
  kva_program p = programs[P_SPOIL];
  p.n_steps = 1, p.steps = &step;
  kva_buffer_desc buffers[COUNT(device_buffers)];
  memcpy(buffers, device_buffers, sizeof buffers);
  buffers[B_TEMP].last_step = 0;
  p.buffers = buffers;
  a.programs = &p, a.n_programs = 1;
  kva_session *s = open_session(&a, class, 1);
  kva_tensor in = {.dtype = KVA_F32, .rank = 2, .dims = {1, 0}, .data = NULL}, out = {.data = NULL};
  for (int i = 0; i < 2; i++) {
    assert_int_equal(kva_session_run(s, 0, &in, &out), KVA_INVALID);
    assert_non_null(strstr(kva_session_error(s), "CUDA_ERROR_ILLEGAL_ADDRESS"));
  }
  kva_session_destroy(s);
}

typedef struct product_copy {
  kva_artifact a;
  kva_program programs[N_DEVICE_PROGRAMS];
  kva_step_desc steps[COUNT(gpu_steps)];
  kva_gemm_desc gemm;
} product_copy;

static void copy_products(product_copy *c) {
  c->a = artifact_for(&kva_device_ptxsim);
  memcpy(c->programs, programs, sizeof programs);
  memcpy(c->steps, gpu_steps, sizeof gpu_steps);
  c->gemm = *gpu_steps[1].gemm;
  c->steps[1].gemm = &c->gemm;
  c->programs[P_GPU].steps = c->steps;
  c->a.programs = c->programs;
}

static void expect_refusal(const product_copy *c, const char *message) {
  kva_diag *diag = kva_diag_create();
  kva_session *s;
  assert_int_equal(kva_session_create(&c->a, &(kva_session_options){.device = "ptxsim"}, diag, &s), KVA_INVALID);
  const char *text = kva_diag_message(diag, 0, NULL, NULL);
  if (!strstr(text, message)) fail_msg("expected '%s' in '%s'", message, text);
  kva_diag_destroy(diag);
}
#define SPOIL(field, value, message) \
  do {                               \
    product_copy c;                  \
    copy_products(&c);               \
    c.field = value;                 \
    expect_refusal(&c, message);     \
  } while (0)

static void damaged_products_are_refused(void **unused) {
  (void)unused;
  SPOIL(steps[1].gemm, NULL, "without a description");
  SPOIL(steps[1].n_args, 2, "step 1 of 'gpu' has 2 arguments");
  SPOIL(steps[1].args, LIST(4, 4, 3), "multiplies a buffer in place");
  SPOIL(steps[1].args, LIST(4, 5, 6), "argument 1 of step 1 of 'gpu' has type 16");
  SPOIL(gemm.dtype, KVA_F64, "multiplies type 11");
  SPOIL(gemm.dtype_d, KVA_BF16, "multiplies type 1 to type 16");
  SPOIL(gemm.k.n, 0, "size 3 of the product in step 1 of 'gpu' is no formula");
  SPOIL(a.arch, NULL, "which CPU code has none of");
}

/* Sizes are known when shapes are. */
static void products_stay_inside_their_buffers(void **unused) {
  (void)unused;
  static const kva_formula_word more[] = {NUMBER(ROWS + 1)}, close[] = {NUMBER(ROWS * COLUMNS - 1)};
  for (int k = 0; k < 2; k++) {
    product_copy c;
    copy_products(&c);
    *(k ? &c.gemm.step_d : &c.gemm.m) = (kva_formula){k ? close : more, 1};
    kva_session *s = open_session(&c.a, &kva_device_ptxsim, 1);
    static float data[BATCH * ROWS * 8];
    kva_tensor in[7] = {{.dtype = KVA_F32, .rank = 1, .dims = {BLOCK}, .data = data}}, out[5] = {{.data = NULL}};
    for (int i = 0; i < 6; i++)
      in[i + 1] = (kva_tensor){.dtype = i < 2   ? KVA_F32
                                        : i < 4 ? KVA_BF16
                                                : KVA_F16,
                               .rank = 1,
                               .dims = {i % 2 ? COLUMNS : BATCH * ROWS},
                               .data = data};
    assert_int_equal(kva_session_run(s, P_GPU, in, out), KVA_INVALID);
    assert_non_null(strstr(kva_session_error(s), "step 1 multiplies beyond its buffers"));
    kva_session_destroy(s);
  }
}

#define DEVICE_TEST(f, class) \
  { #f " on " #class, f, NULL, NULL, (void *)&kva_device_##class }
#define FAKE_TEST(f) \
  { #f " on a simulated cuda", f, with_fake, without_fake, (void *)&kva_device_cuda }
#define GPUS(f) DEVICE_TEST(f, ptxsim), DEVICE_TEST(f, cuda), FAKE_TEST(f)
#define ALL(f)  DEVICE_TEST(f, cpu), GPUS(f)

int main(void) {
  const struct CMUnitTest tests[] = {
      ALL(memory_and_copies),
      ALL(programs_run),
      ALL(states_are_current_and_writable),
      ALL(wrong_inputs_are_refused_and_change_nothing),
      ALL(other_devices_code_is_refused),
      ALL(equal_runs_give_equal_results),
      ALL(profiles_count_every_step),
      GPUS(products_of_the_library),
      GPUS(tensor_maps),
      cmocka_unit_test(names_of_devices),
      cmocka_unit_test(findings_fail_the_run),
      cmocka_unit_test(damaged_modules_are_refused),
      cmocka_unit_test(damaged_products_are_refused),
      cmocka_unit_test(products_stay_inside_their_buffers),
      FAKE_TEST(runs_are_recorded),
      FAKE_TEST(what_is_missing_is_told),
      FAKE_TEST(missing_library_of_products),
      FAKE_TEST(what_the_device_targets),
      FAKE_TEST(bad_code_is_refused),
      FAKE_TEST(faults_are_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
