/* An artefact that is the same on every device, written by hand in C and in PTX, and the devices that tests run it on.
 * Work items are blocks of 32 elements.
 *
 *   run     (x float[B, N]) -> y, total, z, y: y = z = x + 2 table, the state total grows by N
 *   beyond, spoil: kernels that a GPU must not run
 *   gpu     (x, a, b of three types) -> what only GPUs have: dynamic shared memory and library products
 *
 * Device cuda runs twice: on the machine's GPU, skipped with the reason where there is none, and with the stand-in for
 * the driver in $KVASIR_FAKE_CUDA (tests/fake_cuda). */
#ifndef KVA_TESTS_RUNTIME_DEVICE_SAMPLE_H
#define KVA_TESTS_RUNTIME_DEVICE_SAMPLE_H

#include "runtime/device.h"
#include "tests/runtime/sample.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <cmocka.h>

/* ---- the artefact ------------------------------------------------------------------------------------------------ */

enum { BLOCK = 32, TABLE = 4 };

/* x, table -> y: y[i] = x[i] + table[i % 4] */
static inline void add(void *const *p, const int64_t *symbols, int64_t begin, int64_t end) {
  const float *x = p[0], *table = p[1];
  for (int64_t i = begin * BLOCK; i < end * BLOCK && i < symbols[1]; i++) ((float *)p[2])[i] = x[i] + table[i % TABLE];
}
/* total += N */
static inline void count(void *const *p, const int64_t *symbols, int64_t begin, int64_t end) {
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
enum { ROWS = 5, COLUMNS = 35, MAX_DEPTH = 150, BATCH = 3 };
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
#define GEMM(d, a, b, product)                                                                                      \
  {                                                                                                                 \
    .kind = KVA_STEP_CALL, .call = KVA_CALL_GEMM, .kernel = -1, .n_args = 3, .n_results = 1, .args = LIST(a, b, d), \
    .desc = product, .origin = "kv.matmul"                                                                          \
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

static inline kva_artifact artifact_for(const kva_device_class *class) {
  static const kva_code functions = {.format = KVA_CODE_FUNCTIONS},
                        text = {.format = KVA_CODE_PTX, .arch = "sm_80", .data = ptx, .bytes = sizeof ptx - 1};
  return (kva_artifact){.magic = KVA_ABI_MAGIC,
                        .abi_version = KVA_ABI_VERSION,
                        .n_states = COUNT(states),
                        .n_kernels = N_DEVICE_KERNELS,
                        .n_programs = class->arch ? N_DEVICE_PROGRAMS : P_GPU,
                        .model = "device",
                        .target = class->arch ? class->arch : "c",
                        .n_codes = 1,
                        .codes = class->arch ? &text : &functions,
                        .states = states,
                        .kernels = kernels,
                        .programs = programs};
}

static inline kva_session *open_session(const kva_artifact *a, const kva_device_class *class, int threads) {
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
static inline const kva_device_class *require(void **state) {
  const kva_device_class *class = *state;
  const char *arch;
  kva_diag *diag = kva_diag_create();
  bool missing = kva_device_check(class->name, diag, &arch) == KVA_MISSING;
  if (missing) printf("SKIP: %s\n", kva_diag_message(diag, 0, NULL, NULL));
  kva_diag_destroy(diag);
  if (missing) skip();
  return class;
}

static inline float expected(const float *x, int64_t i) {
  return x[i] + 2 * table[i % TABLE];
}

static inline void equal_runs_give_equal_results(void **state) {
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

/* ---- device cuda without a GPU ----------------------------------------------------------------------------------- */

static inline int with_fake(void **state) {
  (void)state;
  const char *fake = getenv("KVASIR_FAKE_CUDA");
  if (!fake) return 0; /* by hand, without ctest: the driver, if there is one */
  setenv("KVASIR_CUDA_LIBRARY", fake, 1);
  setenv("KVASIR_CUBLASLT_LIBRARY", fake, 1);
  return 0;
}

static inline int ask_fake(const char *function) {
  void *library = dlopen(getenv("KVASIR_FAKE_CUDA"), RTLD_LAZY | RTLD_NOLOAD);
  int (*f)(void) = NULL;
  void *symbol = library ? dlsym(library, function) : NULL;
  memcpy(&f, &symbol, sizeof f);
  return f ? f() : -1;
}

/* Whatever a test did, the driver's contract held. */
static inline int without_fake(void **state) {
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

#define DEVICE_TEST(f, class) \
  { #f " on " #class, f, NULL, NULL, (void *)&kva_device_##class }
#define FAKE_TEST(f) \
  { #f " on a simulated cuda", f, with_fake, without_fake, (void *)&kva_device_cuda }
#define GPUS(f) DEVICE_TEST(f, ptxsim), DEVICE_TEST(f, cuda), FAKE_TEST(f)
#define ALL(f)  DEVICE_TEST(f, cpu), GPUS(f)

#endif
