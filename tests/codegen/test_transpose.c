/* Loads that shuffle: blocks that they transpose (codegen/llvm_transpose.c), rows in which lanes take turns
 * (codegen/llvm_memory.c), and a transposition as it is scheduled (codegen/schedule.c): for every width of vectors,
 * with rows that are no whole vectors, and by shuffles where they are meant to be. */
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
  if (whole) assert_true(jit_emits(&j, "shufflevector"));
  if (whole) assert_false(jit_emits(&j, "llvm.masked.gather"));
  jit_destroy(&j);
}

static void check_blocks(const kva_target_options *options, int64_t lanes) {
  static const int64_t rows[] = {32, 64, ROWS, 3};
  for (place w = IN_MEMORY; w <= IN_LOCAL_OVERWRITTEN; w++) {
    for (int64_t columns = 4; columns <= MAX_COLUMNS; columns *= 2)
      for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_in(options, rows[i], columns, lanes, w);
    check_in(options, 64, 5, lanes, w);
  }
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

enum { TURNS = 70, WHOLE_TURNS = 64, MAX_TAKING = 8, DISTANCE = 100, IN_ALL = FIRST + MAX_TAKING * DISTANCE };

/* out[i] = x[FIRST + i / n + DISTANCE (i mod n)], those up to `last` of each row; 0 behind */
static jit build_turns(const kva_target_options *options, int64_t turns, int64_t n, int64_t last) {
  jit j = jit_create_for("turns", options);
  kva_kbuf *x = kva_k_param(j.kb, "x", KVA_F32, jit_const(&j, IN_ALL));
  kva_kbuf *out = kva_k_param(j.kb, "out", KVA_F32, jit_const(&j, turns));
  kva_kloop *i = kva_k_loop_begin(j.kb, KVA_K_VECTOR, jit_const(&j, turns), "i");
  const kva_expr *number = jit_const(&j, n), *in_row = kva_expr_div(j.exprs, i->var, number);
  const kva_expr *row = kva_expr_muli(j.exprs, kva_expr_mod(j.exprs, i->var, number), DISTANCE);
  const kva_expr *from = kva_expr_addi(j.exprs, kva_expr_add(j.exprs, in_row, row), FIRST);
  kva_kval inside = kva_k_index_le(j.kb, in_row, jit_const(&j, last)); /* always, and NULL, or for some lanes */
  kva_kval guard = kva_k_guard_begin(j.kb, inside), v = kva_k_load(j.kb, x, from);
  kva_k_guard_end(j.kb, guard);
  kva_k_store(j.kb, out, i->var, v);
  kva_k_loop_end(j.kb, i);
  return j;
}

static void check_turns_of(const kva_target_options *options, int64_t turns, int64_t lanes, int64_t n, int64_t last) {
  float x[IN_ALL], out[TURNS] = {0};
  for (int i = 0; i < IN_ALL; i++) x[i] = (float)i;
  jit j = build_turns(options, turns, n, last);
  jit_compile(&j, false, 0, NULL);
  jit_run(&j, (void *[]){x, out}, NULL, j.grid);
  for (int64_t i = 0; i < turns; i++)
    assert_int_equal((int)out[i], i / n <= last ? (int)(FIRST + i / n + DISTANCE * (i % n)) : 0);
  bool in_turns = turns == WHOLE_TURNS && n != 3 && n <= 4 && 2 * n <= lanes; /* the last lanes of others may be few */
  if (in_turns) assert_false(jit_emits(&j, "llvm.masked.gather"));
  jit_destroy(&j);
}

static void check_turns(const kva_target_options *options, int64_t lanes) {
  for (int64_t n = 2; n <= MAX_TAKING; n++) {
    for (int64_t last = 5; last <= TURNS; last += TURNS - 5) {
      check_turns_of(options, TURNS, lanes, n, last);
      check_turns_of(options, WHOLE_TURNS, lanes, n, last);
    }
  }
}

/* ---- scheduled --------------------------------------------------------------------------------------------------- */

enum { CHANNELS = 32, PLACES = 160 };

/* out[c][p] = x[p][c] + bias[c]: the builder loads the bias once a channel, between both loops. */
static void check_bias(const kva_target_options *options, int64_t lanes) {
  (void)lanes;
  float x[PLACES * CHANNELS], bias[CHANNELS], out[CHANNELS * PLACES] = {0};
  for (int i = 0; i < PLACES * CHANNELS; i++) x[i] = (float)i;
  for (int c = 0; c < CHANNELS; c++) bias[c] = (float)(c * c);
  jit j = jit_create_for("bias", options);
  kva_kbuf *from = kva_k_param(j.kb, "x", KVA_F32, jit_const(&j, PLACES * CHANNELS));
  kva_kbuf *column = kva_k_param(j.kb, "bias", KVA_F32, jit_const(&j, CHANNELS));
  kva_kbuf *to = kva_k_param(j.kb, "out", KVA_F32, jit_const(&j, CHANNELS * PLACES));
  kva_kloop *c = kva_k_loop_begin(j.kb, KVA_K_PARALLEL, jit_const(&j, CHANNELS), "c");
  kva_kloop *p = kva_k_loop_begin(j.kb, KVA_K_PARALLEL, jit_const(&j, PLACES), "p");
  kva_kval v = kva_k_load(j.kb, from, kva_expr_add(j.exprs, kva_expr_muli(j.exprs, p->var, CHANNELS), c->var));
  v = kva_k2(j.kb, KVA_K_add, v, kva_k_load(j.kb, column, c->var));
  kva_k_store(j.kb, to, kva_expr_add(j.exprs, kva_expr_muli(j.exprs, c->var, PLACES), p->var), v);
  kva_k_loop_end(j.kb, p);
  kva_k_loop_end(j.kb, c);
  jit_compile(&j, false, 0, NULL);
  jit_run(&j, (void *[]){x, bias, out}, NULL, j.grid);
  for (int k = 0; k < CHANNELS * PLACES; k++)
    assert_int_equal((int)out[k], k % PLACES * CHANNELS + k / PLACES + k / PLACES * (k / PLACES));
  assert_true(jit_emits(&j, "shufflevector"));
  assert_false(jit_emits(&j, "llvm.masked.gather"));
  jit_destroy(&j);
}

/* ---- every width ------------------------------------------------------------------------------------------------- */

static void over_targets(void (*check)(const kva_target_options *options, int64_t lanes)) {
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
    check(&targets[t].options, targets[t].lanes);
  }
}

static void test_blocks(void **state) {
  (void)state;
  over_targets(check_blocks);
}

static void test_turns(void **state) {
  (void)state;
  over_targets(check_turns);
}

static void test_bias(void **state) {
  (void)state;
  over_targets(check_bias);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks), cmocka_unit_test(test_turns),
                                     cmocka_unit_test(test_bias)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
