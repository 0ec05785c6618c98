/* Blocks that loads transpose (codegen/llvm_transpose.c): for every width of vectors, with rows that are no whole
 * vectors, and by shuffles where they are meant to be. */
#include "tests/support/jit.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ROWS = 70, STRIDE = 24, FIRST = 3, MAX_COLUMNS = 16 };

/* out[c][r] = x[r][FIRST + c] + c */
static jit build(const kva_target_options *options, int64_t rows, int64_t columns) {
  jit j = jit_create_for("transpose", options);
  kva_kbuf *x = kva_k_param(j.kb, "x", KVA_F32, jit_const(&j, ROWS * STRIDE));
  kva_kbuf *out = kva_k_param(j.kb, "out", KVA_F32, jit_const(&j, columns * ROWS));
  kva_kloop *r = kva_k_loop_begin(j.kb, KVA_K_VECTOR, jit_const(&j, rows), "r");
  kva_kloop *c = kva_k_loop_begin(j.kb, KVA_K_UNROLL, jit_const(&j, columns), "c");
  const kva_expr *column = kva_expr_addi(j.exprs, c->var, FIRST);
  const kva_expr *from = kva_expr_add(j.exprs, kva_expr_muli(j.exprs, r->var, STRIDE), column);
  const kva_expr *to = kva_expr_add(j.exprs, kva_expr_muli(j.exprs, c->var, ROWS), r->var);
  kva_kval number = kva_k_convert(j.kb, kva_k_index(j.kb, c->var), KVA_F32);
  kva_k_store(j.kb, out, to, kva_k2(j.kb, KVA_K_add, kva_k_load(j.kb, x, from), number));
  kva_k_loop_end(j.kb, c);
  kva_k_loop_end(j.kb, r);
  return j;
}

static bool uses(jit *j, const char *word) {
  char *text;
  size_t size;
  assert_int_equal(kva_codegen_emit(j->cg, "llvm", &text, &size), KVA_OK);
  kva_text copy = {0};
  kva_text_add(&copy, "%.*s", (int)size, text);
  bool found = strstr(copy.data, word);
  kva_text_free(&copy);
  free(text);
  return found;
}

static void check(const kva_target_options *options, int64_t rows, int64_t columns, int64_t lanes) {
  float x[ROWS * STRIDE], out[MAX_COLUMNS * ROWS] = {0};
  for (int i = 0; i < ROWS * STRIDE; i++) x[i] = (float)i;
  jit j = build(options, rows, columns);
  jit_compile(&j, false, 0, NULL);
  jit_run(&j, (void *[]){x, out}, NULL, j.grid);
  for (int64_t c = 0; c < columns; c++)
    for (int64_t r = 0; r < rows; r++) assert_int_equal((int)out[c * ROWS + r], (int)(r * STRIDE + FIRST + c + c));
  bool whole = rows == 32 && columns == lanes; /* vectors, and few enough to be straight code */
  if (whole) assert_true(uses(&j, "shufflevector"));
  if (whole) assert_false(uses(&j, "llvm.masked.gather"));
  jit_destroy(&j);
}

static void test_blocks(void **state) {
  (void)state;
  static const struct {
    kva_target_options options;
    int64_t lanes;
    const char *feature;
  } targets[] = {
    {{.vector_bits = 128}, 4, NULL},
#if defined __x86_64__
    {{.cpu = "x86-64"}, 4, NULL},
    {{.cpu = "x86-64-v3"}, 8, "avx2"},
    {{.cpu = "x86-64-v4"}, 16, "avx512f"},
#endif
  };
  for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
#if defined __x86_64__
    const char *feature = targets[t].feature;
    bool runs =
        !feature || (strcmp(feature, "avx2") == 0 ? __builtin_cpu_supports("avx2") : __builtin_cpu_supports("avx512f"));
    if (!runs) {
      printf("SKIP: this CPU has no %s\n", feature);
      continue;
    }
#endif
    for (int64_t columns = 4; columns <= MAX_COLUMNS; columns *= 2) {
      check(&targets[t].options, 32, columns, targets[t].lanes);
      check(&targets[t].options, 64, columns, targets[t].lanes);
      check(&targets[t].options, ROWS, columns, targets[t].lanes);
      check(&targets[t].options, 3, columns, targets[t].lanes);
    }
    check(&targets[t].options, 64, 5, targets[t].lanes);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
