/* What GPUs have beside every device: dynamic shared memory, tensor maps, library products. What device cuda does on
 * its own: recorded runs, and what it says when something is missing or broken. */
#include "tests/runtime/device_sample.h"

/* ---- GPUs: shared memory, library products ----------------------------------------------------------------------- */

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
  static const int64_t depths[] = {MAX_DEPTH, 8, 8, 8, 0, 1, 8};
  static uint64_t a[3][BATCH * ROWS * MAX_DEPTH], b[3][COLUMNS * MAX_DEPTH];
  for (int t = 0; t < 3; t++) {
    for (int i = 0; i < BATCH * ROWS * MAX_DEPTH; i++) kva_store_f64(types[t], a[t], i, (i * 7 % 13 - 6) / 8.0);
    for (int i = 0; i < COLUMNS * MAX_DEPTH; i++) kva_store_f64(types[t], b[t], i, (i * 5 % 11 - 5) / 8.0);
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
  const kva_code code = {.format = KVA_CODE_PTX, .arch = "sm_90", .data = box_ptx, .bytes = sizeof box_ptx - 1};
  a.target = "sm_90", a.codes = &code;
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

/* A kernel in clusters of two blocks, launched as one block. */
static void grids_fill_clusters(void **state) {
  static const char text[] = ".version 8.3\n.target sm_90\n.address_size 64\n"
                             ".visible .entry box(.param .u64 px, .param .u64 py, .param .align 64 .b8 map[128])\n"
                             ".reqnctapercluster 2 { ret; }\n";
  const kva_device_class *class = require(state);
  if (!runs_sm_90(class)) skip();
  kva_artifact a = artifact_for(class);
  const kva_code code = {.format = KVA_CODE_PTX, .arch = "sm_90", .data = text, .bytes = sizeof text - 1};
  a.target = "sm_90", a.codes = &code;
  a.kernels = &box_kernel, a.n_kernels = 1, a.programs = &box_program, a.n_programs = 1, a.n_states = 0;
  kva_session *s = open_session(&a, class, 1);
  static float x[BOX_ROWS * BOX];
  kva_tensor in = {.dtype = KVA_F32, .rank = 2, .dims = {BOX_ROWS, BOX}, .data = x}, out = {.data = NULL};
  assert_int_not_equal(kva_session_run(s, 0, &in, &out), KVA_OK);
  const char *why = class == &kva_device_ptxsim ? "in clusters of 2 x 1 x 1" : "CUDA_ERROR_INVALID_CLUSTER_SIZE";
  if (!strstr(kva_session_error(s), why)) fail_msg("'%s' says nothing of '%s'", kva_session_error(s), why);
  kva_session_destroy(s);
}

/* ---- device cuda ------------------------------------------------------------------------------------------------- */

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
  kva_code code = a.codes[0];
  code.arch = "sm_90a"; /* on 12.0 */
  a.codes = &code;
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
  const kva_code code = {
      .format = KVA_CODE_PTX, .arch = "sm_80", .data = "this is no PTX, and has no end", .bytes = 14};
  a.codes = &code;
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
  c->gemm = *(const kva_gemm_desc *)gpu_steps[1].desc;
  c->steps[1].desc = &c->gemm;
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
  SPOIL(steps[1].desc, NULL, "step 1 of 'gpu' has no description");
  SPOIL(steps[1].call, KVA_CALL_COUNT, "step 1 of 'gpu' is call");
  SPOIL(steps[1].n_args, 2, "step 1 of 'gpu' has 2 arguments");
  SPOIL(steps[1].args, LIST(4, 3, 4), "multiplies a buffer in place");
  SPOIL(steps[1].args, LIST(5, 6, 4), "step 1 of 'gpu': its argument 0 has type 16");
  SPOIL(gemm.dtype, KVA_F64, "multiplies type 11");
  SPOIL(gemm.dtype_d, KVA_BF16, "multiplies type 1 to type 16");
  SPOIL(gemm.k.n, 0, "member 3 in the description of step 1 of 'gpu' is damaged");
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
    assert_non_null(strstr(kva_session_error(s), "step 1 works beyond its buffers"));
    kva_session_destroy(s);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      GPUS(products_of_the_library),
      GPUS(tensor_maps),
      GPUS(grids_fill_clusters),
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
