/* What threads do together: shuffles, votes, reductions through shared memory, barriers of all kinds, atomics. */
#include "tests/ptxsim/ptx_test.h"

enum { N = 128 };

#define HEAD(name, shared)                                                                                     \
  PTX_HEAD ".entry " name "(.param .u64 in, .param .u64 out) {\n"                                              \
           ".reg .b32 %r<30>; .reg .b64 %d<8>; .reg .pred %p<8>; " shared "\n"                                 \
           "ld.param.u64 %d1, [in]; ld.param.u64 %d2, [out]; mov.u32 %r0, %tid.x; mul.wide.u32 %d3, %r0, 4;\n" \
           "add.s64 %d4, %d1, %d3; add.s64 %d5, %d2, %d3; ld.global.u32 %r1, [%d4];\n"
#define TAIL "st.global.u32 [%d5], %r2;\nret;\n}\n"

static void run(const char *text, const uint32_t *in, uint32_t *out, uint64_t seed) {
  kva_ptx_module *m = ptx_parse(text);
  ptx_case c = {.block = {N, 1, 1},
                .arrays = {(void *)(uintptr_t)in, out},
                .sizes = {N * 4, N * 4},
                .n_arrays = 2,
                .options = {.schedule_seed = seed}};
  ptx_run_clean(m, &c);
  kva_ptx_module_destroy(m);
}
static void numbers(uint32_t *in, uint32_t range) {
  uint64_t random = 9;
  for (int k = 0; k < N; k++) in[k] = (uint32_t)(ptx_random(&random) % range);
}

static void shuffles(void **state) {
  (void)state;
  static const struct {
    const char *mode;
    uint32_t by, clamp;
  } cases[] = {{"up", 3, 0},      {"down", 5, 31},     {"bfly", 6, 31},     {"idx", 9, 31},
               {"up", 1, 0x1800}, {"down", 2, 0x181f}, {"bfly", 4, 0x181f}, {"idx", 2, 0x1c1f}};
  uint32_t in[N], out[N];
  numbers(in, 1u << 31);
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    kva_text text = {0};
    kva_text_add(&text, "%s shfl.sync.%s.b32 %%r2|%%p1, %%r1, %u, %u, -1; @%%p1 add.u32 %%r2, %%r2, 1;\n%s",
                 HEAD("k", ""), cases[k].mode, cases[k].by, cases[k].clamp, TAIL);
    run(text.data, in, out, 0);
    kva_text_free(&text);
    int width = cases[k].clamp >> 8 ? 32 - (int)(cases[k].clamp >> 8) : 32, by = (int)cases[k].by;
    for (int t = 0; t < N; t++) {
      int lane = t % 32, base = lane / width * width, local = lane % width;
      int from = cases[k].mode[0] == 'u'   ? local - by
                 : cases[k].mode[0] == 'd' ? local + by
                 : cases[k].mode[0] == 'b' ? local ^ by
                                           : by % width;
      bool inside = from >= 0 && from < width;
      assert_int_equal(out[t], in[t / 32 * 32 + (inside ? base + from : lane)] + inside);
    }
  }
}

/* Parts of a warp with members of their own, of which some have left. */
static void groups(void **state) {
  (void)state;
  uint32_t in[N], out[N] = {0};
  numbers(in, 1000);
  run(HEAD("k", "") "shr.u32 %r3, %r0, 3; and.b32 %r4, %r0, 24; mov.u32 %r5, 255; shl.b32 %r5, %r5, %r4;\n"
                    "setp.eq.u32 %p1, %r3, 2; mov.u32 %r2, 7; @%p1 bra END;\n"
                    "shfl.sync.bfly.b32 %r6, %r1, 4, 31, %r5; redux.sync.add.u32 %r7, %r1, %r5; bar.warp.sync %r5;\n"
                    "add.u32 %r2, %r6, %r7;\nEND: " TAIL,
      in, out, 0);
  for (int t = 0; t < N; t++) {
    uint32_t sum = in[t ^ 4];
    for (int l = 0; l < 8; l++) sum += in[t / 8 * 8 + l];
    assert_int_equal(out[t], t / 8 == 2 ? 7 : sum);
  }
}

