/* The checks of asynchronous operations and of global memory: a kernel that is wrong, with the line it must name, and
 * its neighbour that is right, in the eager and the lazy model. */
#include "tests/ptxsim/ptx_test.h"

enum { N = 128 };

/* One CTA of 128 threads. %r0 thread, %p1 thread 0, %p2 the first warp; s: 4096 bytes, at %r2; mbarriers at %r3, %r3+8;
 * `in` at %d1, `out` at %d2, each 1024 bytes; %d3, %d4: one's own words there; %r4: one's own word of s. Line 1 of a
 * body is line BODY. */
static const char prologue[] =
    ".version 8.3\n.target sm_90a\n.address_size 64\n"
    ".entry k(.param .u64 in, .param .u64 out) {\n"
    ".reg .b32 %r<30>; .reg .b64 %d<20>; .reg .pred %p<8>; .reg .f32 %f<8>; .shared .align 1024 .b8 s[4096]; .shared "
    ".b64 m[2];\n"
    "ld.param.u64 %d1, [in]; ld.param.u64 %d2, [out]; mov.u32 %r0, %tid.x; mov.u32 %r2, s; mov.u32 %r3, m;\n"
    "setp.eq.u32 %p1, %r0, 0; setp.lt.u32 %p2, %r0, 32; mul.wide.u32 %d5, %r0, 4; add.s64 %d3, %d1, %d5;\n"
    "add.s64 %d4, %d2, %d5; shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r2; mov.u32 %r5, 0;\n";
enum { BODY = 9 };

static kva_ptx_report run_with(const char *body, uint32_t threads, uint32_t ctas, kva_ptx_options options) {
  static uint32_t in[256] __attribute__((aligned(64))), out[256] __attribute__((aligned(16)));
  kva_text text = {0};
  kva_text_add(&text, "%s%s\nEND: ret;\n}\n", prologue, body);
  kva_ptx_module *m = ptx_parse(text.data);
  ptx_case c = {.grid = {ctas, 1, 1},
                .block = {threads, 1, 1},
                .arrays = {in, out},
                .sizes = {sizeof in, sizeof out},
                .n_arrays = 2,
                .options = options};
  memset(out, 0, sizeof out);
  for (uint32_t k = 0; k < 256; k++) in[k] = 1000 + k;
  kva_ptx_report report = ptx_run(m, &c);
  kva_ptx_module_destroy(m);
  kva_text_free(&text);
  return report;
}

static void expect_in(const char *body, uint32_t threads, uint32_t ctas, kva_ptx_finding_kind kind, uint32_t line,
                      bool lazy) {
  kva_ptx_options options = {.lazy = lazy, .max_steps = 1 << 18, .check_global = true};
  kva_ptx_report report = run_with(body, threads, ctas, options);
  bool found = false;
  for (uint32_t k = 0; k < report.n_findings; k++)
    found |= report.findings[k].kind == kind && report.findings[k].line == BODY + line - 1;
  if (!found) {
    fprintf(stderr, "no '%s' at body line %u (%s) of:\n%s\n", kva_ptx_finding_name(kind), line, lazy ? "lazy" : "eager",
            body);
    kva_ptx_report_print_findings(&report, "test.ptx", stderr);
  }
  assert_true(found);
  kva_ptx_report_free(&report);
}
static void expect(const char *body, kva_ptx_finding_kind kind, uint32_t line) {
  expect_in(body, N, 1, kind, line, false);
  expect_in(body, N, 1, kind, line, true);
}
static void clean_in(const char *body, uint32_t threads, uint32_t ctas) {
  for (int lazy = 0; lazy < 2; lazy++) {
    kva_ptx_options options = {
        .lazy = lazy, .max_steps = 1 << 18, .check_global = true, .schedule_seed = (uint64_t)lazy};
    kva_ptx_report report = run_with(body, threads, ctas, options);
    if (report.n_findings) fprintf(stderr, "%s\n", body);
    kva_ptx_report_print_findings(&report, "test.ptx", stderr);
    assert_int_equal(report.n_findings, 0);
    kva_ptx_report_free(&report);
  }
}
static void clean(const char *body) {
  clean_in(body, N, 1);
}

