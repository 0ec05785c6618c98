/* dot4 and dot2: sums of products of bytes and of bf16, by the instructions of each kind of CPU, against plain C. Those
 * of aarch64 are run by tests/aot/test_cross_operators.sh. */
#include "tests/support/jit.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

enum { MAX = 70 };

static int32_t expected(int32_t a, int32_t b, int32_t c) {
  uint32_t sum = (uint32_t)c;
  for (int bit = 0; bit < 32; bit += 8)
    sum += (uint32_t)((int32_t)(uint8_t)((uint32_t)a >> bit) * (int8_t)((uint32_t)b >> bit));
  return (int32_t)sum;
}

/* out[i] = op(a[i], b[i], c[i]) of this type */
static jit describe_op(kva_kop op, kva_dtype t, const kva_target_options *options, kva_kloop_kind kind, int64_t n) {
  jit j = jit_create_for("dot", options);
  const kva_expr *extent = jit_const(&j, n);
  kva_kbuf *p[4];
  for (int i = 0; i < 4; i++) p[i] = kva_k_param(j.kb, (const char *[]){"a", "b", "c", "out"}[i], t, extent);
  kva_kloop *l = kva_k_loop_begin(j.kb, kind, extent, "i");
  kva_kval v = kva_k_op(j.kb, op, kva_k_load(j.kb, p[0], l->var), kva_k_load(j.kb, p[1], l->var),
                        kva_k_load(j.kb, p[2], l->var));
  kva_k_store(j.kb, p[3], l->var, v);
  kva_k_loop_end(j.kb, l);
  return j;
}

static jit describe(const kva_target_options *options, kva_kloop_kind kind, int64_t n) {
  return describe_op(KVA_K_dot4, KVA_I32, options, kind, n);
}

static jit build(const kva_target_options *options, kva_kloop_kind kind, int64_t n) {
  jit j = describe(options, kind, n);
  jit_compile(&j, false, 0, NULL);
  return j;
}

/* Random words, and those of extreme bytes in all pairs. */
static void fill(int32_t *a, int32_t *b, int32_t *c) {
  static const uint32_t extreme[] = {0, 0xFFFFFFFF, 0x80808080, 0x7F7F7F7F, 0x01010101};
  enum { N = sizeof extreme / sizeof *extreme };
  srand(7);
  for (int i = 0; i < MAX; i++) {
    bool random = i >= N * N;
    a[i] = (int32_t)(random ? (uint32_t)rand() * 3 : extreme[i % N]);
    b[i] = (int32_t)(random ? (uint32_t)rand() * 5 : extreme[i / N]);
    c[i] = i % 3 ? rand() : i % 2 ? INT32_MAX : INT32_MIN;
  }
}

static void check(const kva_target_options *options, kva_kloop_kind kind, int64_t n) {
  int32_t a[MAX], b[MAX], c[MAX], out[MAX];
  fill(a, b, c);
  jit j = build(options, kind, n);
  jit_run(&j, (void *[]){a, b, c, out}, NULL, j.grid);
  for (int64_t i = 0; i < n; i++) assert_int_equal(out[i], expected(a[i], b[i], c[i]));
  jit_destroy(&j);
}

static void test_instructions(void **state) {
  (void)state;
  static const kva_target_options targets[] = {
    {0},
    {.vector_bits = 128},
#if defined __x86_64__
    {.cpu = "x86-64"},
    {.cpu = "x86-64-v3"},
#endif
  };
#if defined __x86_64__
  size_t n = __builtin_cpu_supports("avx2") ? 4 : 3;
#else
  size_t n = 2;
#endif
  static const int64_t extents[] = {1, 2, 3, 8, 37, MAX};
  for (size_t t = 0; t < n; t++)
    for (size_t i = 0; i < sizeof extents / sizeof *extents; i++) {
      check(&targets[t], KVA_K_VECTOR, extents[i]);
      check(&targets[t], KVA_K_SERIAL, extents[i]);
    }
}

/* ---- bf16 -------------------------------------------------------------------------------------------------------- */

static float high(float pair) {
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  bits &= 0xFFFF0000;
  memcpy(&pair, &bits, sizeof bits);
  return pair;
}

static float low(float pair) {
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  bits <<= 16;
  memcpy(&pair, &bits, sizeof bits);
  return pair;
}

/* Normal numbers whose products are so, with sums that round; NaN and infinities, too. */
static float random_pair(void) {
  uint32_t bits = 0;
  float pair;
  for (int i = 0; i < 2; i++) {
    uint32_t sign = (uint32_t)rand() % 2 << 15, exponent = (uint32_t)(117 + rand() % 20) << 7;
    uint32_t special = (uint32_t)(0x7F80 + rand() % 2);
    bits = bits << 16 | sign | (rand() % 40 ? exponent | (uint32_t)rand() % 128 : special);
  }
  memcpy(&pair, &bits, sizeof pair);
  return pair;
}

