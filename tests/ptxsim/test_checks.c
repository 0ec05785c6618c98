/* Every checker: a kernel that is wrong, with the line it must name, and its neighbour that is right. */
#include "tests/ptxsim/ptx_test.h"

enum { N = 64 };

/* The body starts at the line behind the prologue, one statement a line: line 1 of the body is line BODY of the text.
 */
static const char prologue[] =
    PTX_HEAD ".extern .shared .align 16 .b8 s[];\n"
             ".entry k(.param .u64 in, .param .u64 out) {\n"
             ".reg .b32 %r<20>; .reg .b64 %d<12>; .reg .pred %p<6>; .reg .b16 %h<4>;\n"
             "ld.param.u64 %d1, [in]; ld.param.u64 %d2, [out]; mov.u32 %r0, %tid.x; mul.wide.u32 %d3, %r0, 4;\n"
             "add.s64 %d4, %d1, %d3; add.s64 %d5, %d2, %d3; mov.u64 %d6, s; add.s64 %d7, %d6, %d3; mov.u32 %r1, 1;\n"
             "setp.eq.u32 %p1, %r0, 0; setp.lt.u32 %p2, %r0, 32; and.b32 %r2, %r0, 1; setp.eq.u32 %p3, %r2, 0;\n";
enum { BODY = PTX_HEAD_LINES + 7 };

static kva_ptx_report run(const char *body, kva_ptx_options options) {
  kva_text text = {0};
  kva_text_add(&text, "%s%s\nret;\n}\n", prologue, body);
  kva_ptx_module *m = ptx_parse(text.data);
  static uint32_t words[4 * N] __attribute__((aligned(32))); /* what lies behind each array is not registered */
  ptx_case c = {.block = {N, 1, 1},
                .arrays = {words, words + 2 * N},
                .sizes = {4 * N, 4 * N},
                .n_arrays = 2,
                .shared = 1024,
                .options = options};
  kva_ptx_report report = ptx_run(m, &c);
  kva_ptx_module_destroy(m);
  kva_text_free(&text);
  return report;
}

static void expect_with(const char *body, kva_ptx_finding_kind kind, uint32_t line, kva_ptx_options options) {
  kva_ptx_report report = run(body, options);
  ptx_expect_finding(&report, kind, BODY + line - 1, body);
  kva_ptx_report_free(&report);
}
static void expect(const char *body, kva_ptx_finding_kind kind, uint32_t line) {
  expect_with(body, kind, line, (kva_ptx_options){0});
}
static void clean_with(const char *body, kva_ptx_options options) {
  kva_ptx_report report = run(body, options);
  if (report.n_findings) fprintf(stderr, "%s\n", body);
  kva_ptx_report_print_findings(&report, "test.ptx", stderr);
  assert_int_equal(report.n_findings, 0);
  kva_ptx_report_free(&report);
}
static void clean(const char *body) {
  clean_with(body, (kva_ptx_options){0});
}

static void global_bounds(void **state) {
  (void)state;
  clean("ld.global.u32 %r3, [%d4];");
  expect("ld.global.u32 %r3, [%d4+4];", KVA_PTX_GLOBAL_BOUNDS, 1);
  expect("mov.u64 %d8, 16;\nst.global.u32 [%d8], 1;", KVA_PTX_GLOBAL_BOUNDS, 2);
  expect("st.global.u32 [%d5+-4], 1;", KVA_PTX_GLOBAL_BOUNDS, 1);
  expect("atom.global.add.u32 %r3, [%d5+4], 1;", KVA_PTX_GLOBAL_BOUNDS, 1);
}

static void alignment(void **state) {
  (void)state;
  clean("@%p1 ld.global.v2.u32 {%r3, %r4}, [%d4];");
  expect("@%p1 ld.global.u32 %r3, [%d4+2];", KVA_PTX_MISALIGNED, 1);
  expect("ld.global.v2.u32 {%r3, %r4}, [%d4];", KVA_PTX_MISALIGNED, 1);
}

static void read_only_memory(void **state) {
  (void)state;
  kva_ptx_module *m =
      ptx_parse(PTX_HEAD ".const .u32 c = 1;\n.entry k() { .reg .b64 %d<3>;\nmov.u64 %d1, c; cvta.const.u64 %d2, %d1;\n"
                         "st.u32 [%d2], 1; ret; }\n");
  ptx_case c = {.block = {1, 1, 1}};
  kva_ptx_report report = ptx_run(m, &c);
  assert_int_equal(report.n_findings, 1);
  assert_int_equal(report.findings[0].kind, KVA_PTX_GLOBAL_READ_ONLY);
  kva_ptx_report_free(&report);
  kva_ptx_module_destroy(m);
}