#define INIT   "@%p1 mbarrier.init.shared.b64 [%r3], 1; @%p1 fence.mbarrier_init.release.cluster; bar.sync 0;\n"
#define WAIT   "W: mbarrier.try_wait.parity.shared.b64 %p3, [%r3], 0; @!%p3 bra W;\n"
#define EXPECT "@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 512;\n"
#define COPY   "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1], 512, [%r3];\n"

static void mbarriers(void **state) {
  (void)state;
  clean(INIT "@%p1 mbarrier.arrive.shared.b64 _, [%r3];\n" WAIT);
  clean(INIT "@%p1 mbarrier.arrive.shared.b64 %d6, [%r3];\n" WAIT
             "bar.sync 0; @%p1 mbarrier.inval.shared.b64 [%r3]; @%p1 st.shared.b64 [%r3], %d6;");
  expect(INIT "@%p2 mbarrier.arrive.shared.b64 _, [%r3], 2;\n" WAIT, KVA_PTX_MBARRIER, 2);
  expect("mbarrier.arrive.shared.b64 _, [%r3];", KVA_PTX_MBARRIER, 1);
  expect(INIT "@%p1 mbarrier.init.shared.b64 [%r3], 1;", KVA_PTX_MBARRIER, 2);
  expect("@%p1 mbarrier.init.shared.b64 [%r3], 0;", KVA_PTX_MBARRIER, 1);
  expect("mov.u64 %d6, -1;\nmbarrier.try_wait.parity.shared.b64 %p3, [%d6], 0;", KVA_PTX_MISALIGNED, 2);
  expect("mov.u64 %d6, -8;\nmbarrier.try_wait.parity.shared.b64 %p3, [%d6], 0;", KVA_PTX_SHARED_BOUNDS, 2);
  expect(INIT WAIT, KVA_PTX_DEADLOCK, 2);
  expect(INIT "T: mbarrier.test_wait.parity.shared.b64 %p3, [%r3], 0;\n@!%p3 bra T;", KVA_PTX_DEADLOCK, 2);
  /* A test that fails is no deadlock where the warp goes on. */
  clean(INIT "@%p2 bra A;\n" WAIT "bra END;\nA: mbarrier.test_wait.parity.shared.b64 %p4, [%r3], 0;\n@%p1 "
             "mbarrier.arrive.shared.b64 _, [%r3];");
  expect(INIT "@%p1 mbarrier.expect_tx.shared.b64 [%r3], 16;", KVA_PTX_TX_LEAK, 2);
  expect("@%p1 mbarrier.init.shared.b64 [%r3], 4;\nsetp.eq.u32 %p3, %r0, 64; @%p3 mbarrier.arrive.shared.b64 _, [%r3];",
         KVA_PTX_SHARED_RACE, 2);
}

/* What an arrival orders: the accesses of the lanes that arrive. */
static void arrivals(void **state) {
  (void)state;
  static const char ordered[] = INIT "@!%p2 bra W;\nst.shared.u32 [%r4], %r0;\nbar.warp.sync -1;\n"
                                     "@%p1 mbarrier.arrive.shared.b64 _, [%r3];\n" WAIT
                                     "and.b32 %r6, %r4, 127; add.u32 %r6, %r6, %r2;\nld.shared.u32 %r7, [%r6];";
  clean(ordered);
  expect(INIT "@!%p2 bra W;\nst.shared.u32 [%r4], %r0;\n\n@%p1 mbarrier.arrive.shared.b64 _, [%r3];\n" WAIT
              "and.b32 %r6, %r4, 127; add.u32 %r6, %r6, %r2;\nld.shared.u32 %r7, [%r6];",
         KVA_PTX_SHARED_RACE, 8);
  clean(INIT "@%p1 st.shared.u32 [%r2], %r0;\n@%p1 mbarrier.arrive.shared.b64 _, [%r3];\n" WAIT
             "ld.shared.u32 %r7, [%r2];");
}

