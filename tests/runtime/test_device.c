/* What every device must do: memory and copies; programs with inputs, constants, states, temporaries and outputs, for
 * several shapes; states that the host reads and writes between runs. Then what each refuses, and what the simulator
 * finds. The kernels are written twice, in C and in PTX; work items are blocks of 32 elements. */
#include "runtime/device.h"
#include "tests/runtime/sample.h"

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
    ADD("beyond", "") ".visible .entry count(.param .u64 pt, .param .u64 pn) {\n"
                      ".reg .b64 %d<3>; .reg .f32 %f<4>;\n"
                      "ld.param.u64 %d1, [pt]; ld.param.u64 %d2, [pn]; ld.global.f32 %f1, [%d1];\n"
                      "cvt.rn.f32.s64 %f2, %d2; add.f32 %f3, %f1, %f2; st.global.f32 [%d1], %f3; ret; }\n"
                      ".visible .entry spoil(.param .u64 px) {\n"
                      ".reg .b64 %d<2>; ld.param.u64 %d1, [px]; st.global.f32 [%d1], 0f3F800000; ret; }\n";

enum { D_ADD, D_COUNT, D_BEYOND, D_SPOIL, N_DEVICE_KERNELS };
#define N_SYMBOL    .symbols = LIST(1), .n_symbols = 1
#define GPU_THREADS .threads = BLOCK
static const kva_kernel_desc kernels[N_DEVICE_KERNELS] = {
    [D_ADD] = {.name = "add", .fn = add, GPU_THREADS, N_SYMBOL},
    [D_COUNT] = {.name = "count", .fn = count, .threads = 1, N_SYMBOL},
    [D_BEYOND] = {.name = "beyond", .fn = add, GPU_THREADS, N_SYMBOL},
    [D_SPOIL] = {.name = "spoil", .fn = add, .threads = 1},
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
#define DEVICE_PROGRAM(n, outs, n_outs)                                                                            \
  {                                                                                                                \
    .name = #n, .n_symbols = 2, .symbols = symbols, .n_buffers = COUNT(device_buffers), .buffers = device_buffers, \
    .n_steps = COUNT(n##_steps), .steps = n##_steps, .n_inputs = 1, .inputs = LIST(0), .n_outputs = n_outs,        \
    .outputs = outs                                                                                                \
  }
enum { P_RUN, P_BEYOND, P_SPOIL, N_DEVICE_PROGRAMS };
static const kva_program programs[N_DEVICE_PROGRAMS] = {
    [P_RUN] = DEVICE_PROGRAM(run, LIST(B_Y, B_TOTAL, B_Z, B_Y), 4),
    [P_BEYOND] = DEVICE_PROGRAM(beyond, LIST(B_Y), 1),
    [P_SPOIL] = DEVICE_PROGRAM(spoil, LIST(B_Y), 1),
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
                        .n_programs = N_DEVICE_PROGRAMS,
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

/* ---- every device --------------------------------------------------------------------------------------------------
 */

static void memory_and_copies(void **state) {
  const kva_device_class *class = *state;
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
  const kva_device_class *class = *state;
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
  const kva_device_class *class = *state;
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
  const kva_device_class *class = *state;
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
  const kva_device_class *class = *state, *other = class->arch ? &kva_device_cpu : &kva_device_ptxsim;
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
  assert_int_equal(kva_device_check("cuda", diag, &arch), KVA_MISSING);
  assert_int_equal(kva_device_check("gpu", diag, &arch), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 1, NULL, NULL), "there are: cpu, ptxsim"));
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

#define DEVICE_TEST(f, class) \
  { #f " on " #class, f, NULL, NULL, (void *)&kva_device_##class }
#define BOTH(f) DEVICE_TEST(f, cpu), DEVICE_TEST(f, ptxsim)

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(memory_and_copies),
      BOTH(programs_run),
      BOTH(states_are_current_and_writable),
      BOTH(wrong_inputs_are_refused_and_change_nothing),
      BOTH(other_devices_code_is_refused),
      cmocka_unit_test(names_of_devices),
      cmocka_unit_test(findings_fail_the_run),
      cmocka_unit_test(damaged_modules_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
