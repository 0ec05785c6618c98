/* Control flow: divergence and reconvergence of branches, loops, exits and tables; predication; predicate logic. */
#include "tests/ptxsim/ptx_test.h"

enum { N = 128 };

#define PROLOGUE(name)                                                                                         \
  PTX_HEAD ".entry " name "(.param .u64 in, .param .u64 out) {\n"                                              \
           ".reg .b32 %r<20>; .reg .b64 %d<6>; .reg .pred %p<8>;\n"                                            \
           "ld.param.u64 %d1, [in]; ld.param.u64 %d2, [out]; mov.u32 %r0, %tid.x; mul.wide.u32 %d3, %r0, 4;\n" \
           "add.s64 %d1, %d1, %d3; add.s64 %d2, %d2, %d3; ld.global.u32 %r1, [%d1];\n"
#define EPILOGUE "st.global.u32 [%d2], %r2;\nret;\n}\n"

static void check(const char *text, uint32_t (*expect)(uint32_t tid, uint32_t v), uint32_t range) {
  kva_ptx_module *m = ptx_parse(text);
  uint32_t in[N], out[N];
  uint64_t random = 3;
  for (int k = 0; k < N; k++) in[k] = (uint32_t)(ptx_random(&random) % range);
  memset(out, 0xee, sizeof out);
  for (int seed = 0; seed < 2; seed++) {
    ptx_case c = {.block = {N, 1, 1},
                  .arrays = {in, out},
                  .sizes = {sizeof in, sizeof out},
                  .n_arrays = 2,
                  .options = {.schedule_seed = (uint64_t)seed * 77}};
    ptx_run_clean(m, &c);
    for (uint32_t k = 0; k < N; k++) assert_int_equal(out[k], expect(k, in[k]));
  }
  kva_ptx_module_destroy(m);
}

static uint32_t collatz(uint32_t tid, uint32_t v) {
  (void)tid;
  uint32_t steps = 0;
  for (v++; v != 1; steps++) v = v & 1 ? 3 * v + 1 : v / 2;
  return steps;
}
static void loops_of_different_length(void **state) {
  (void)state;
  check(PROLOGUE("k") "add.u32 %r1, %r1, 1; mov.u32 %r2, 0;\n"
                      "HEAD: setp.eq.u32 %p1, %r1, 1; @%p1 bra DONE;\n"
                      "and.b32 %r3, %r1, 1; setp.ne.u32 %p2, %r3, 0; @!%p2 bra EVEN;\n"
                      "mad.lo.u32 %r1, %r1, 3, 1; bra.uni NEXT;\n"
                      "EVEN: shr.u32 %r1, %r1, 1;\n"
                      "NEXT: add.u32 %r2, %r2, 1; bra HEAD;\n"
                      "DONE:\n" EPILOGUE,
        collatz, 3000);
}

/* Two nested loops with a break out of the inner, a continue, and a return from both. */
static uint32_t nested(uint32_t tid, uint32_t v) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < v % 9; i++) {
    for (uint32_t j = 0; j < tid % 7; j++) {
      if ((i * j + v) % 5 == 3) break;
      if ((i + j) % 3 == 1) continue;
      sum += i * 10 + j;
      if (sum > 100) return sum + 1000;
    }
    sum += 1;
  }
  return sum;
}
static void nested_loops_with_breaks(void **state) {
  (void)state;
  check(PROLOGUE("k") "mov.u32 %r2, 0; mov.u32 %r3, 0; rem.u32 %r4, %r1, 9; rem.u32 %r5, %r0, 7;\n"
                      "OUTER: setp.ge.u32 %p1, %r3, %r4; @%p1 bra END;\n mov.u32 %r6, 0;\n"
                      "INNER: setp.ge.u32 %p2, %r6, %r5; @%p2 bra BREAK;\n"
                      "mad.lo.u32 %r7, %r3, %r6, %r1; rem.u32 %r7, %r7, 5; setp.eq.u32 %p3, %r7, 3; @%p3 bra BREAK;\n"
                      "add.u32 %r8, %r3, %r6; rem.u32 %r8, %r8, 3; setp.eq.u32 %p4, %r8, 1; @%p4 bra CONTINUE;\n"
                      "mad.lo.u32 %r9, %r3, 10, %r6; add.u32 %r2, %r2, %r9;\n"
                      "setp.gt.u32 %p5, %r2, 100; @%p5 bra LEAVE;\n"
                      "CONTINUE: add.u32 %r6, %r6, 1; bra.uni INNER;\n"
                      "BREAK: add.u32 %r2, %r2, 1; add.u32 %r3, %r3, 1; bra.uni OUTER;\n"
                      "LEAVE: add.u32 %r2, %r2, 1000; st.global.u32 [%d2], %r2; ret;\n"
                      "END:\n" EPILOGUE,
        nested, 1000);
}