static void bulk_loads(void **state) {
  (void)state;
  clean(INIT EXPECT COPY WAIT "ld.shared.u32 %r7, [%r4]; st.global.u32 [%d4], %r7;");
  expect(INIT EXPECT COPY "ld.shared.u32 %r7, [%r4];", KVA_PTX_SHARED_RACE, 4);
  expect(INIT EXPECT COPY WAIT
         "bar.sync 0;\nst.shared.u32 [%r4], %r0;\n@%p1 cp.async.bulk.global.shared::cta.bulk_group "
         "[%d2], [%r2], 512;",
         KVA_PTX_MISSING_FENCE, 7);
  expect("@%p1 mbarrier.init.shared.b64 [%r3], 1;\n" EXPECT COPY, KVA_PTX_MISSING_FENCE, 3);
  expect(INIT "ld.shared.u32 %r7, [%r2];\n" EXPECT COPY, KVA_PTX_SHARED_RACE, 4);
  expect(INIT "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+8], [%d1], 512, [%r3];",
         KVA_PTX_MISALIGNED, 2);
  expect(INIT "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1+1008], 32, [%r3];",
         KVA_PTX_GLOBAL_BOUNDS, 2);
  expect(INIT "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+4096], [%d1], 512, [%r3];",
         KVA_PTX_SHARED_BOUNDS, 2);
  expect(INIT
         "@%p1 cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1, {%r5}], [%r3];",
         KVA_PTX_OPERAND, 2);
}

#define FILL  "st.shared.u32 [%r4], %r0;\n"
#define STORE "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r2], 512; @%p1 cp.async.bulk.commit_group;\n"

static void bulk_stores(void **state) {
  (void)state;
  clean(FILL "fence.proxy.async.shared::cta; bar.sync 0;\n" STORE "@%p1 cp.async.bulk.wait_group.read 0;");
  clean(FILL "bar.sync 0; fence.proxy.async;\n" STORE "@%p1 cp.async.bulk.wait_group 0;");
  expect(FILL "bar.sync 0;\n" STORE "@%p1 cp.async.bulk.wait_group 0;", KVA_PTX_MISSING_FENCE, 3);
  expect(FILL "fence.proxy.async; bar.sync 0;\n" STORE, KVA_PTX_ASYNC_PENDING, 3);
  expect(FILL "fence.proxy.async; bar.sync 0;\n" STORE "@%p1 cp.async.bulk.wait_group 1;", KVA_PTX_ASYNC_PENDING, 3);
  expect(FILL "fence.proxy.async;\n" STORE "@%p1 cp.async.bulk.wait_group 0;", KVA_PTX_SHARED_RACE, 3);
  expect(FILL "fence.proxy.async; bar.sync 0;\n" STORE
              "\n@%p1 st.shared.u32 [%r2], 77;\n@%p1 cp.async.bulk.wait_group 0;",
         KVA_PTX_SHARED_RACE, 5);
}

/* The swizzled tile at 0 is A and B; the descriptor is %d6. */
#define TILE                                                                                                \
  "mov.u32 %r6, 0; L: add.u32 %r7, %r4, %r6; st.shared.u32 [%r7], %r5; add.u32 %r6, %r6, 512; setp.lt.u32 " \
  "%p4, %r6, 4096; @%p4 bra L;\nmov.u64 %d6, 0x0000002000010000;\n"
#define PRODUCT "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d6, %d6, 0, 1, 1, 0, 0;\n"
#define IN_A                                                                                                           \
  "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, {%r10, %r11, %r12, %r13}, %d6, 0, 1, 1, " \
  "0;\n"
#define ZERO_A  "mov.u32 %r10, 0; mov.u32 %r11, 0; mov.u32 %r12, 0; mov.u32 %r13, 0;\n"
#define VISIBLE "fence.proxy.async; bar.sync 0;\n"
#define FENCE   "wgmma.fence.sync.aligned;\n"
#define COMMIT  "wgmma.commit_group.sync.aligned;\n"
#define DONE    "wgmma.wait_group.sync.aligned 0;\n"