static void votes_and_matches(void **state) {
  (void)state;
  uint32_t in[N], out[N];
  numbers(in, 4);
  in[0] = in[1] = 0;
  for (int k = 96; k < N; k++) in[k] = 3;
  run(HEAD("k",
           "") "setp.gt.u32 %p1, %r1, 1; vote.sync.ballot.b32 %r2, %p1, -1; vote.sync.any.pred %p2, %p1, -1;\n"
               "vote.sync.all.pred %p3, %p1, -1; vote.sync.uni.pred %p4, %p1, -1; match.any.sync.b32 %r3, %r1, -1;\n"
               "redux.sync.add.u32 %r4, %r1, -1; redux.sync.max.s32 %r5, %r1, -1; xor.b32 %r2, %r2, %r3; add.u32 %r2, "
               "%r2, %r4;\n"
               "add.u32 %r2, %r2, %r5; @%p2 add.u32 %r2, %r2, 1000; @%p3 add.u32 %r2, %r2, 2000; @%p4 add.u32 %r2, "
               "%r2, 4000;\n" TAIL,
      in, out, 0);
  for (int t = 0; t < N; t++) {
    uint32_t ballot = 0, same = 0, sum = 0, most = 0;
    for (int l = 0; l < 32; l++) {
      uint32_t v = in[t / 32 * 32 + l];
      ballot |= (uint32_t)(v > 1) << l;
      same |= (uint32_t)(v == in[t]) << l;
      sum += v;
      most = v > most ? v : most;
    }
    uint32_t flags = 1000u * (ballot != 0) + 2000u * (ballot == ~0u) + 4000u * (ballot == 0 || ballot == ~0u);
    assert_int_equal(out[t], (ballot ^ same) + sum + most + flags);
  }
}

/* A tree in shared memory, with the number of halvings in a loop. */
static void shared_reduction(void **state) {
  (void)state;
  uint32_t in[N], out[N], sum = 0;
  numbers(in, 1000);
  for (int k = 0; k < N; k++) sum += in[k];
  for (uint64_t seed = 0; seed < 4; seed++) {
    memset(out, 0, sizeof out);
    run(HEAD("k", ".shared .align 4 .b8 s[512];") "mov.u64 %d6, s; add.s64 %d7, %d6, %d3; st.shared.u32 [%d7], %r1; "
                                                  "mov.u32 %r3, 64;\n"
                                                  "LOOP: bar.sync 0; setp.ge.u32 %p1, %r0, %r3; @%p1 bra NEXT;\n"
                                                  "mul.wide.u32 %d3, %r3, 4; add.s64 %d3, %d7, %d3; ld.shared.u32 %r4, "
                                                  "[%d3]; ld.shared.u32 %r5, [%d7];\n"
                                                  "add.u32 %r4, %r4, %r5; st.shared.u32 [%d7], %r4;\n"
                                                  "NEXT: shr.u32 %r3, %r3, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra LOOP;\n"
                                                  "bar.sync 0; ld.shared.u32 %r2, [%d6];\n" TAIL,
        in, out, seed);
    for (int t = 0; t < N; t++) assert_int_equal(out[t], sum);
  }
}