static void check_pairs(const kva_target_options *options, kva_kloop_kind kind, int64_t n) {
  float a[MAX], b[MAX], c[MAX], out[MAX];
  srand(11);
  for (int i = 0; i < MAX; i++) a[i] = random_pair(), b[i] = random_pair(), c[i] = (float)rand() / (float)RAND_MAX;
  jit j = describe_op(KVA_K_dot2, KVA_F32, options, kind, n);
  jit_compile(&j, false, 0, NULL);
  jit_run(&j, (void *[]){a, b, c, out}, NULL, j.grid);
  for (int64_t i = 0; i < n; i++) {
    float sum = fmaf(low(a[i]), low(b[i]), fmaf(high(a[i]), high(b[i]), c[i]));
    assert_int_equal(isnan(out[i]) != 0, isnan(sum) != 0);
    if (!isnan(sum)) assert_true(out[i] == sum);
  }
  jit_destroy(&j);
}

static void test_pairs(void **state) {
  (void)state;
  static const kva_target_options targets[] = {
    {0},
    {.vector_bits = 128},
#if defined __x86_64__
    {.cpu = "x86-64-v2"},
    {.cpu = "x86-64-v3"},
#endif
  };
#if defined __x86_64__
  size_t n = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 4 : 3;
#else
  size_t n = 2;
#endif
  static const int64_t extents[] = {1, 2, 3, 8, 37, MAX};
  for (size_t t = 0; t < n; t++)
    for (size_t i = 0; i < sizeof extents / sizeof *extents; i++) {
      check_pairs(&targets[t], KVA_K_VECTOR, extents[i]);
      check_pairs(&targets[t], KVA_K_SERIAL, extents[i]);
    }
}

/* ---- instructions ------------------------------------------------------------------------------------------------ */

static char *assembly_of(kva_kop op, kva_dtype t, const char *target, int64_t n) {
  jit j = describe_op(op, t, &(kva_target_options){.cpu = target, .opt_level = 2}, KVA_K_VECTOR, n);
  int32_t number;
  char *text;
  size_t size;
  kva_codegen_schedule(j.kernel, kva_codegen_target(j.cg));
  assert_int_equal(kva_codegen_add(j.cg, j.kernel, 0, NULL, &number), KVA_OK);
  assert_int_equal(kva_codegen_emit(j.cg, "asm", &text, &size), KVA_OK);
  jit_destroy(&j);
  return text;
}

static char *assembly(const char *target, int64_t n) {
  return assembly_of(KVA_K_dot4, KVA_I32, target, n);
}

/* vdpbf16ps where it pays, whatever the lanes; on Sapphire Rapids, which has it, FMAs are as fast. */
static void test_pair_instructions(void **state) {
  (void)state;
  static const struct {
    const char *cpu;
    bool has;
  } rows[] = {{"znver5", true},     {"znver4", true},     {"sapphirerapids", false},
              {"x86-64-v3", false}, {"x86-64-v4", false}, {"neoverse-n1", false}};
  for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
    for (int64_t n = 1; n <= 64; n *= 2) {
      char *text = assembly_of(KVA_K_dot2, KVA_F32, rows[r].cpu, n);
      assert_int_equal(strstr(text, "vdpbf16ps") != NULL, rows[r].has);
      free(text);
    }
}

static void test_aarch64(void **state) {
  (void)state;
  static const char *const instructions[] = {"\tusdot\tv", "\tsdot\tv", "\tsadalp\tv"};
  static const struct {
    const char *cpu;
    int instruction;
  } rows[] = {{"neoverse-v1", 0}, {"neoverse-n2", 0}, {"neoverse-n1", 1},
              {"cortex-a76", 1},  {"apple-m1", 1},    {"cortex-a72", 2}};
  for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
    for (int64_t n = 2; n <= 32; n *= 4) {
      char *text = assembly(rows[r].cpu, n);
      for (int i = 0; i < 3; i++) assert_int_equal(strstr(text, instructions[i]) != NULL, i == rows[r].instruction);
      free(text);
    }
}

/* Such code is not linked into this process. */
static void test_foreign(void **state) {
  (void)state;
#if defined __x86_64__
  jit j = describe(&(kva_target_options){.cpu = "neoverse-n1", .opt_level = 2}, KVA_K_VECTOR, 8);
  assert_int_equal(kva_codegen_jit(j.cg), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(j.diag, 0, NULL, NULL), "neoverse-n1"));
  jit_destroy(&j);
#endif
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_instructions), cmocka_unit_test(test_pairs),
                                     cmocka_unit_test(test_pair_instructions), cmocka_unit_test(test_aarch64),
                                     cmocka_unit_test(test_foreign)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
