/* ldmatrix, mma.sync, stmatrix and cp.async: a 16 x 8 x 16 product staged through shared memory, against a naive one.
 */
#include "tests/ptxsim/ptx_test.h"

#include <math.h>

enum { M = 16, N = 8, K = 16 };

/* A is row major (16 x 16), B is stored as n rows of k (8 x 16), both 512 + 256 bytes of 16-bit floats; D = A B^T in
 * f32, written by the fragment's own layout. One warp; %s: the type. */
static const char product[] = PTX_HEAD
    ".entry k(.param .u64 pa, .param .u64 pb, .param .u64 pd) {\n"
    ".reg .b32 %%r<40>; .reg .b64 %%d<20>; .reg .f32 %%f<9>; .reg .pred %%p<3>;\n"
    ".shared .align 128 .b8 tile[768];\n"
    "ld.param.u64 %%d1, [pa]; ld.param.u64 %%d2, [pb]; ld.param.u64 %%d3, [pd]; mov.u32 %%r1, %%tid.x;\n"
    "mov.u32 %%r2, tile; shl.b32 %%r3, %%r1, 4; add.u32 %%r4, %%r2, %%r3; cvt.u64.u32 %%d4, %%r3; add.s64 %%d5, %%d1, "
    "%%d4;\n"
    "cp.async.cg.shared.global [%%r4], [%%d5], 16;\n"
    "setp.lt.u32 %%p1, %%r1, 16; add.s64 %%d6, %%d2, %%d4; @%%p1 cp.async.ca.shared.global [%%r4+512], [%%d6], 16;\n"
    "cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;\n"
    /* A: lanes 0-15 rows of the left half, 16-31 of the right. */
    "and.b32 %%r5, %%r1, 15; shr.u32 %%r6, %%r1, 4; shl.b32 %%r5, %%r5, 5; shl.b32 %%r6, %%r6, 4; add.u32 %%r5, %%r5, "
    "%%r6;\n"
    "add.u32 %%r5, %%r5, %%r2; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%%r10, %%r11, %%r12, %%r13}, [%%r5];\n"
    /* B: lanes 0-7 columns k 0-7, 8-15 the rest. */
    "and.b32 %%r7, %%r1, 7; shl.b32 %%r7, %%r7, 5; shr.u32 %%r8, %%r1, 3; and.b32 %%r8, %%r8, 1; shl.b32 %%r8, %%r8, "
    "4;\n"
    "add.u32 %%r7, %%r7, %%r8; add.u32 %%r7, %%r7, %%r2; ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%%r14, %%r15}, "
    "[%%r7+512];\n"
    "mov.f32 %%f1, 0f3F800000; mov.f32 %%f2, %%f1; mov.f32 %%f3, %%f1; mov.f32 %%f4, %%f1;\n"
    "mma.sync.aligned.m16n8k16.row.col.f32.%s.%s.f32 {%%f5, %%f6, %%f7, %%f8}, {%%r10, %%r11, %%r12, %%r13}, {%%r14, "
    "%%r15}, "
    "{%%f1, %%f2, %%f3, %%f4};\n"
    "shr.u32 %%r20, %%r1, 2; and.b32 %%r21, %%r1, 3; shl.b32 %%r21, %%r21, 1; mad.lo.u32 %%r22, %%r20, 8, %%r21;\n"
    "mul.wide.u32 %%d7, %%r22, 4; add.s64 %%d8, %%d3, %%d7;\n"
    "st.global.v2.f32 [%%d8], {%%f5, %%f6}; st.global.v2.f32 [%%d8+256], {%%f7, %%f8}; ret;\n}\n";

static void check_product(kva_dtype type, const char *name, bool lazy) {
  kva_text text = {0};
  kva_text_add(&text, product, name, name);
  kva_ptx_module *m = ptx_parse(text.data);
  uint16_t a[M * K] __attribute__((aligned(16))), b[N * K] __attribute__((aligned(16)));
  float d[M * N] __attribute__((aligned(16)));
  uint64_t random = 5;
  for (int k = 0; k < M * K; k++) kva_store_f64(type, a, k, (double)(ptx_random(&random) % 64) / 8 - 4);
  for (int k = 0; k < N * K; k++) kva_store_f64(type, b, k, (double)(ptx_random(&random) % 64) / 8 - 4);
  ptx_case c = {.block = {32, 1, 1},
                .arrays = {a, b, d},
                .sizes = {sizeof a, sizeof b, sizeof d},
                .n_arrays = 3,
                .options = {.lazy = lazy}};
  kva_ptx_report report = ptx_run(m, &c);
  kva_ptx_report_print_findings(&report, "test.ptx", stderr);
  assert_int_equal(report.n_findings, 0);
  assert_int_equal(report.counters.matrix_flops, 2 * M * N * K);
  kva_ptx_report_free(&report);
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) {
      double sum = 1;
      for (int k = 0; k < K; k++) sum += kva_load_f64(type, a, i * K + k) * kva_load_f64(type, b, j * K + k);
      assert_true(fabs((double)d[i * N + j] - sum) <= 1e-4);
    }
  kva_ptx_module_destroy(m);
  kva_text_free(&text);
}

