/* Tensor maps and dynamic shared memory of a kernel on the simulated device: formulas are evaluated for every launch.
 */
#include "runtime/device.h"
#include "tests/runtime/sample.h"

#include <setjmp.h>
#include <cmocka.h>

enum { ROWS = 4, BOX = 8 };

/* y[block][row][BOX] = x[row][8 block ...], by a bulk copy of a box that reads zeros beyond x [ROWS, N]. */
static const char ptx[] =
    ".version 8.3\n.target sm_90a\n.address_size 64\n.extern .shared .align 128 .b8 box[];\n"
    ".visible .entry tiles(.param .u64 px, .param .u64 py, .param .u64 pn, .param .align 64 .b8 map[128]) {\n"
    ".reg .pred %p<3>; .reg .b32 %r<12>; .reg .b64 %d<8>;\n"
    "ld.param.u64 %d1, [py]; mov.u64 %d2, map; cvta.param.u64 %d3, %d2; mov.u32 %r1, box; add.u32 %r2, %r1, 128;\n"
    "mov.u32 %r3, %tid.x; mov.u32 %r4, %ctaid.x; shl.b32 %r5, %r4, 3; setp.eq.u32 %p1, %r3, 0; mov.u32 %r9, 0;\n"
    "@%p1 mbarrier.init.shared.b64 [%r2], 1; @%p1 fence.mbarrier_init.release.cluster; bar.sync 0;\n"
    "@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 128;\n"
    "@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d3, {%r5, %r9}], "
    "[%r2];\n"
    "W: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra W;\n"
    "shl.b32 %r6, %r3, 2; add.u32 %r6, %r6, %r1; ld.shared.b32 %r7, [%r6]; shl.b32 %r8, %r4, 5; add.u32 %r8, %r8, "
    "%r3;\n"
    "mul.wide.u32 %d4, %r8, 4; add.s64 %d1, %d1, %d4; st.global.b32 [%d1], %r7; ret; }\n";

#define F_ROW    FORMULA(SYMBOL(0), NUMBER(4), OP(MUL))
#define F_BLOCKS FORMULA(SYMBOL(0), NUMBER(BOX - 1), OP(ADD), NUMBER(BOX), OP(DIV))
#define F_OUT    FORMULA(SYMBOL(0), NUMBER(BOX - 1), OP(ADD), NUMBER(BOX), OP(DIV), NUMBER(4 * ROWS * BOX), OP(MUL))
static const kva_tensor_map_desc map = {.argument = 0,
                                        .dtype = KVA_F32,
                                        .rank = 2,
                                        .dims = {FORMULA(SYMBOL(0)), FORMULA(NUMBER(ROWS))},
                                        .strides = {{0}, F_ROW},
                                        .box = {BOX, ROWS}};
static const kva_kernel_desc kernel = {.name = "tiles",
                                       .threads = 32,
                                       .dynamic_bytes = 136,
                                       .n_symbols = 1,
                                       .symbols = LIST(0),
                                       .maps = &map,
                                       .n_maps = 1};
static const kva_buffer_desc buffers[] = {
    {BUFFER("x", INPUT, KVA_F32, 2), .dims = {FORMULA(NUMBER(ROWS)), FORMULA(SYMBOL(0))},
     .bytes = FORMULA(SYMBOL(0), NUMBER(4 * ROWS), OP(MUL))},
    {BUFFER("y", OUTPUT, KVA_F32, 2), .dims = {F_BLOCKS, FORMULA(NUMBER(ROWS *BOX))}, .bytes = F_OUT},
};
static const kva_step_desc steps[] = {KERNEL(0, F_BLOCKS, 0, 1)};
static const char *const symbols[] = {"N"};
static const kva_program program = {.name = "run",
                                    .n_symbols = 1,
                                    .symbols = symbols,
                                    .n_buffers = 2,
                                    .buffers = buffers,
                                    .n_steps = 1,
                                    .steps = steps,
                                    .n_inputs = 1,
                                    .inputs = LIST(0),
                                    .n_outputs = 1,
                                    .outputs = LIST(1)};

static kva_session *open_session(void) {
  static const kva_code code = {.format = KVA_CODE_PTX, .arch = "sm_90a", .data = ptx, .bytes = sizeof ptx - 1};
  static const kva_artifact artifact = {.magic = KVA_ABI_MAGIC,
                                        .abi_version = KVA_ABI_VERSION,
                                        .n_kernels = 1,
                                        .n_programs = 1,
                                        .model = "maps",
                                        .target = "test",
                                        .n_codes = 1,
                                        .codes = &code,
                                        .kernels = &kernel,
                                        .programs = &program};
  const kva_session_options options = {.device = "ptxsim"};
  kva_diag *diag = kva_diag_create();
  kva_session *s = NULL;
  kva_status status = kva_session_create(&artifact, &options, diag, &s);
  if (status != KVA_OK) kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  kva_diag_destroy(diag);
  return s;
}

static void tiles(void **state) {
  (void)state;
  static const int64_t widths[] = {8, 12, 20};
  kva_session *s = open_session();
  for (size_t k = 0; k < 3; k++) {
    float x[ROWS * 20];
    int64_t n = widths[k];
    for (int64_t e = 0; e < ROWS * n; e++) x[e] = (float)(e + 1);
    kva_tensor in = {.dtype = KVA_F32, .rank = 2, .dims = {ROWS, n}, .data = x}, out = {.data = NULL};
    kva_status status = kva_session_run(s, 0, &in, &out);
    if (status != KVA_OK) fail_msg("%s", kva_session_error(s));
    const float *y = out.data;
    for (int64_t e = 0; e < (n + BOX - 1) / BOX * ROWS * BOX; e++) {
      int64_t column = e / (ROWS * BOX) * BOX + e % BOX, row = e / BOX % ROWS;
      assert_true(y[e] == (column < n ? x[row * n + column] : 0));
    }
  }
  kva_session_destroy(s);
}

/* Rows of 40 bytes: the launch says what a map cannot have. */
static void refused(void **state) {
  (void)state;
  kva_session *s = open_session();
  float x[ROWS * 10] = {0};
  kva_tensor in = {.dtype = KVA_F32, .rank = 2, .dims = {ROWS, 10}, .data = x}, out = {.data = NULL};
  assert_int_not_equal(kva_session_run(s, 0, &in, &out), KVA_OK);
  assert_non_null(strstr(kva_session_error(s), "stride of 40 bytes"));
  kva_session_destroy(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(tiles), cmocka_unit_test(refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
