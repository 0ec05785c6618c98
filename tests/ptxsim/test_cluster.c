/* Clusters: numbers, launches, addresses in other CTAs, and what is wrong there, with the line that must be named. */
#include "tests/ptxsim/ptx_test.h"

/* Clusters of 2 CTAs of 64 threads. %r0 thread, %r1 rank, %r2 the other rank; s: 1024 bytes at %r3, in the other CTA at
 * %r4; an mbarrier at %r5, in the other CTA at %r6; %p1 thread 0, %p2 CTA 0; %r7: one's own word of s, %r8: of the
 * other's; in at %d1, out at %d2. Line 1 of a body is line BODY. */
static const char prologue[] =
    ".version 8.3\n.target sm_90a\n.address_size 64\n"
    ".entry k(.param .u64 in, .param .u64 out) .reqnctapercluster 2, 1, 1 {\n"
    ".reg .b16 %h<4>; .reg .b32 %r<30>; .reg .b64 %d<20>; .reg .pred %p<8>; .shared .align 1024 .b8 s[1024]; .shared "
    ".b64 m;\n"
    "ld.param.u64 %d1, [in]; ld.param.u64 %d2, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, %cluster_ctarank;\n"
    "xor.b32 %r2, %r1, 1; mov.u32 %r3, s; mapa.shared::cluster.u32 %r4, %r3, %r2; mov.u32 %r5, m; setp.eq.u32 %p1, "
    "%r0, 0;\n"
    "mapa.shared::cluster.u32 %r6, %r5, %r2; setp.eq.u32 %p2, %r1, 0; shl.b32 %r9, %r0, 2; add.u32 %r7, %r3, %r9; "
    "add.u32 %r8, %r4, %r9;\n";
enum { BODY = 9, WORDS = 256 };

#define SYNC "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"
#define INIT "@%p1 mbarrier.init.shared.b64 [%r5], 1; @%p1 fence.mbarrier_init.release.cluster; " SYNC

static uint32_t in[WORDS] __attribute__((aligned(64))), out[WORDS] __attribute__((aligned(16)));

static kva_ptx_report run_with(const char *body, kva_ptx_options options) {
  kva_text text = {0};
  kva_text_add(&text, "%s%s\nEND: ret;\n}\n", prologue, body);
  kva_ptx_module *m = ptx_parse(text.data);
  ptx_case c = {.grid = {4, 1, 1},
                .block = {64, 1, 1},
                .arrays = {in, out},
                .sizes = {sizeof in, sizeof out},
                .n_arrays = 2,
                .options = options};
  memset(out, 0, sizeof out);
  for (uint32_t k = 0; k < WORDS; k++) in[k] = 1000 + k;
  kva_ptx_report report = ptx_run(m, &c);
  kva_ptx_module_destroy(m);
  kva_text_free(&text);
  return report;
}

static void expect(const char *body, kva_ptx_finding_kind kind, uint32_t line) {
  for (int lazy = 0; lazy < 2; lazy++) {
    kva_ptx_report report = run_with(body, (kva_ptx_options){.lazy = lazy, .max_steps = 1 << 18});
    ptx_expect_finding(&report, kind, BODY + line - 1, body);
    kva_ptx_report_free(&report);
  }
}

static void clean(const char *body) {
  for (uint64_t seed = 0; seed < 3; seed++) {
    kva_ptx_options options = {.lazy = seed & 1, .max_steps = 1 << 18, .check_global = !seed, .schedule_seed = seed};
    kva_ptx_report report = run_with(body, options);
    if (report.n_findings) fprintf(stderr, "%s\n", body);
    kva_ptx_report_print_findings(&report, "test.ptx", stderr);
    assert_int_equal(report.n_findings, 0);
    kva_ptx_report_free(&report);
  }
}