/* Producer and consumer warps with two named barriers and thread counts, in both directions. */
static void named_barriers(void **state) {
  (void)state;
  uint32_t in[N], out[N];
  numbers(in, 1000);
  for (uint64_t seed = 0; seed < 6; seed++) {
    memset(out, 0, sizeof out);
    run(HEAD("k", ".shared .align 4 .b8 s[128];") "and.b32 %r3, %r0, 31; mul.wide.u32 %d6, %r3, 4; mov.u64 %d7, s; "
                                                  "add.s64 %d7, %d7, %d6; mov.u32 %r2, 0;\n"
                                                  "setp.ge.u32 %p1, %r0, 64; @%p1 bra IDLE; mov.u32 %r4, 0; "
                                                  "setp.ge.u32 %p2, %r0, 32; @%p2 bra CONSUMER;\n"
                                                  "PRODUCER: bar.sync 2, 64; add.u32 %r5, %r4, %r0; st.shared.u32 "
                                                  "[%d7], %r5; bar.arrive 1, 64;\n"
                                                  "add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, 10; @%p3 bra PRODUCER; "
                                                  "bar.sync 2, 64; bra IDLE;\n"
                                                  "CONSUMER: bar.arrive 2, 64;\n"
                                                  "MORE: bar.sync 1, 64; ld.shared.u32 %r5, [%d7]; add.u32 %r2, %r2, "
                                                  "%r5; bar.arrive 2, 64;\n"
                                                  "add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, 10; @%p3 bra MORE;\n"
                                                  "IDLE: bar.sync 0;\n" TAIL,
        in, out, seed);
    for (uint32_t t = 0; t < N; t++) assert_int_equal(out[t], t >= 32 && t < 64 ? 45 + 10 * (t - 32) : 0);
  }
}

/* Warp 0 writes and meets warp 1, which meets warp 2, which reads: ordered although 0 and 2 never meet. */
static void barriers_order_transitively(void **state) {
  (void)state;
  uint32_t in[N], out[N];
  numbers(in, 1000);
  for (uint64_t seed = 0; seed < 4; seed++)
    run(HEAD("k", ".shared .align 4 .b8 s[128];") "and.b32 %r3, %r0, 31; mul.wide.u32 %d6, %r3, 4; mov.u64 %d7, s; "
                                                  "add.s64 %d7, %d7, %d6; mov.u32 %r2, 0;\n"
                                                  "shr.u32 %r4, %r0, 5; setp.eq.u32 %p1, %r4, 0; setp.eq.u32 %p2, %r4, "
                                                  "1; setp.eq.u32 %p3, %r4, 2;\n"
                                                  "@%p1 st.shared.u32 [%d7], %r1; @%p1 bar.sync 1, 64; @%p2 bar.sync "
                                                  "1, 64; @%p2 bar.sync 2, 64;\n"
                                                  "@%p3 bar.sync 2, 64; @%p3 ld.shared.u32 %r2, [%d7];\n" TAIL,
        in, out, seed);
  for (uint32_t t = 64; t < 96; t++) assert_int_equal(out[t], in[t - 64]);
}

static void barrier_reductions(void **state) {
  (void)state;
  uint32_t in[N], out[N], count = 0;
  numbers(in, 100);
  for (int k = 0; k < N; k++) count += in[k] > 50;
  run(HEAD("k", "") "setp.gt.u32 %p1, %r1, 50; bar.red.popc.u32 %r2, 0, %p1; bar.red.or.pred %p2, 0, %p1;\n"
                    "bar.red.and.pred %p3, 0, %p1; barrier.cta.red.and.aligned.pred %p4, 0, !%p3; @%p2 add.u32 %r2, "
                    "%r2, 1000;\n"
                    "@%p3 add.u32 %r2, %r2, 2000; @%p4 add.u32 %r2, %r2, 4000;\n" TAIL,
      in, out, 0);
  for (int t = 0; t < N; t++) assert_int_equal(out[t], count + 1000 + 4000);
}