static void products(void **state) {
  (void)state;
  clean(TILE VISIBLE FENCE PRODUCT PRODUCT COMMIT DONE "mov.f32 %f4, %f0;");
  expect(TILE "bar.sync 0;\n" FENCE PRODUCT COMMIT DONE, KVA_PTX_MISSING_FENCE, 5);
  expect(TILE VISIBLE "\n" PRODUCT COMMIT DONE, KVA_PTX_MISSING_FENCE, 5);
  expect(TILE VISIBLE FENCE "mov.f32 %f0, 0f00000000;\n" PRODUCT COMMIT DONE, KVA_PTX_MISSING_FENCE, 6);
  expect(TILE VISIBLE FENCE PRODUCT COMMIT "mov.f32 %f4, %f0;\n" DONE, KVA_PTX_IN_FLIGHT, 7);
  expect(TILE VISIBLE FENCE PRODUCT COMMIT "wgmma.wait_group.sync.aligned 1;\nst.global.f32 [%d4], %f0;\n" DONE,
         KVA_PTX_IN_FLIGHT, 8);
  expect(TILE VISIBLE FENCE PRODUCT COMMIT, KVA_PTX_IN_FLIGHT, 5);
  expect(TILE VISIBLE FENCE PRODUCT "\n" DONE, KVA_PTX_IN_FLIGHT, 5);
  clean(TILE VISIBLE ZERO_A FENCE IN_A COMMIT "add.u32 %r14, %r10, 1;\n" DONE);
  expect(TILE VISIBLE ZERO_A FENCE IN_A COMMIT "add.u32 %r10, %r10, 1;\n" DONE, KVA_PTX_IN_FLIGHT, 8);
  expect(TILE VISIBLE FENCE PRODUCT COMMIT "st.shared.u32 [%r4], 1;\n" DONE, KVA_PTX_SHARED_RACE, 7);
  clean(TILE VISIBLE FENCE PRODUCT COMMIT DONE "bar.sync 0; st.shared.u32 [%r4], 1;");
  expect(TILE VISIBLE FENCE "@%p2 bra END;\n" PRODUCT COMMIT DONE, KVA_PTX_DEADLOCK, 8);
  expect(TILE VISIBLE FENCE "and.b32 %r8, %r0, 1; setp.eq.u32 %p5, %r8, 0; @%p5 bra END;\n" PRODUCT,
         KVA_PTX_INACTIVE_LANE, 6);
  expect(TILE VISIBLE FENCE "or.b64 %d6, %d6, 0x3fff;\n" PRODUCT COMMIT DONE, KVA_PTX_SHARED_BOUNDS, 6);
  expect(TILE VISIBLE FENCE "cvt.u64.u32 %d7, %r0; add.s64 %d6, %d6, %d7;\n" PRODUCT COMMIT DONE, KVA_PTX_OPERAND, 6);
  expect_in(TILE VISIBLE FENCE PRODUCT COMMIT DONE, 96, 1, KVA_PTX_OPERAND, 4, false);
}

/* 3 warpgroups begin with 168 registers each. */
static void register_counts(void **state) {
  (void)state;
#define SPLIT "setp.lt.u32 %p3, %r0, 128; @%p3 bra P;\n"
  clean_in(SPLIT "setmaxnreg.inc.sync.aligned.u32 232; bra END;\nP: setmaxnreg.dec.sync.aligned.u32 40;", 384, 1);
  expect_in(SPLIT "setmaxnreg.inc.sync.aligned.u32 240;\nbra END;\nP: setmaxnreg.dec.sync.aligned.u32 40;", 384, 1,
            KVA_PTX_DEADLOCK, 2, false);
  expect_in(SPLIT "\nbra END;\nP: setmaxnreg.dec.sync.aligned.u32 176;", 384, 1, KVA_PTX_OPERAND, 4, false);
  expect_in(SPLIT "setmaxnreg.inc.sync.aligned.u32 160;\nP:", 384, 1, KVA_PTX_OPERAND, 2, false);
  expect_in("@!%p2 bra END;\nsetmaxnreg.dec.sync.aligned.u32 40;", 384, 1, KVA_PTX_OPERAND, 2, false);
}