/* The latch of the loop stands before its header, as LLVM places it; lanes must still meet for the shuffle behind. */
static uint32_t rotated(uint32_t tid, uint32_t v) {
  (void)tid;
  return (v % 11) * 2;
}
static void latch_before_header(void **state) {
  (void)state;
  check(PROLOGUE("k") "rem.u32 %r3, %r1, 11; mov.u32 %r2, 0; bra.uni HEADER;\n"
                      "LATCH: add.u32 %r2, %r2, 2; sub.u32 %r3, %r3, 1;\n"
                      "HEADER: setp.ne.u32 %p1, %r3, 0; @%p1 bra LATCH;\n"
                      "shfl.sync.idx.b32 %r4, %r2, %laneid, 31, -1; mov.u32 %r2, %r4;\n" EPILOGUE,
        rotated, 1000);
}

static uint32_t table(uint32_t tid, uint32_t v) {
  (void)tid;
  static const uint32_t values[] = {10, 21, 32, 43};
  return values[v % 4] + 5;
}
static void branch_tables(void **state) {
  (void)state;
  check(PROLOGUE("k") "and.b32 %r3, %r1, 3;\nTARGETS: .branchtargets A, B, C, D;\nbrx.idx %r3, TARGETS;\n"
                      "A: mov.u32 %r2, 10; bra.uni END;\nB: mov.u32 %r2, 21; bra.uni END;\n"
                      "C: mov.u32 %r2, 32; bra.uni END;\nD: mov.u32 %r2, 43;\nEND: add.u32 %r2, %r2, 5;\n" EPILOGUE,
        table, 1000);
}

static uint32_t exits(uint32_t tid, uint32_t v) {
  return tid % 3 == 0 ? 1 : v % 2 ? 2 : 3;
}
static void lanes_that_exit_early(void **state) {
  (void)state;
  check(PROLOGUE("k") "rem.u32 %r3, %r0, 3; setp.eq.u32 %p1, %r3, 0; mov.u32 %r2, 1; @%p1 st.global.u32 [%d2], %r2;\n"
                      "@%p1 exit;\nand.b32 %r4, %r1, 1; setp.eq.u32 %p2, %r4, 1; @%p2 bra ODD;\n"
                      "mov.u32 %r2, 3; st.global.u32 [%d2], %r2; ret;\nODD: mov.u32 %r2, 2;\n" EPILOGUE,
        exits, 1000);
}

/* A switch over all values, whose last case LLVM sends to an exit: lanes meet for the shuffle nevertheless. */
static uint32_t switched(uint32_t tid, uint32_t v) {
  (void)tid;
  return v % 3 * 7;
}
static void exits_that_no_lane_takes(void **state) {
  (void)state;
  check(PROLOGUE("k") "rem.u32 %r3, %r1, 3; setp.eq.u32 %p1, %r3, 0; @%p1 bra A; setp.eq.u32 %p2, %r3, 1; @%p2 bra B;\n"
                      "setp.eq.u32 %p3, %r3, 2; @%p3 bra C; bra.uni NEVER;\n"
                      "A: mov.u32 %r2, 0; bra.uni MEET;\nB: mov.u32 %r2, 7; bra.uni MEET;\nC: mov.u32 %r2, 14;\n"
                      "MEET: shfl.sync.idx.b32 %r4, %r2, %laneid, 31, -1; st.global.u32 [%d2], %r4;\nret;\n"
                      "NEVER: exit;\n}\n",
        switched, 1000);
}