/* Histograms by global and shared atomics over several CTAs in parallel; the value returned is that before. */
static void atomics(void **state) {
  (void)state;
  enum { CTAS = 8, BINS = 16 };
  kva_ptx_module *m = ptx_parse(
      PTX_HEAD
      ".entry k(.param .u64 in, .param .u64 global, .param .u64 sums) {\n"
      ".reg .b32 %r<20>; .reg .b64 %d<12>; .reg .pred %p<4>; .shared .align 4 .b8 bins[64];\n"
      "ld.param.u64 %d1, [in]; ld.param.u64 %d2, [global]; ld.param.u64 %d10, [sums]; mov.u32 %r0, %tid.x;\n"
      "mad.lo.u32 %r1, %ctaid.x, %ntid.x, %r0; mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d1, %d3; ld.global.u32 %r2, "
      "[%d3];\n"
      "mov.u64 %d4, bins; setp.ge.u32 %p1, %r0, 16; mul.wide.u32 %d5, %r0, 4; add.s64 %d6, %d4, %d5;\n"
      "@!%p1 st.shared.u32 [%d6], 0; bar.sync 0;\n"
      "and.b32 %r3, %r2, 15; mul.wide.u32 %d7, %r3, 4; add.s64 %d8, %d4, %d7; atom.shared.add.u32 %r4, [%d8], 1;\n"
      "cvt.rn.f32.u32 %r5, %r2; red.global.add.f32 [%d10], %r5; red.global.max.u32 [%d10+4], %r2;\n"
      "red.global.min.s32 [%d10+8], %r2; red.global.xor.b32 [%d10+12], %r2; atom.global.inc.u32 %r6, [%d10+16], 1000;\n"
      "cvt.u64.u32 %d9, %r2; red.global.add.u64 [%d10+24], %d9; atom.global.cas.b32 %r7, [%d10+32], 77, %r2;\n"
      "atom.global.exch.b32 %r8, [%d10+20], %r1;\n"
      "bar.sync 0; @%p1 ret; ld.shared.u32 %r9, [%d6]; add.s64 %d2, %d2, %d5; red.global.add.u32 [%d2], %r9; ret; }\n");
  uint32_t in[CTAS * N], global[BINS] = {0}, expected[BINS] = {0}, x = 0, most = 0;
  uint64_t random = 5, total = 0;
  for (int k = 0; k < CTAS * N; k++) {
    in[k] = (uint32_t)(ptx_random(&random) % 1000);
    expected[in[k] & 15]++;
    x ^= in[k];
    most = in[k] > most ? in[k] : most;
    total += in[k];
  }
  uint32_t sums[10] __attribute__((aligned(8))) = {0, 0, 5000, 0, 0, 9999};
  sums[8] = 76;
  kva_pool *pool = kva_pool_create(2);
  ptx_case c = {.grid = {CTAS, 1, 1},
                .block = {N, 1, 1},
                .arrays = {in, global, sums},
                .sizes = {sizeof in, sizeof global, sizeof sums},
                .n_arrays = 3,
                .options = {.pool = pool}};
  ptx_run_clean(m, &c);
  assert_memory_equal(global, expected, sizeof global);
  float sum;
  memcpy(&sum, &sums[0], 4);
  assert_true(sum == (float)total);
  assert_int_equal(sums[1], most);
  assert_int_equal(sums[3], x);
  assert_int_equal(sums[4], CTAS * N % 1001);
  assert_true(sums[5] < CTAS * N);
  assert_int_equal(sums[6], total);
  assert_int_equal(sums[8], 76); /* never 77: no exchange */
  kva_pool_destroy(pool);
  kva_ptx_module_destroy(m);
}