/* The special registers of a grid of 6 x 2 x 4 CTAs in clusters of 3 x 1 x 2, by the launch's attribute. */
static void numbers(void **state) {
  (void)state;
  enum { X = 6, Y = 2, Z = 4, VALUES = 12 };
  kva_text text = {0};
  kva_text_add(&text, "%s",
               PTX_HEAD ".entry k(.param .u64 out) { .reg .b32 %r<20>; .reg .b64 %d<4>;\n"
                        "ld.param.u64 %d1, [out]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, "
                        "%ctaid.z; mad.lo.u32 %r3, %r3, 2, %r2; mad.lo.u32 %r3, %r3, 6, %r1; mul.wide.u32 %d2, "
                        "%r3, 48; add.s64 %d1, %d1, %d2;\n");
  static const char *const names[VALUES] = {"clusterid.x",      "clusterid.y",     "clusterid.z",
                                            "nclusterid.x",     "nclusterid.y",    "nclusterid.z",
                                            "cluster_ctaid.x",  "cluster_ctaid.y", "cluster_ctaid.z",
                                            "cluster_nctaid.z", "cluster_ctarank", "cluster_nctarank"};
  for (int k = 0; k < VALUES; k++)
    kva_text_add(&text, "mov.u32 %%r4, %%%s; st.global.u32 [%%d1+%d], %%r4;\n", names[k], 4 * k);
  kva_text_add(&text, "ret; }\n");
  kva_ptx_module *m = ptx_parse(text.data);
  static uint32_t got[X * Y * Z][VALUES];
  ptx_case c = {.grid = {X, Y, Z},
                .block = {1, 1, 1},
                .arrays = {got},
                .sizes = {sizeof got},
                .n_arrays = 1,
                .options = {.cluster = {3, 1, 2}}};
  ptx_run_clean(m, &c);
  for (uint32_t k = 0; k < X * Y * Z; k++) {
    uint32_t x = k % X, y = k / X % Y, z = k / X / Y;
    const uint32_t want[VALUES] = {x / 3, y, z / 2, 2, 2, 2, x % 3, 0, z % 2, 2, x % 3 + z % 2 * 3, 6};
    assert_memory_equal(got[k], want, sizeof want);
  }
  kva_ptx_module_destroy(m);
  kva_text_free(&text);
}

static void refuse_launch(const char *directives, kva_ptx_dim3 grid, uint32_t threads, kva_ptx_dim3 cluster,
                          const char *reason) {
  kva_text text = {0};
  kva_text_add(&text, PTX_HEAD ".entry k() %s { ret; }\n", directives);
  kva_ptx_module *m = ptx_parse(text.data);
  kva_diag *diag = kva_diag_create();
  kva_ptx_report report;
  kva_ptx_options options = {.cluster = cluster};
  kva_ptx_dim3 block = {threads, 1, 1};
  assert_int_not_equal(
      kva_ptx_launch(kva_ptx_module_kernel_at(m, 0), NULL, grid, block, 0, NULL, 0, &options, diag, &report), KVA_OK);
  if (!strstr(kva_diag_message(diag, 0, NULL, NULL), reason)) kva_diag_print(diag, stderr);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), reason));
  kva_diag_destroy(diag);
  kva_ptx_module_destroy(m);
  kva_text_free(&text);
}

static void launches(void **state) {
  (void)state;
  const kva_ptx_dim3 none = {0}, two = {2, 1, 1}, nine = {9, 1, 1}, odd = {3, 1, 1}, many = {18, 1, 1};
  refuse_launch(".reqnctapercluster 2", odd, 32, none, "a grid of 3 x 1 x 1 CTAs, in clusters of 2 x 1 x 1");
  refuse_launch(".reqnctapercluster 3", many, 32, two, ".reqnctapercluster wants 3 x 1 x 1");
  refuse_launch("", many, 32, nine, "a cluster of 9 x 1 x 1 CTAs; 1 to 8 are possible");
  refuse_launch(".maxclusterrank 2", many, 32, odd, "a cluster of 3 x 1 x 1 CTAs; 1 to 2 are possible");
  refuse_launch(".reqnctapercluster 6", many, 1024, none, "192 warps in a cluster");
}