static void windows(void **state) {
  (void)state;
  clean("st.shared.u32 [%d7+768], %r1;");
  expect("st.shared.u32 [%d7+772], %r1;", KVA_PTX_SHARED_BOUNDS, 1);
  expect(".local .align 4 .b8 f[8];\nmov.u64 %d8, f;\nld.local.u32 %r3, [%d8+8];", KVA_PTX_LOCAL_BOUNDS, 3);
  expect("mov.u64 %d8, in;\nld.param.u64 %d9, [%d8+16];", KVA_PTX_PARAM_BOUNDS, 2);
}

static void uninitialised_shared(void **state) {
  (void)state;
  clean("st.shared.u32 [%d7], %r1;\nld.shared.u32 %r3, [%d7];");
  expect("ld.shared.u32 %r3, [%d7];", KVA_PTX_SHARED_UNINITIALIZED, 1);
  expect("@%p2 st.shared.u32 [%d7], %r1;\nbar.sync 0;\nld.shared.u32 %r3, [%d7];", KVA_PTX_SHARED_UNINITIALIZED, 3);
  expect("atom.shared.add.u32 %r3, [%d7], 1;", KVA_PTX_SHARED_UNINITIALIZED, 1);
  clean_with("ld.shared.u32 %r3, [%d7];", (kva_ptx_options){.unchecked_shared = true});
}

/* Neighbours exchange: thread t reads the word of t ^ 32, of the other warp, or of t ^ 1. */
#define EXCHANGE(x, sync)                                                                      \
  "st.shared.u32 [%d7], %r0;\n" sync "\nxor.b32 %r3, %r0, " x ";\nmul.wide.u32 %d8, %r3, 4;\n" \
  "add.s64 %d8, %d6, %d8;\nld.shared.u32 %r4, [%d8];\n"
static void races(void **state) {
  (void)state;
  clean(EXCHANGE("32", "bar.sync 0;"));
  clean(EXCHANGE("1", "bar.warp.sync -1;"));
  clean(EXCHANGE("32", "bar.sync 0;") "bar.sync 0;\nst.shared.u32 [%d7], %r1;");
  expect(EXCHANGE("1", ""), KVA_PTX_SHARED_RACE, 6);
  expect(EXCHANGE("32", "bar.warp.sync -1;"), KVA_PTX_SHARED_UNINITIALIZED, 6); /* the other warp has not run */
  expect(EXCHANGE("32", "bar.sync 0;") "st.shared.u32 [%d7], %r1;", KVA_PTX_SHARED_RACE, 7);
  /* The barrier of one warp orders nothing for the other. */
  expect("@%p2 st.shared.u32 [%d7], %r0;\nbar.sync 0;\n@%p2 st.shared.u32 [%d7], %r1;\n@!%p2 ld.shared.u32 %r4, "
         "[%d7+-128];",
         KVA_PTX_SHARED_RACE, 4);
  /* All write one word: a race unless the values agree; atomics do not race with each other. */
  expect("st.shared.u32 [%d6], %r0;", KVA_PTX_SHARED_RACE, 1);
  clean("st.shared.u32 [%d6], %r1;");
  clean("@%p1 st.shared.u32 [%d6], 0;\nbar.sync 0;\nred.shared.add.u32 [%d6], 1;");
  expect("@%p1 st.shared.u32 [%d6], 0;\nbar.sync 0;\nred.shared.add.u32 [%d6], 1;\nld.shared.u32 %r3, [%d6];",
         KVA_PTX_SHARED_RACE, 4);
  /* Halves of a word by different threads. */
  clean("mul.wide.u32 %d8, %r0, 2;\nadd.s64 %d8, %d6, %d8;\nst.shared.u16 [%d8], %r0;");
}

static void barriers(void **state) {
  (void)state;
  clean("bar.sync 0;\n@%p2 bra A;\nbar.sync 1, 32;\nbra B;\nA: bar.sync 2, 32;\nB: bar.sync 0;");
  expect("@%p3 bra A;\nbar.sync 0;\nA: bar.sync 0;", KVA_PTX_DIVERGENT_BARRIER, 2);
  expect("@%p2 bra A;\nbar.sync 1;\nbra B;\nA: bar.sync 2;\nB: ret;", KVA_PTX_DEADLOCK, 2);
  expect("@%p2 bra A;\nbar.sync 1;\nbra B;\nA: bar.sync 2;\nB: ret;", KVA_PTX_DEADLOCK, 4);
  expect("bar.sync 1, 128;", KVA_PTX_BARRIER_COUNT, 1);
  expect("bar.sync 1, 48;", KVA_PTX_BARRIER_COUNT, 1);
  expect("@%p2 bra A;\nbar.sync 1;\nbra B;\nA: bar.sync 1, 64;\nB: ret;", KVA_PTX_BARRIER_COUNT, 2);
  expect("mov.u32 %r3, 16;\nbar.sync %r3;", KVA_PTX_OPERAND, 2);
  expect("mov.u32 %r3, %tid.x;\nand.b32 %r3, %r3, 7;\nbar.sync %r3;", KVA_PTX_OPERAND, 3);
}