static uint32_t logic(uint32_t tid, uint32_t v) {
  bool a = v & 1, b = v & 2, c = tid & 1;
  return (uint32_t)((a && b) + 2 * (a || !c) + 4 * (a != b) + 8 * !c + 16 * (v < 500 && c) + 32 * (!(v < 500) && c) +
                    64 * (a && c));
}
static void predicate_logic(void **state) {
  (void)state;
  check(PROLOGUE("k") "and.b32 %r3, %r1, 1; setp.ne.u32 %p1, %r3, 0; and.b32 %r3, %r1, 2; setp.ne.u32 %p2, %r3, 0;\n"
                      "and.b32 %r3, %r0, 1; setp.ne.u32 %p3, %r3, 0; mov.u32 %r2, 0;\n"
                      "and.pred %p4, %p1, %p2; @%p4 add.u32 %r2, %r2, 1;\n"
                      "not.pred %p5, %p3; or.pred %p4, %p1, %p5; @%p4 add.u32 %r2, %r2, 2;\n"
                      "xor.pred %p4, %p1, %p2; @%p4 add.u32 %r2, %r2, 4; @!%p3 add.u32 %r2, %r2, 8;\n"
                      "setp.lt.and.u32 %p4|%p5, %r1, 500, %p3; @%p4 add.u32 %r2, %r2, 16; @%p5 add.u32 %r2, %r2, 32;\n"
                      "mov.pred %p6, %p1; selp.u32 %r5, 64, 0, %p6; @%p3 add.u32 %r2, %r2, %r5;\n" EPILOGUE,
        logic, 1000);
}

/* Scopes as inline assembly makes them, and every special register. */
static uint32_t specials(uint32_t tid, uint32_t v) {
  uint32_t lane = tid % 32, low = (1u << lane) - 1;
  return v + tid / 32 + lane + low + ~low + N + 1;
}
static void scopes_and_special_registers(void **state) {
  (void)state;
  check(PROLOGUE("k") "{ .reg .b32 %r1; mov.u32 %r1, %warpid; add.u32 %r1, %r1, %laneid; { .reg .b32 t; mov.u32 t, "
                      "%lanemask_lt; add.u32 %r2, %r1, t; mov.u32 t, %lanemask_ge; add.u32 %r2, %r2, t; } }\n"
                      "add.u32 %r2, %r2, %ntid.x; add.u32 %r2, %r2, %nctaid.y; add.u32 %r2, %r2, %ctaid.z;\n"
                      "add.u32 %r2, %r2, %r1;\n" EPILOGUE,
        specials, 1000);
}

static void three_dimensional_grids(void **state) {
  (void)state;
  kva_ptx_module *m = ptx_parse(
      PTX_HEAD
      ".entry k(.param .u64 out) { .reg .b32 %r<20>; .reg .b64 %d<4>;\n ld.param.u64 %d1, [out];\n"
      "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z;\n"
      "mad.lo.u32 %r4, %r3, %nctaid.y, %r2; mad.lo.u32 %r4, %r4, %nctaid.x, %r1;\n"
      "mov.u32 %r5, %tid.x; mov.u32 %r6, %tid.y; mov.u32 %r7, %tid.z;\n"
      "mad.lo.u32 %r8, %r7, %ntid.y, %r6; mad.lo.u32 %r8, %r8, %ntid.x, %r5;\n"
      "mul.lo.u32 %r9, %ntid.x, %ntid.y; mul.lo.u32 %r9, %r9, %ntid.z; mad.lo.u32 %r8, %r4, %r9, %r8;\n"
      "mul.wide.u32 %d2, %r8, 4; add.s64 %d2, %d1, %d2; add.u32 %r8, %r8, 7; st.global.u32 [%d2], %r8; ret; }\n");
  static uint32_t out[2 * 3 * 4 * 5 * 3 * 2];
  kva_pool *pool = kva_pool_create(3);
  ptx_case c = {.grid = {2, 3, 4},
                .block = {5, 3, 2},
                .arrays = {out},
                .sizes = {sizeof out},
                .n_arrays = 1,
                .options = {.pool = pool}};
  ptx_run_clean(m, &c);
  for (uint32_t k = 0; k < sizeof out / sizeof *out; k++) assert_int_equal(out[k], k + 7);
  kva_pool_destroy(pool);
  kva_ptx_module_destroy(m);
}