/* Loads, stores and atomics in the other CTA, by addresses of the cluster's window and by generic ones. */
static void addresses(void **state) {
  (void)state;
  clean(
      "st.shared.u32 [%r7], %r0;\n" SYNC "ld.shared::cluster.u32 %r10, [%r8]; atom.shared::cluster.add.u32 %r11, "
      "[%r8], 5; getctarank.shared::cluster.u32 %r12, %r8;\n" SYNC
      "ld.shared.u32 %r13, [%r7]; mov.u32 %r14, %ctaid.x; mad.lo.u32 %r14, %r14, 64, %r0; mul.wide.u32 %d3, %r14, 4; "
      "add.s64 %d3, %d3, %d2; add.u32 %r15, %r10, %r13; mad.lo.u32 %r15, %r12, 1000, %r15; st.global.u32 [%d3], %r15;");
  for (uint32_t k = 0; k < WORDS; k++) assert_int_equal(out[k], 2 * (k % 64) + 5 + (k / 64 % 2 ? 0 : 1000));
  clean(SYNC "mov.u64 %d4, s; cvta.shared.u64 %d4, %d4; mapa.u64 %d5, %d4, %r2; getctarank.u64 %r12, %d5; cvt.u64.u32 "
             "%d6, %r9; add.s64 %d5, %d5, %d6; add.u32 %r10, %r0, 7; st.u32 [%d5], %r10;\n" SYNC
             "ld.shared.u32 %r13, [%r7]; mov.u32 %r14, %ctaid.x; mad.lo.u32 %r14, %r14, 64, %r0; mul.wide.u32 %d3, "
             "%r14, 4; add.s64 %d3, %d3, %d2; mad.lo.u32 %r13, %r12, 1000, %r13; st.global.u32 [%d3], %r13;");
  for (uint32_t k = 0; k < WORDS; k++) assert_int_equal(out[k], k % 64 + 7 + (k / 64 % 2 ? 0 : 1000));
  expect(SYNC "mapa.shared::cluster.u32 %r10, %r3, 2;", KVA_PTX_OPERAND, 2);
  expect(SYNC "mapa.shared::cluster.u32 %r10, %r3, 5;\nld.shared::cluster.u32 %r11, [%r10];", KVA_PTX_SHARED_BOUNDS, 3);
  expect(SYNC "ld.shared.u32 %r11, [%r4];", KVA_PTX_SHARED_BOUNDS, 2);
  expect(SYNC "ld.shared::cluster.u32 %r11, [%r4];" SYNC, KVA_PTX_SHARED_UNINITIALIZED, 2);
}

/* What the barrier orders, and when a CTA runs. */
static void order(void **state) {
  (void)state;
  expect("st.shared.u32 [%r7], %r0;\nbar.sync 0; ld.shared::cluster.u32 %r10, [%r8];\n" SYNC, KVA_PTX_SHARED_RACE, 2);
  expect("st.shared::cluster.u32 [%r8], %r0;\n" SYNC, KVA_PTX_CLUSTER, 1);
  expect(SYNC "st.shared::cluster.u32 [%r8], %r0;\n", KVA_PTX_CLUSTER, 2);
  expect("st.shared.u32 [%r7], %r0;\nbarrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;\n"
         "ld.shared::cluster.u32 %r10, [%r8];\n" SYNC,
         KVA_PTX_SHARED_RACE, 3);
  expect("barrier.cluster.arrive.aligned;\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
         KVA_PTX_BARRIER_COUNT, 2);
  expect("barrier.cluster.wait.aligned;", KVA_PTX_BARRIER_COUNT, 1);
  expect("@%p1 barrier.cluster.arrive.aligned;\n@!%p1 barrier.cluster.arrive; barrier.cluster.wait;",
         KVA_PTX_DIVERGENT_BARRIER, 1);
  /* Lanes may arrive apart; those that have ended are not waited for. */
  clean("@%p1 barrier.cluster.arrive;\n@!%p1 barrier.cluster.arrive; barrier.cluster.wait;");
  clean("setp.gt.u32 %p3, %r0, 20; @%p3 exit;\n@%p2 exit;\nbarrier.cluster.arrive; barrier.cluster.wait;");
}