static void warp_instructions(void **state) {
  (void)state;
  clean("@%p2 shfl.sync.bfly.b32 %r3, %r0, 1, 31, -1;");
  clean("@%p3 shfl.sync.idx.b32 %r3, %r0, 2, 31, 0x55555555;");
  expect("@%p3 shfl.sync.bfly.b32 %r3, %r0, 1, 31, -1;", KVA_PTX_INACTIVE_LANE, 1);
  expect("@%p3 shfl.sync.bfly.b32 %r3, %r0, 1, 31, 0x55555555;", KVA_PTX_INACTIVE_LANE, 1);
  /* Lanes of one warp that name different members, and one that another lane does not name. */
  clean(
      "and.b32 %r4, %r0, 16;\nmov.u32 %r3, 0xffff;\nshl.b32 %r3, %r3, %r4;\nshfl.sync.bfly.b32 %r3, %r0, 1, 31, %r3;");
  expect("selp.b32 %r3, 0x55555555, 0xffffffff, %p3;\nshfl.sync.bfly.b32 %r3, %r0, 2, 31, %r3;", KVA_PTX_INACTIVE_LANE,
         2);
  expect("@%p3 vote.sync.any.pred %p4, %p2, -1;", KVA_PTX_INACTIVE_LANE, 1);
  expect("@%p3 bra.uni A;\nA:", KVA_PTX_OPERAND, 1);
  expect("@%p1 trap;", KVA_PTX_TRAP, 1);
}

static void endless_loops(void **state) {
  (void)state;
  expect_with("L: add.u32 %r3, %r3, 1; bra L;", KVA_PTX_STEP_LIMIT, 1, (kva_ptx_options){.max_steps = 1 << 15});
  /* A warp that spins gives way to the one it waits for. */
  clean_with("@%p1 st.shared.u32 [%d6], 0;\nbar.sync 0;\n@%p2 bra SPIN;\nst.volatile.shared.u32 [%d6], 1;\nbra END;\n"
             "SPIN: ld.volatile.shared.u32 %r3, [%d6];\nsetp.eq.u32 %p4, %r3, 0;\n@%p4 bra SPIN;\nEND:",
             (kva_ptx_options){.max_steps = 1 << 20});
}

#define COPY "mul.wide.u32 %d8, %r0, 4;\ncp.async.ca.shared.global [%d7], [%d4], 4;\ncp.async.commit_group;\n"
static void asynchronous_copies(void **state) {
  (void)state;
  for (int lazy = 0; lazy < 2; lazy++) {
    kva_ptx_options options = {.lazy = lazy};
    clean_with(COPY "cp.async.wait_group 0;\nld.shared.u32 %r3, [%d7];", options);
    clean_with(COPY "cp.async.wait_group 0;\n" COPY "cp.async.wait_all;\nld.shared.u32 %r3, [%d7];", options);
    expect_with(COPY "ld.shared.u32 %r3, [%d7];", KVA_PTX_ASYNC_PENDING, 4, options);
    expect_with(COPY "cp.async.wait_group 1;\nld.shared.u32 %r3, [%d7];", KVA_PTX_ASYNC_PENDING, 5, options);
    /* The wait covers the thread's own copies: others need a barrier, too. */
    expect_with(COPY "cp.async.wait_all;\nxor.b32 %r3, %r0, 1;\nmul.wide.u32 %d8, %r3, 4;\nadd.s64 %d8, %d6, "
                     "%d8;\nld.shared.u32 %r4, [%d8];",
                KVA_PTX_SHARED_RACE, 8, options);
#define OTHER "xor.b32 %r3, %r0, 32; mul.wide.u32 %d8, %r3, 4; add.s64 %d8, %d6, %d8;\nld.shared.u32 %r4, [%d8];"
    clean_with(COPY "cp.async.wait_all; bar.sync 0;\n" OTHER, options);
    expect_with(COPY "bar.sync 0; cp.async.wait_all;\n" OTHER, KVA_PTX_SHARED_RACE, 6, options);
#undef OTHER
    expect_with(COPY "cp.async.wait_group 1;", KVA_PTX_ASYNC_PENDING, 2, options);
  }
}