/* Static, module-level and dynamic shared memory, generic addresses into it, local memory, constants, globals. */
static void address_spaces(void **state) {
  (void)state;
  kva_ptx_module *m = ptx_parse(
      PTX_HEAD
      ".const .align 4 .b32 table[4] = {10, 20, 30, 40};\n.global .align 8 .u64 counter = 5;\n"
      ".shared .align 4 .b8 common[512];\n.extern .shared .align 16 .b8 dynamic[];\n"
      ".entry k(.param .u64 in, .param .u64 out, .param .align 4 .b8 record[12]) {\n"
      ".reg .b32 %r<20>; .reg .b64 %d<20>; .reg .pred %p<4>; .local .align 4 .b8 frame[16]; .reg .b16 %h<4>;\n"
      "ld.param.u64 %d2, [out]; mov.u32 %r0, %tid.x; mul.wide.u32 %d3, %r0, 4; add.s64 %d2, %d2, %d3;\n"
      "mov.u64 %d4, common; add.s64 %d4, %d4, %d3; cvta.shared.u64 %d5, %d4; st.u32 [%d5], %r0;\n"
      "mov.u64 %d6, dynamic; add.s64 %d6, %d6, %d3; st.shared.u32 [%d6], 7;\n"
      "mov.u64 %d7, frame; and.b32 %r1, %r0, 3; mul.wide.u32 %d8, %r1, 4; add.s64 %d9, %d7, %d8; st.local.u32 [%d9], "
      "%r0;\n"
      "cvta.local.u64 %d10, %d9; ld.u32 %r2, [%d10]; mov.u64 %d11, table; add.s64 %d11, %d11, %d8; ld.const.u32 %r3, "
      "[%d11];\n"
      "bar.sync 0; ld.shared.u32 %r4, [%d4]; ld.shared.u32 %r5, [%d6]; add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4;\n"
      "add.u32 %r2, %r2, %r5; ld.param.s16 %h1, [record+6]; cvt.s32.s16 %r6, %h1; add.u32 %r2, %r2, %r6;\n"
      "isspacep.shared %p1, %d5; @%p1 add.u32 %r2, %r2, 1000; isspacep.global %p2, %d5; @%p2 add.u32 %r2, %r2, 5000;\n"
      "st.global.u32 [%d2], %r2; setp.eq.u32 %p3, %r0, 0; @!%p3 ret; ld.global.s32 %d12, [counter]; add.s64 %d12, "
      "%d12, 1;\n"
      "st.global.u64 [counter], %d12; ret; }\n");
  uint32_t in[N], out[N];
  int16_t record[6] = {1, 2, 3, -4, 5, 6};
  ptx_case c = {.block = {N, 1, 1},
                .arrays = {in, out},
                .sizes = {sizeof in, sizeof out},
                .n_arrays = 2,
                .shared = N * 4,
                .scalars = {record},
                .n_scalars = 1};
  ptx_run_clean(m, &c);
  for (uint32_t t = 0; t < N; t++) assert_int_equal(out[t], t + 10 * (t % 4 + 1) + t + 7 - 4 + 1000);
  size_t size;
  uint64_t counter;
  const void *place = kva_ptx_module_get_global(m, "counter", &size);
  assert_int_equal(size, 8);
  memcpy(&counter, place, 8);
  assert_int_equal(counter, 6);
  kva_ptx_module_destroy(m);
}

static kva_ptx_module *parse_file(const char *path) {
  static char text[1 << 13];
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  size_t n = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[n] = 0;
  return ptx_parse(text);
}

/* Each CTA tells what the one `distance` behind it waits for. */
static kva_ptx_report run_ring(uint32_t ctas, uint32_t distance, uint32_t *out) {
  kva_ptx_module *m = parse_file("tests/data/ptx/ring.ptx");
  memset(out, 0, ctas * sizeof *out);
  ptx_case c = {.grid = {ctas, 1, 1},
                .block = {64, 1, 1},
                .arrays = {out},
                .sizes = {ctas * sizeof *out},
                .n_arrays = 1,
                .scalars = {&distance},
                .n_scalars = 1,
                .options = {.check_global = true, .cooperative = true}};
  kva_ptx_report report = ptx_run(m, &c);
  kva_ptx_module_destroy(m);
  return report;
}

/* CTAs of a cooperative launch all run at once. */
static void ctas_wait_for_each_other(void **state) {
  (void)state;
  uint32_t out[64];
  for (uint32_t distance = 1; distance < 16; distance *= 2) {
    kva_ptx_report report = run_ring(16, distance, out);
    kva_ptx_report_print_findings(&report, "test.ptx", stderr);
    assert_int_equal(report.n_findings, 0);
    for (uint32_t k = 0; k < 16; k++) assert_int_equal(out[k], (k + distance) % 16 + 1);
    kva_ptx_report_free(&report);
  }
}