/* Arrivals at, and copies to, the other CTA. */
static void mbarriers(void **state) {
  (void)state;
  clean(INIT "@%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];\n"
             "W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r5], 0; @!%p3 bra W;");
  expect(INIT "@%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];", KVA_PTX_CLUSTER, 2);
  expect("@%p1 mbarrier.init.shared.b64 [%r5], 1; bar.sync 0;\n"
         "@%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];\n" SYNC,
         KVA_PTX_CLUSTER, 2);
  expect(INIT "@!%p2 bra END;\n"
              "W: mbarrier.try_wait.parity.shared.b64 %p3, [%r5], 0; @!%p3 bra W;",
         KVA_PTX_DEADLOCK, 3);
  expect(INIT "mov.u64 %d4, m; cvta.shared.u64 %d4, %d4; mapa.u64 %d5, %d4, %r2;\n"
              "mbarrier.try_wait.parity.b64 %p3, [%d5], 0;\n" SYNC,
         KVA_PTX_MBARRIER, 3);
}

#define COPY(mask)                                                                                                 \
  "mov.b16 %h1, " mask ";\n"                                                                                       \
  "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r10], [%d1], 256, " \
  "[%r5], %h1;\n"
#define WAIT "W: mbarrier.try_wait.parity.shared.b64 %p3, [%r5], 0; @!%p3 bra W;\n"

static void multicast(void **state) {
  (void)state;
  /* Each CTA sends 256 bytes to both. */
  clean(INIT "mad.lo.u32 %r10, %r1, 256, %r3; @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r5], 512;\n" COPY("3") WAIT
        "ld.shared.u32 %r11, [%r7+256]; mov.u32 %r14, %ctaid.x; mad.lo.u32 %r14, %r14, 64, %r0; mul.wide.u32 %d3, "
        "%r14, 4; "
        "add.s64 %d3, %d3, %d2; st.global.u32 [%d3], %r11;\n" SYNC);
  for (uint32_t k = 0; k < WORDS; k++) assert_int_equal(out[k], 1000 + k % 64);
  expect(INIT "mad.lo.u32 %r10, %r1, 256, %r3; @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r5], 512;\n" COPY("7")
             WAIT SYNC,
         KVA_PTX_OPERAND, 4);
  /* The halves lie in the same place. */
  expect(INIT "mov.u32 %r10, %r3; @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r5], 512;\n" COPY("3") WAIT SYNC,
         KVA_PTX_SHARED_RACE, 4);
  /* Only CTA 0 sends; the other does not wait for what it receives. */
  expect(INIT "@!%p2 bra END;\nmov.u32 %r10, %r3; @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r5], 256;\n" COPY("3")
             WAIT,
         KVA_PTX_CLUSTER, 5);
  /* The mbarrier of the other CTA has no fence. */
  expect("@%p1 mbarrier.init.shared.b64 [%r5], 1; " SYNC "mov.u32 %r10, %r3; "
         "@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r5], 256; @!%p2 bra W;\n" COPY("3") WAIT SYNC,
         KVA_PTX_MISSING_FENCE, 4);
  expect(INIT "@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r5], 256;\n@%p1 cp.async.bulk.shared::cluster.global."
              "mbarrier::complete_tx::bytes [%r4], [%d1], 256, [%r5];\n" SYNC,
         KVA_PTX_OPERAND, 3);
  clean(INIT "@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r5], 256;\n@%p1 cp.async.bulk.shared::cluster.global."
             "mbarrier::complete_tx::bytes [%r4], [%d1], 256, [%r6];\n" WAIT SYNC);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(numbers),   cmocka_unit_test(launches),
                                     cmocka_unit_test(addresses), cmocka_unit_test(order),
                                     cmocka_unit_test(mbarriers), cmocka_unit_test(multicast)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