static void counters(void **state) {
  (void)state;
  kva_ptx_report r =
      run("ld.global.u32 %r3, [%d4];\nshl.b32 %r5, %r0, 7;\nand.b32 %r5, %r5, 1023;\ncvt.u64.u32 %d8, %r5;\n"
          "add.s64 %d8, %d6, %d8;\nst.shared.u32 [%d8], %r1;",
          (kva_ptx_options){0});
  assert_int_equal(r.n_findings, 0);
  assert_int_equal(r.counters.global_load_requests, 2);
  assert_int_equal(r.counters.global_load_sectors, 8); /* 4 for 32 x 4 aligned bytes */
  assert_int_equal(r.counters.global_load_bytes, 256);
  assert_int_equal(r.counters.shared_requests, 2);
  assert_int_equal(r.counters.shared_wavefronts, 16); /* 8 words, all in bank 0 */
  assert_int_equal(r.counters.shared_degree_max, 8);
  assert_int_equal(r.counters.shared_degree_max_line, BODY + 5);
  assert_int_equal(r.counters.thread_instructions, 32 * r.counters.warp_instructions);
  kva_ptx_report_free(&r);
}

/* Lanes of 16 bytes side by side need no more than their four passes; 64 bytes apart, they need twice that. */
static void wide_shared_accesses(void **state) {
  (void)state;
  for (int apart = 0; apart < 2; apart++) {
    kva_text body = {0};
    kva_text_add(&body,
                 "and.b32 %%r3, %%r0, 31;\nmul.wide.u32 %%d8, %%r3, %d;\nadd.s64 %%d8, %%d6, %%d8;\n"
                 "@%%p2 st.shared.v4.u32 [%%d8], {%%r1, %%r1, %%r1, %%r1};",
                 apart ? 32 : 16);
    kva_ptx_report r = run(body.data, (kva_ptx_options){0});
    assert_int_equal(r.n_findings, 0);
    assert_int_equal(r.counters.shared_wavefronts_ideal, 4);
    assert_int_equal(r.counters.shared_wavefronts, apart ? 8 : 4);
    kva_ptx_report_free(&r);
    kva_text_free(&body);
  }
}

static void wrong_launches(void **state) {
  (void)state;
  kva_ptx_module *m = ptx_parse(PTX_HEAD ".entry k(.param .u32 a) .maxntid 64, 1, 1 { ret; }\n");
  const kva_ptx_kernel *k = kva_ptx_module_kernel_at(m, 0);
  kva_diag *diag = kva_diag_create();
  uint32_t a = 0;
  const void *params[] = {&a};
  kva_ptx_report r;
  kva_ptx_dim3 one = {1, 1, 1};
  assert_int_equal(kva_ptx_launch(k, NULL, one, one, 0, params, 1, NULL, diag, &r), KVA_OK);
  kva_ptx_report_free(&r);
  assert_int_equal(kva_ptx_launch(k, NULL, one, one, 0, params, 0, NULL, diag, &r), KVA_INVALID);
  assert_int_equal(kva_ptx_launch(k, NULL, one, (kva_ptx_dim3){65, 1, 1}, 0, params, 1, NULL, diag, &r), KVA_INVALID);
  assert_int_equal(kva_ptx_launch(k, NULL, one, (kva_ptx_dim3){0, 1, 1}, 0, params, 1, NULL, diag, &r), KVA_INVALID);
  assert_int_equal(kva_ptx_launch(k, NULL, (kva_ptx_dim3){1, 70000, 1}, one, 0, params, 1, NULL, diag, &r),
                   KVA_INVALID);
  assert_int_equal(kva_ptx_launch(k, NULL, one, one, 300000, params, 1, NULL, diag, &r), KVA_INVALID);
  assert_int_equal(kva_diag_errors(diag), 5);
  kva_ptx_memory *memory = kva_ptx_memory_create();
  char bytes[64];
  assert_int_equal(kva_ptx_memory_add(memory, bytes, 32, true, "a"), KVA_OK);
  assert_int_equal(kva_ptx_memory_add(memory, bytes + 31, 8, true, "b"), KVA_INVALID);
  assert_int_equal(kva_ptx_memory_add(memory, bytes + 32, 8, true, "b"), KVA_OK);
  kva_ptx_memory_destroy(memory);
  kva_diag_destroy(diag);
  kva_ptx_module_destroy(m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(global_bounds),
      cmocka_unit_test(alignment),
      cmocka_unit_test(read_only_memory),
      cmocka_unit_test(windows),
      cmocka_unit_test(uninitialised_shared),
      cmocka_unit_test(races),
      cmocka_unit_test(barriers),
      cmocka_unit_test(warp_instructions),
      cmocka_unit_test(endless_loops),
      cmocka_unit_test(asynchronous_copies),
      cmocka_unit_test(counters),
      cmocka_unit_test(wide_shared_accesses),
      cmocka_unit_test(wrong_launches),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