#define POLLS                                                  \
  PTX_HEAD ".global .b32 word;\n"                              \
           ".entry k() { .reg .b32 %r<2>; .reg .pred %p<2>;\n" \
           "L: ld.volatile.global.u32 %r1, [word]; setp.eq.u32 %p1, %r1, 0; @%p1 bra L; ret; }\n"

static void nobody_writes(void **state) {
  (void)state;
  kva_ptx_module *m = ptx_parse(POLLS);
  ptx_case c = {.grid = {16, 1, 1}, .block = {1, 1, 1}, .options = {.cooperative = true}};
  kva_ptx_report report = ptx_run(m, &c);
  assert_int_equal(report.n_findings, 1);
  assert_int_equal(report.findings[0].kind, KVA_PTX_DEADLOCK);
  assert_non_null(strstr(report.findings[0].detail, "polls global memory"));
  kva_ptx_report_free(&report);
  kva_ptx_module_destroy(m);
}

/* Nothing says that all CTAs of another launch ever run at once, nor that so many have room. */
static void waiting_needs_cooperation(void **state) {
  (void)state;
  static const struct {
    uint32_t ctas;
    bool cooperative;
    const char *why;
  } rows[] = {{2, false, "launch of 'k': CTAs wait for each other through global memory: launch it cooperatively"},
              {17, true, "launch of 'k': a cooperative launch of 17 CTAs; 16 run at once"}};
  kva_ptx_module *m = ptx_parse(POLLS);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    kva_diag *diag = kva_diag_create();
    kva_ptx_options options = {.cooperative = rows[i].cooperative};
    kva_ptx_report report;
    assert_int_equal(kva_ptx_launch(kva_ptx_module_kernel_at(m, 0), NULL, (kva_ptx_dim3){rows[i].ctas, 1, 1},
                                    (kva_ptx_dim3){1, 1, 1}, 0, NULL, 0, &options, diag, &report),
                     KVA_INVALID);
    assert_string_equal(kva_diag_message(diag, 0, NULL, NULL), rows[i].why);
    kva_diag_destroy(diag);
  }
  kva_ptx_module_destroy(m);
}

/* A thread that looks at one word many times waits for nobody. */
static void looking_is_no_waiting(void **state) {
  (void)state;
  kva_ptx_module *m =
      ptx_parse(PTX_HEAD ".entry k(.param .u64 out) { .reg .b32 %r<4>; .reg .b64 %d<2>; .reg .pred %p<2>;\n"
                         "ld.param.u64 %d1, [out]; mov.u32 %r1, 0; mov.u32 %r2, 0;\n"
                         "L: ld.volatile.global.u32 %r3, [%d1]; add.u32 %r2, %r2, %r3; add.u32 %r1, %r1, 1;\n"
                         "setp.lt.u32 %p1, %r1, 5000; @%p1 bra L; st.global.u32 [%d1], %r2; ret; }\n");
  uint32_t out = 3;
  ptx_case c = {
      .block = {1, 1, 1}, .arrays = {&out}, .sizes = {sizeof out}, .n_arrays = 1, .options = {.cooperative = true}};
  ptx_run_clean(m, &c);
  assert_int_equal(out, 15000);
  kva_ptx_module_destroy(m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(shuffles),
      cmocka_unit_test(groups),
      cmocka_unit_test(votes_and_matches),
      cmocka_unit_test(shared_reduction),
      cmocka_unit_test(named_barriers),
      cmocka_unit_test(barrier_reductions),
      cmocka_unit_test(barriers_order_transitively),
      cmocka_unit_test(atomics),
      cmocka_unit_test(ctas_wait_for_each_other),
      cmocka_unit_test(nobody_writes),
      cmocka_unit_test(waiting_needs_cooperation),
      cmocka_unit_test(looking_is_no_waiting),
      cmocka_unit_test(address_spaces),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
