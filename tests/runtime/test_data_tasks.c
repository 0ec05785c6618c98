/* Generators of tasks that are more than a next token: hops and arithmetic in steps. Rows are read by rules of their
 * own. */
#include "runtime/runtime.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { B = 40, T = 64, VOCAB = 64 };

typedef struct batch {
  int32_t tokens[B][T], targets[B][T], first[B][T];
} batch;

static kva_data_source open_source(const char *text) {
  kva_data_source source;
  assert_int_equal(kva_data_open(text, &(kva_data_options){.vocab = VOCAB}, NULL, &source), KVA_OK);
  return source;
}

static void fill(kva_data_source *source, int64_t step, bool evaluation, batch *b) {
  kva_tensor tensors[3] = {
      {KVA_I32, 2, {B, T}, b->tokens}, {KVA_I32, 2, {B, T}, b->targets}, {KVA_I32, 2, {B, T}, b->first}};
  assert_int_equal(source->fill(source->self, 5, step, evaluation, 3, tensors, NULL), KVA_OK);
}

/* ---- hops -------------------------------------------------------------------------------------------------------- */

/* Where one hop from each position leads, by the last place of each letter; 0: nowhere. */
static void find_hops(const int32_t *row, int *to) {
  int last[VOCAB] = {0};
  to[0] = 0;
  for (int t = 1; t < T; t++) {
    to[t] = last[row[t]] ? last[row[t]] + 1 : 0;
    last[row[t]] = t;
  }
}

static void targets_are_hops_away(void **unused) {
  (void)unused;
  enum { HOPS = 7, LETTERS = 5 };
  kva_data_source source = open_source("hop:hops=7,letters=5");
  batch *b = malloc(sizeof *b);
  int found[HOPS + 1] = {0}, none = 0, to[T];
  fill(&source, 1, false, b);
  for (int r = 0; r < B; r++) {
    int hops = b->tokens[r][0] - LETTERS - 1;
    assert_int_equal(hops, r % (HOPS + 1));
    assert_int_equal(b->targets[r][0], -1);
    find_hops(b->tokens[r], to);
    for (int t = 1; t < T; t++) {
      assert_in_range(b->tokens[r][t], 1, LETTERS);
      assert_int_not_equal(b->tokens[r][t], b->tokens[r][t - 1]);
      int at = t;
      for (int k = 0; k < hops; k++) at = to[at];
      assert_int_equal(b->targets[r][t], at ? b->tokens[r][at] : 0);
      found[hops] += at > 0;
      none += at == 0;
    }
  }
  assert_true(none > 0 && found[0] == B / (HOPS + 1) * (T - 1) && found[HOPS] > 0 && found[HOPS] < found[1]);
  free(b);
  source.destroy(source.self);
}

/* How many rows of 60 steps have each number of hops, in batches of `rows`; -1: it differs. */
static int rows_of_each(const char *text, int64_t rows, bool evaluation) {
  enum { HOPS = 4, LETTERS = 4, STEPS = 60 };
  kva_data_source source = open_source(text);
  int n[HOPS + 1] = {0}, seen = 0;
  int32_t tokens[B][T];
  kva_tensor tensor = {KVA_I32, 2, {rows, T}, tokens};
  for (int64_t step = 1; step <= STEPS; step++) {
    assert_int_equal(source.fill(source.self, 5, step, evaluation, 1, &tensor, NULL), KVA_OK);
    for (int64_t r = 0; r < rows; r++) n[tokens[r][0] - LETTERS - 1]++;
  }
  source.destroy(source.self);
  for (int k = 0; k <= HOPS; k++) seen += n[k] == n[0];
  return seen > HOPS ? n[0] : -1;
}

static void small_batches_have_all_hops(void **unused) {
  (void)unused;
  for (int64_t rows = 1; rows <= 5; rows++) {
    assert_int_equal(rows_of_each("hop", rows, false), rows * 60 / 5);
    assert_int_equal(rows_of_each("hop", rows, true), rows * 60 / 5);
  }
}

