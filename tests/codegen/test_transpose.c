/* Blocks that loads transpose (codegen/llvm_transpose.c): for every width of vectors, with rows that are no whole
 * vectors, and by shuffles where they are meant to be. */
#include "tests/support/jit.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ROWS = 70, STRIDE = 24, FIRST = 3, MAX_COLUMNS = 16 };

typedef enum place { IN_MEMORY, IN_LOCAL, IN_LOCAL_OVERWRITTEN } place;

static kva_kbuf *copied(jit *j, kva_kbuf *x) {
  kva_kbuf *local = kva_k_local(j->kb, "local", KVA_F32, ROWS * STRIDE);
  kva_kloop *i = kva_k_loop_begin(j->kb, KVA_K_SERIAL, jit_const(j, ROWS * STRIDE), "i");
  kva_k_store(j->kb, local, i->var, kva_k_load(j->kb, x, i->var));
  kva_k_loop_end(j->kb, i);
  return local;
}

/* out[c][r] = x[r][FIRST + c] + c; with overwritten x, which each column increments in the next one, + c more */
static jit build(const kva_target_options *options, int64_t rows, int64_t columns, place where) {
  jit j = jit_create_for("transpose", options);
  kva_kbuf *x = kva_k_param(j.kb, "x", KVA_F32, jit_const(&j, ROWS * STRIDE));
  kva_kbuf *out = kva_k_param(j.kb, "out", KVA_F32, jit_const(&j, columns * ROWS));
  if (where != IN_MEMORY) x = copied(&j, x);
  kva_kloop *r = kva_k_loop_begin(j.kb, KVA_K_VECTOR, jit_const(&j, rows), "r");
  kva_kloop *c = kva_k_loop_begin(j.kb, KVA_K_UNROLL, jit_const(&j, columns), "c");
  const kva_expr *column = kva_expr_addi(j.exprs, c->var, FIRST);
  const kva_expr *from = kva_expr_add(j.exprs, kva_expr_muli(j.exprs, r->var, STRIDE), column);
  const kva_expr *to = kva_expr_add(j.exprs, kva_expr_muli(j.exprs, c->var, ROWS), r->var);
  kva_kval number = kva_k_convert(j.kb, kva_k_index(j.kb, c->var), KVA_F32);
  kva_k_store(j.kb, out, to, kva_k2(j.kb, KVA_K_add, kva_k_load(j.kb, x, from), number));
  if (where == IN_LOCAL_OVERWRITTEN) {
    const kva_expr *next = kva_expr_addi(j.exprs, from, 1);
    kva_kval more = kva_k2(j.kb, KVA_K_add, number, kva_k_const(j.kb, KVA_F32, 1));
    kva_k_store(j.kb, x, next, kva_k2(j.kb, KVA_K_add, kva_k_load(j.kb, x, next), more));
  }
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

static void check_in(const kva_target_options *options, int64_t rows, int64_t columns, int64_t lanes, place where) {
  float x[ROWS * STRIDE], out[MAX_COLUMNS * ROWS] = {0};
  for (int i = 0; i < ROWS * STRIDE; i++) x[i] = (float)i;
  jit j = build(options, rows, columns, where);
  jit_compile(&j, false, 0, NULL);
  jit_run(&j, (void *[]){x, out}, NULL, j.grid);
  for (int64_t c = 0; c < columns; c++)
    for (int64_t r = 0; r < rows; r++)
      assert_int_equal((int)out[c * ROWS + r],
                       (int)(r * STRIDE + FIRST + c + c * (where == IN_LOCAL_OVERWRITTEN ? 2 : 1)));
  /* vectors, and few enough to be straight code */
  bool whole = rows == 32 && columns == lanes && where != IN_LOCAL_OVERWRITTEN;
  if (whole) assert_true(uses(&j, "shufflevector"));
  if (whole) assert_false(uses(&j, "llvm.masked.gather"));
  jit_destroy(&j);
}

static void check(const kva_target_options *options, int64_t rows, int64_t columns, int64_t lanes) {
  for (place w = IN_MEMORY; w <= IN_LOCAL_OVERWRITTEN; w++) check_in(options, rows, columns, lanes, w);
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
