/* Fields of words as floats, by a permutation where a CPU has one, against plain C; loads and stores fetch ahead. */
#include "tests/support/jit.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

enum { WORDS = 70, WORD_BITS = 32, AHEAD = 4096 };

typedef struct field {
  int64_t bit, bits;
  bool is_signed;
} field;

static float expected(uint32_t word, field f) {
  uint32_t code = word >> f.bit & ((1u << f.bits) - 1);
  bool negative = f.is_signed && code >> (f.bits - 1);
  return (float)((int32_t)code - (negative ? 1 << f.bits : 0));
}

/* out[i] = the field of x[i], extracted as kv.unpack does it and converted by way of `byte`. */
static jit describe(const kva_target_options *options, field f, kva_dtype byte, int64_t n) {
  jit j = jit_create_for("field", options);
  const kva_expr *extent = jit_const(&j, n);
  kva_kbuf *x = kva_k_param(j.kb, "x", KVA_U32, extent), *out = kva_k_param(j.kb, "out", KVA_F32, extent);
  kva_kloop *l = kva_k_loop_begin(j.kb, KVA_K_VECTOR, extent, "i");
  kva_dtype word = f.is_signed ? KVA_I32 : KVA_U32;
  j.kb->prefetch_bytes = AHEAD;
  kva_kval v = kva_k_convert(j.kb, kva_k_load(j.kb, x, l->var), word);
  j.kb->prefetch_bytes = 0;
  v = kva_k2(j.kb, KVA_K_shl, v, kva_k_const_i(j.kb, word, WORD_BITS - f.bits - f.bit));
  v = kva_k2(j.kb, KVA_K_shr, v, kva_k_const_i(j.kb, word, WORD_BITS - f.bits));
  v = kva_k_convert(j.kb, kva_k_convert(j.kb, v, byte), KVA_F32);
  j.kb->prefetch_bytes = AHEAD;
  kva_k_store(j.kb, out, l->var, v);
  j.kb->prefetch_bytes = 0;
  kva_k_loop_end(j.kb, l);
  return j;
}

static jit build(const kva_target_options *options, field f, kva_dtype byte, int64_t n) {
  jit j = describe(options, f, byte, n);
  jit_compile(&j, false, 0, NULL);
  return j;
}

static void run(const kva_target_options *options, field f, kva_dtype byte, const uint32_t *x, float *out, int64_t n) {
  jit j = build(options, f, byte, n);
  jit_run(&j, (void *[]){(void *)(uintptr_t)x, out}, NULL, j.grid);
  jit_destroy(&j);
}

static void check(const kva_target_options *options, field f, const uint32_t *x, int64_t n) {
  float out[WORDS];
  run(options, f, f.is_signed ? KVA_I8 : KVA_U8, x, out, n);
  for (int64_t i = 0; i < n; i++)
    if (out[i] != expected(x[i], f))
      fail_msg("bit %d, %d bits, %s: %08x gave %g", (int)f.bit, (int)f.bits, f.is_signed ? "signed" : "unsigned", x[i],
               (double)out[i]);
}

static const kva_target_options targets[] = {
    {0},
    {.vector_bits = 128},
#if defined __x86_64__
    {.cpu = "x86-64"},
    {.cpu = "x86-64-v3"},
#endif
};

/* Those whose code this CPU runs. */
static int count_targets(void) {
  int n = sizeof targets / sizeof *targets;
#if defined __x86_64__
  if (!__builtin_cpu_supports("avx2")) n--;
#endif
  return n;
}

static void fill(uint32_t *x) {
  srand(7);
  for (int i = 0; i < WORDS; i++) x[i] = (uint32_t)rand() * 5;
}

static void every_field_becomes_its_float(void **state) {
  (void)state;
  uint32_t x[WORDS];
  fill(x);
  for (int t = 0; t < count_targets(); t++)
    for (int64_t bits = 1; bits <= 5; bits++)
      for (int64_t bit = 0; bit + bits <= WORD_BITS; bit += bits)
        for (int is_signed = 0; is_signed < 2; is_signed++)
          check(&targets[t], (field){bit, bits, is_signed}, x, bit % 3 ? WORDS : 64);
}

/* A negative field by way of an unsigned byte is no negative number. */
static void signs_in_between_count(void **state) {
  (void)state;
  uint32_t x[WORDS];
  float out[WORDS];
  fill(x);
  for (int t = 0; t < count_targets(); t++) {
    field f = {8, 4, true};
    run(&targets[t], f, KVA_U8, x, out, WORDS);
    for (int i = 0; i < WORDS; i++) assert_int_equal((int)out[i], (uint8_t)(int8_t)expected(x[i], f));
  }
}

/* Instructions of j's kernel that fetch what will be read, to the second cache; what will be written, to the first. */
static void count_fetches(const jit *j, int *out_reads, int *out_writes) {
  int32_t number;
  char *text;
  size_t size;
  *out_reads = *out_writes = 0;
  assert_int_equal(kva_codegen_add(j->cg, j->kernel, 0, NULL, &number), KVA_OK);
  assert_int_equal(kva_codegen_emit(j->cg, "llvm", &text, &size), KVA_OK);
  for (const char *at = text; (at = strstr(at, "call void @llvm.prefetch")) != NULL; at++) {
    const char *line = strchr(at, '\n'), *read = strstr(at, ", i32 0, i32 2"), *write = strstr(at, ", i32 1, i32 3");
    *out_reads += read && read < line;
    *out_writes += write && write < line;
  }
  free(text);
}

static void both_fetch_ahead(void **state) {
  (void)state;
  jit j = describe(NULL, (field){0, 4, false}, KVA_U8, 64);
  int reads, writes;
  kva_codegen_schedule(j.kernel, kva_codegen_target(j.cg));
  count_fetches(&j, &reads, &writes);
  assert_true(reads > 0);
  assert_int_equal(reads, writes);
  jit_destroy(&j);
}

/* Rows of three vectors of 32 bytes, so many floats apart: of two vectors that share a line one fetches it; where rows
 * may begin in the middle of a line, any of the three may be the first. */
static void check_rows(int64_t apart, int expected) {
  jit j = jit_create_for("rows", &(kva_target_options){.vector_bits = 256});
  const kva_expr *extent = jit_const(&j, 10 * apart);
  kva_kbuf *x = kva_k_param(j.kb, "x", KVA_F32, extent), *y = kva_k_param(j.kb, "y", KVA_F32, extent);
  kva_kloop *row = kva_k_loop_begin(j.kb, KVA_K_SERIAL, jit_const(&j, 10), "row");
  kva_kloop *l = kva_k_loop_begin(j.kb, KVA_K_VECTOR, jit_const(&j, 24), "j");
  const kva_expr *at = kva_expr_add(j.exprs, kva_expr_muli(j.exprs, row->var, apart), l->var);
  j.kb->prefetch_bytes = AHEAD;
  kva_kval v = kva_k_load(j.kb, x, at);
  j.kb->prefetch_bytes = 0;
  kva_k_store(j.kb, y, at, v);
  kva_k_loop_end(j.kb, l);
  kva_k_loop_end(j.kb, row);
  int reads, writes;
  count_fetches(&j, &reads, &writes);
  assert_int_equal(reads, expected);
  assert_int_equal(writes, 0);
  jit_destroy(&j);
}

static void lines_are_fetched_once_if_possible(void **state) {
  (void)state;
  check_rows(32, 2);
  check_rows(24, 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_field_becomes_its_float),
      cmocka_unit_test(signs_in_between_count),
      cmocka_unit_test(both_fetch_ahead),
      cmocka_unit_test(lines_are_fetched_once_if_possible),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