static void products(void **state) {
  (void)state;
  check_product(KVA_BF16, "bf16", false);
  check_product(KVA_F16, "f16", false);
  check_product(KVA_BF16, "bf16", true);
}

/* stmatrix is the inverse of ldmatrix, transposed or not. */
static void matrices_there_and_back(void **state) {
  (void)state;
  for (int t = 0; t < 2; t++) {
    kva_text text = {0};
    kva_text_add(
        &text,
        PTX_HEAD
        ".entry k(.param .u64 in, .param .u64 out) { .reg .b32 %%r<20>; .reg .b64 %%d<9>;\n"
        ".shared .align 16 .b8 x[512]; .shared .align 16 .b8 y[512];\n"
        "ld.param.u64 %%d1, [in]; ld.param.u64 %%d2, [out]; mov.u32 %%r1, %%tid.x; mul.wide.u32 %%d3, %%r1, 16;\n"
        "add.s64 %%d1, %%d1, %%d3; add.s64 %%d2, %%d2, %%d3; mov.u64 %%d4, x; add.s64 %%d4, %%d4, %%d3;\n"
        "mov.u64 %%d5, y; add.s64 %%d5, %%d5, %%d3;\n"
        "ld.global.v4.b32 {%%r2, %%r3, %%r4, %%r5}, [%%d1]; st.shared.v4.b32 [%%d4], {%%r2, %%r3, %%r4, %%r5};\n"
        "bar.warp.sync -1;\n"
        "ldmatrix.sync.aligned.m8n8.x4%s.shared.b16 {%%r6, %%r7, %%r8, %%r9}, [%%d4];\n"
        "stmatrix.sync.aligned.m8n8.x4%s.shared.b16 [%%d5], {%%r6, %%r7, %%r8, %%r9};\n bar.warp.sync -1;\n"
        "ld.shared.v4.b32 {%%r2, %%r3, %%r4, %%r5}, [%%d5]; st.global.v4.b32 [%%d2], {%%r2, %%r3, %%r4, %%r5};\n"
        "ret; }\n",
        t ? ".trans" : "", t ? ".trans" : "");
    kva_ptx_module *m = ptx_parse(text.data);
    uint16_t in[256] __attribute__((aligned(16))), out[256] __attribute__((aligned(16))) = {0};
    for (int k = 0; k < 256; k++) in[k] = (uint16_t)(k * 7);
    ptx_case c = {.block = {32, 1, 1}, .arrays = {in, out}, .sizes = {sizeof in, sizeof out}, .n_arrays = 2};
    ptx_run_clean(m, &c);
    assert_memory_equal(in, out, sizeof in);
    kva_ptx_module_destroy(m);
    kva_text_free(&text);
  }
}

/* The transposing load against its definition. */
static void transposed_load(void **state) {
  (void)state;
  kva_ptx_module *m = ptx_parse(
      PTX_HEAD
      ".entry k(.param .u64 out) { .reg .b32 %r<20>; .reg .b64 %d<9>; .reg .b16 %h<4>; .shared .align 16 .b8 x[128];\n"
      "ld.param.u64 %d2, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, x; shl.b32 %r3, %r1, 2; add.u32 %r3, %r3, %r2;\n"
      "shl.b32 %r4, %r1, 1; add.u32 %r5, %r4, 1; cvt.u16.u32 %h1, %r4; cvt.u16.u32 %h2, %r5;\n"
      "mov.b32 %r6, {%h1, %h2}; st.shared.b32 [%r3], %r6; bar.warp.sync -1;\n"
      "and.b32 %r7, %r1, 7; shl.b32 %r7, %r7, 4; add.u32 %r7, %r7, %r2;\n"
      "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r8}, [%r7];\n"
      "mul.wide.u32 %d3, %r1, 4; add.s64 %d2, %d2, %d3; st.global.b32 [%d2], %r8; ret; }\n");
  uint16_t out[64];
  ptx_case c = {.block = {32, 1, 1}, .arrays = {out}, .sizes = {sizeof out}, .n_arrays = 1};
  ptx_run_clean(m, &c);
  for (int l = 0; l < 32; l++)
    for (int h = 0; h < 2; h++) assert_int_equal(out[2 * l + h], (2 * (l % 4) + h) * 8 + l / 4);
  kva_ptx_module_destroy(m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(products),
      cmocka_unit_test(matrices_there_and_back),
      cmocka_unit_test(transposed_load),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