/* A mixture fills one row at a time. */
static void mixtures_have_all_hops(void **unused) {
  (void)unused;
  kva_data_source source = open_source("hop;hop:hops=2");
  int n[5] = {0};
  int32_t tokens[B][T];
  kva_tensor tensor = {KVA_I32, 2, {B, T}, tokens};
  for (int64_t step = 1; step <= 30; step++) {
    assert_int_equal(source.fill(source.self, 5, step, false, 1, &tensor, NULL), KVA_OK);
    for (int64_t r = 0; r < B; r++) n[tokens[r][0] - 5]++;
  }
  for (int k = 0; k < 5; k++) assert_in_range(n[k], 60, 500);
  source.destroy(source.self);
}

/* ---- arithmetic in steps ----------------------------------------------------------------------------------------- */

enum { MOD = 5, END = 1, EQUALS, PLUS, MINUS, TIMES, QUESTION, NUMBERS, NAMES = NUMBERS + MOD };

/* Quantities of a row by their tokens. */
typedef struct known {
  int defined[VOCAB]; /* where; 0 stands for none, because the place is that after the name */
  int value[VOCAB];   /* of numbers from the start; -1: not computed yet */
  bool used[VOCAB];
} known;

static int compute(int operation, int a, int b) {
  return operation == PLUS ? (a + b) % MOD : operation == MINUS ? (a - b + MOD) % MOD : a * b % MOD;
}

/* "name = a op b ;" before the question. Returns where the question is. */
static int read_definitions(const int32_t *row, known *k) {
  int at = 0;
  for (; row[at + 1] == EQUALS; at += 6) {
    assert_in_range(row[at], NAMES, VOCAB - 1);
    assert_int_equal(k->defined[row[at]], 0);
    k->defined[row[at]] = at + 1;
    assert_in_range(row[at + 3], PLUS, TIMES);
    assert_true(row[at + 2] >= NUMBERS && row[at + 4] >= NUMBERS);
    assert_int_equal(row[at + 5], END);
    k->used[row[at + 2]] = k->used[row[at + 4]] = true;
  }
  assert_int_equal(row[at + 1], QUESTION);
  return at;
}

/* "name = definition = numbers = value ;" */
static void check_step(const int32_t *row, const int32_t *targets, int at, known *k) {
  int name = row[at], a = row[at + 2], b = row[at + 4];
  assert_true(k->defined[name]);
  assert_memory_equal(&row[at + 1], &row[k->defined[name]], 4 * sizeof *row);
  assert_true(k->value[a] >= 0 && k->value[b] >= 0);
  const int32_t rest[] = {EQUALS,      NUMBERS + k->value[a],
                          row[at + 3], NUMBERS + k->value[b],
                          EQUALS,      NUMBERS + compute(row[at + 3], k->value[a], k->value[b]),
                          END};
  assert_memory_equal(&row[at + 5], rest, sizeof rest);
  k->value[name] = rest[5] - NUMBERS;
  for (int t = at; t < at + 11; t++) assert_int_equal(targets[t], row[t + 1]);
  assert_int_equal(targets[at + 11], -1);
}

/* Returns the number of operations. */
static int check_problem(const int32_t *row, const int32_t *targets) {
  known k = {0};
  memset(k.value, -1, sizeof k.value);
  for (int v = 0; v < MOD; v++) k.value[NUMBERS + v] = v;
  int at = read_definitions(row, &k), ops = at / 6, asked = row[at];
  for (int t = 0; t < at + 2; t++) assert_int_equal(targets[t], -1);
  for (int name = NAMES; name < VOCAB; name++)
    if (k.defined[name]) assert_int_equal(k.used[name], name != asked);
  for (int i = 0; i < ops; i++) check_step(row, targets, at + 2 + 12 * i, &k);
  assert_int_equal(row[at + 2 + 12 * (ops - 1)], asked);
  for (int t = at + 2 + 12 * ops; t < T; t++) assert_true(row[t] == 0 && targets[t] == -1);
  return ops;
}