static void global_races(void **state) {
  (void)state;
  clean("ld.global.u32 %r6, [%d3]; st.global.u32 [%d4], %r6;");
  expect("st.global.u32 [%d4], %r0;\nld.global.u32 %r6, [%d2];", KVA_PTX_GLOBAL_RACE, 2);
  clean("st.global.u32 [%d4], %r0; bar.sync 0;\nld.global.u32 %r6, [%d2];");
  clean("st.global.u32 [%d2], 5;"); /* all the same */
  expect("st.global.u32 [%d2], %r0;", KVA_PTX_GLOBAL_RACE, 1);
  clean("atom.global.add.u32 %r6, [%d2], 1;");
#define HALF "shr.u64 %d6, %d5, 1; add.s64 %d6, %d6, %d2; st.global.u16 [%d6], %r0;\n"
  clean(HALF); /* neighbours in one word */
  clean(HALF "bar.sync 0; ld.global.u16 %r6, [%d2+2]; ld.global.u32 %r6, [%d2];");
  expect(HALF "ld.global.u16 %r6, [%d2+2];", KVA_PTX_GLOBAL_RACE, 2);
  expect(HALF "ld.global.u32 %r6, [%d2];", KVA_PTX_GLOBAL_RACE, 2);
#undef HALF
  expect_in(
      "@%p1 ld.global.u32 %r6, [%d2];\nmov.u32 %r7, %ctaid.x; add.u32 %r7, %r7, 1; @%p1 st.global.u32 [%d2], %r7;", N,
      2, KVA_PTX_GLOBAL_RACE, 1, false);
  expect_in("mov.u32 %r7, %ctaid.x; add.u32 %r7, %r7, 1;\n@%p1 st.global.u32 [%d2], %r7;", N, 2, KVA_PTX_GLOBAL_RACE, 2,
            false);
  clean_in("atom.global.add.u32 %r6, [%d2], 1;", N, 3);
}

static void undefined_memory(void **state) {
  (void)state;
  kva_ptx_module *m = ptx_parse(PTX_HEAD ".entry k(.param .u64 p) { .reg .b64 %d<3>; .reg .b32 %r<3>;\n.loc 1 77 3\n"
                                         "ld.param.u64 %d1, [p]; st.global.u32 [%d1], 3; ld.global.u32 %r1, [%d1];\n"
                                         "ld.global.u32 %r1, [%d1+4];\n ret; }\n");
  uint32_t data[4] = {0};
  void *p = data;
  const void *params[] = {&p};
  kva_ptx_memory *memory = kva_ptx_memory_create();
  assert_int_equal(kva_ptx_memory_add_undefined(memory, data, sizeof data, "fresh"), KVA_OK);
  kva_ptx_report report;
  kva_ptx_dim3 one = {1, 1, 1};
  assert_int_equal(kva_ptx_launch(kva_ptx_module_kernel_at(m, 0), memory, one, one, 0, params, 1, NULL, NULL, &report),
                   KVA_OK);
  assert_int_equal(report.n_findings, 1);
  assert_int_equal(report.findings[0].kind, KVA_PTX_GLOBAL_UNINITIALIZED);
  assert_int_equal(report.findings[0].line, PTX_HEAD_LINES + 4);
  assert_int_equal(report.findings[0].source_line, 77);
  kva_ptx_report_free(&report);
  kva_ptx_memory_destroy(memory);
  kva_ptx_module_destroy(m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(mbarriers),    cmocka_unit_test(arrivals),         cmocka_unit_test(bulk_loads),
      cmocka_unit_test(bulk_stores),  cmocka_unit_test(products),         cmocka_unit_test(register_counts),
      cmocka_unit_test(global_races), cmocka_unit_test(undefined_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