/* Halves of a register compare into two predicates; a NaN in one of them. */
static uint32_t compared_halves(uint32_t tid, uint32_t v) {
  float low = (float)(v % 8), high = (float)(tid % 8);
  bool nan = v % 8 == 7, flag = tid & 1;
  return (uint32_t)((!nan && low < 3) + 2 * (high < 3) + 4 * !nan + 8 + 16 * (flag && !nan && low >= 3) +
                    32 * (flag && high >= 3));
}
static void comparisons_of_halves(void **state) {
  (void)state;
  check(
      PROLOGUE(
          "k") ".reg .b16 %h<4>; .reg .b32 %x<3>;\n"
               "and.b32 %r3, %r1, 7; cvt.rn.f16.u32 %h1, %r3; setp.eq.u32 %p1, %r3, 7; @%p1 mov.b16 %h1, 0x7e00;\n"
               "and.b32 %r4, %r0, 7; cvt.rn.f16.u32 %h2, %r4; mov.b32 %x1, {%h1, %h2}; mov.b32 %x2, 0x42004200;\n"
               "mov.u32 %r2, 0; setp.lt.f16x2 %p1|%p2, %x1, %x2; @%p1 add.u32 %r2, %r2, 1; @%p2 add.u32 %r2, %r2, 2;\n"
               "setp.num.f16x2 %p1|%p2, %x1, %x2; @%p1 add.u32 %r2, %r2, 4; @%p2 add.u32 %r2, %r2, 8;\n"
               "and.b32 %r5, %r0, 1; setp.ne.u32 %p3, %r5, 0; setp.ge.and.f16x2 %p1|%p2, %x1, %x2, %p3;\n"
               "@%p1 add.u32 %r2, %r2, 16; @%p2 add.u32 %r2, %r2, 32;\n" EPILOGUE,
      compared_halves, 1000);
}

/* 128-bit sums and differences from 32-bit pieces, by the carry. */
static void carries(void **state) {
  (void)state;
  kva_ptx_module *m = ptx_parse(
      PTX_HEAD
      ".entry k(.param .u64 in, .param .u64 out) { .reg .b32 %r<20>; .reg .b64 %d<20>;\n ld.param.u64 %d1, [in]; "
      "ld.param.u64 %d2, [out];\n"
      "mov.u32 %r1, %tid.x; mad.wide.u32 %d1, %r1, 32, %d1; mad.wide.u32 %d2, %r1, 32, %d2;\n"
      "ld.global.u64 %d3, [%d1]; ld.global.u64 %d4, [%d1+8]; ld.global.u64 %d5, [%d1+16]; ld.global.u64 %d6, "
      "[%d1+24];\n"
      "add.cc.u64 %d7, %d3, %d5; addc.u64 %d8, %d4, %d6; st.global.u64 [%d2], %d7; st.global.u64 [%d2+8], %d8;\n"
      "mov.b64 {%r2, %r3}, %d3; mov.b64 {%r4, %r5}, %d4; mov.b64 {%r6, %r7}, %d5; mov.b64 {%r8, %r9}, %d6;\n"
      "sub.cc.u32 %r10, %r2, %r6; subc.cc.u32 %r11, %r3, %r7; subc.cc.u32 %r12, %r4, %r8; subc.u32 %r13, %r5, %r9;\n"
      "st.global.u32 [%d2+16], %r10; st.global.u32 [%d2+20], %r11; st.global.u32 [%d2+24], %r12; st.global.u32 "
      "[%d2+28], %r13; ret; }\n");
  unsigned __int128 in[32][2], out[32][2];
  uint64_t random = 3;
  for (int k = 0; k < 64; k++) {
    uint64_t hi = ptx_random(&random), lo = ptx_random(&random) % 5 ? ptx_random(&random) : 0;
    in[k / 2][k % 2] = (unsigned __int128)(k % 3 ? hi : 0) << 64 | (k % 7 ? lo : ~lo);
  }
  ptx_case c = {.block = {32, 1, 1}, .arrays = {in, out}, .sizes = {sizeof in, sizeof out}, .n_arrays = 2};
  ptx_run_clean(m, &c);
  for (int k = 0; k < 32; k++) assert_true(out[k][0] == in[k][0] + in[k][1] && out[k][1] == in[k][0] - in[k][1]);
  kva_ptx_module_destroy(m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(loops_of_different_length), cmocka_unit_test(nested_loops_with_breaks),
      cmocka_unit_test(latch_before_header),       cmocka_unit_test(branch_tables),
      cmocka_unit_test(lanes_that_exit_early),     cmocka_unit_test(exits_that_no_lane_takes),
      cmocka_unit_test(predicate_logic),           cmocka_unit_test(scopes_and_special_registers),
      cmocka_unit_test(three_dimensional_grids),   cmocka_unit_test(carries),
      cmocka_unit_test(comparisons_of_halves),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