static void steps_solve_the_problem(void **unused) {
  (void)unused;
  kva_data_source source = open_source("igsm:ops=3,test=2");
  batch *b = malloc(sizeof *b);
  int of[4] = {0};
  for (int step = 1; step <= 20; step++) {
    fill(&source, step, false, b);
    for (int r = 0; r < B; r++) of[check_problem(b->tokens[r], b->targets[r])]++;
    fill(&source, step, true, b);
    for (int r = 0; r < B; r++) assert_int_equal(check_problem(b->tokens[r], b->targets[r]), 2);
  }
  for (int n = 1; n <= 3; n++) assert_in_range(of[n], 200, 340);
  free(b);
  source.destroy(source.self);
}

/* Problems of one operation on numbers are few: 75, each of which is on one side only. */
static void no_problem_is_on_both_sides(void **unused) {
  (void)unused;
  kva_data_source source = open_source("igsm:ops=1,test=1");
  batch *b = malloc(sizeof *b);
  static bool seen[2][1 << 12];
  int problems[2] = {0};
  for (int step = 1; step <= 60; step++)
    for (int evaluation = 0; evaluation < 2; evaluation++) {
      fill(&source, step, evaluation, b);
      for (int r = 0; r < B; r++) {
        int of = (b->tokens[r][2] << 4 | b->tokens[r][4]) << 4 | b->tokens[r][3];
        assert_false(seen[!evaluation][of]);
        problems[evaluation] += !seen[evaluation][of];
        seen[evaluation][of] = true;
      }
    }
  assert_int_equal(problems[0] + problems[1], 3 * MOD * MOD);
  assert_in_range(problems[1], 3, 20);
  free(b);
  source.destroy(source.self);
}

/* Evaluation has problems of one operation for any number of numbers. */
static void every_modulus_has_problems_for_evaluation(void **unused) {
  (void)unused;
  for (int mod = 5; mod < 60; mod++) {
    kva_data_source source;
    const kva_data_arg args[] = {{"mod", mod}, {"ops", 1}, {"test", 1}};
    int32_t tokens[20];
    kva_tensor t = {KVA_I32, 2, {1, 20}, tokens};
    assert_int_equal(kva_data_create("igsm", 3, args, 100, NULL, &source), KVA_OK);
    assert_int_equal(source.fill(source.self, 0, 1, true, 1, &t, NULL), KVA_OK);
    source.destroy(source.self);
  }
}

/* ---- mistakes ---------------------------------------------------------------------------------------------------- */

static void expect_error(const char *text, int64_t vocab, int64_t length, const char *message) {
  kva_diag *diag = kva_diag_create();
  kva_data_source source;
  int32_t tokens[T];
  kva_tensor t = {KVA_I32, 2, {1, length}, tokens};
  kva_status status = kva_data_open(text, &(kva_data_options){.vocab = vocab}, diag, &source);
  if (status == KVA_OK) {
    status = source.fill(source.self, 0, 1, false, 1, &t, diag);
    source.destroy(source.self);
  }
  assert_int_equal(status, KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), message));
  kva_diag_destroy(diag);
}

static void mistakes_are_named(void **unused) {
  (void)unused;
  expect_error("hop:letters=1", VOCAB, T, "'letters' must be at least 2");
  expect_error("hop:hops=16", 21, T, "need a vocabulary of 22, found 21");
  expect_error("igsm:ops=0", VOCAB, T, "between 1 and 32, found 0 and 5");
  expect_error("igsm:test=33", VOCAB, T, "between 1 and 32, found 4 and 33");
  expect_error("igsm:mod=4", VOCAB, T, "'mod' must be at least 5");
  expect_error("igsm", 16, T, "5 numbers and 5 names need a vocabulary of 17, found 16");
  expect_error("igsm", VOCAB, T, "5 operations need sequences of 92 tokens, found 64");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(small_batches_have_all_hops), cmocka_unit_test(mixtures_have_all_hops),
      cmocka_unit_test(targets_are_hops_away),       cmocka_unit_test(steps_solve_the_problem),
      cmocka_unit_test(no_problem_is_on_both_sides), cmocka_unit_test(every_modulus_has_problems_for_evaluation),
      cmocka_unit_test(mistakes_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
