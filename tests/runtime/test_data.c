/* Data generators: rules of each task, statistics, purity, errors. */
#include "runtime/runtime.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { B = 32, T = 64, VOCAB = 256, POOL = 48 };

typedef struct batch {
  int32_t tokens[B * T], targets[B * T], first[B * T];
} batch;

static kva_data_source open_source(const char *name, int n_args, const kva_data_arg *args) {
  kva_data_source source;
  assert_int_equal(kva_data_create(name, n_args, args, VOCAB, NULL, &source), KVA_OK);
  assert_string_equal(source.name, name);
  return source;
}

static void fill(kva_data_source *source, uint64_t seed, int64_t step, bool evaluation, int rows, batch *b) {
  kva_tensor tensors[3] = {
      {KVA_I32, 2, {rows, T}, b->tokens}, {KVA_I32, 2, {rows, T}, b->targets}, {KVA_I32, 2, {rows, T}, b->first}};
  assert_int_equal(source->fill(source->self, seed, step, evaluation, 3, tensors, NULL), KVA_OK);
}

/* Replays the rule over one row: which positions must count, and with what target. */
static int check_induction_row(const int32_t *tokens, const int32_t *targets, const int32_t *first) {
  int32_t successor[VOCAB] = {0};
  bool seen[VOCAB] = {false}, any = false;
  int distinct = 0, repeats = 0;
  for (int t = 0; t < T; t++) {
    int32_t token = tokens[t];
    assert_true(token >= 1 && token < VOCAB);
    bool repeat = seen[token] && successor[token];
    bool follows_repeat = t && targets[t - 1] >= 0;
    if (t && targets[t - 1] >= 0) assert_int_equal(token, targets[t - 1]);
    if (t && !follows_repeat) assert_int_not_equal(token, tokens[t - 1]);
    if (targets[t] >= 0) {
      assert_true(repeat && !follows_repeat);
      assert_int_equal(targets[t], successor[token]);
      assert_int_equal(first[t], any ? -1 : targets[t]);
      any = true;
      repeats++;
    } else {
      assert_int_equal(targets[t], -1);
      assert_int_equal(first[t], -1);
      assert_true(!repeat || follows_repeat);
    }
    if (!seen[token] && t && !successor[tokens[t - 1]]) successor[tokens[t - 1]] = token;
    distinct += !seen[token];
    seen[token] = true;
  }
  assert_true(any);
  assert_true(distinct <= POOL);
  return repeats;
}

static void induction_follows_its_rule(void **unused) {
  (void)unused;
  kva_data_source source = open_source("induction", 1, &(kva_data_arg){"pool", POOL});
  batch *b = malloc(sizeof *b);
  long repeats = 0, first_index = 0, ids[VOCAB] = {0};
  enum { STEPS = 40 };
  for (int step = 1; step <= STEPS; step++) {
    fill(&source, 1, step, false, B, b);
    for (int r = 0; r < B; r++) {
      repeats += check_induction_row(&b->tokens[r * T], &b->targets[r * T], &b->first[r * T]);
      for (int t = 0; b->first[r * T + t] < 0; t++) first_index++;
    }
    for (int i = 0; i < B * T; i++) ids[b->tokens[i]]++;
  }
  /* An independent simulation of the rule gives 16.1 repeats a row, the first at index 9.1. */
  assert_in_range(repeats * 100 / (B * STEPS), 1560, 1660);
  assert_in_range(first_index * 100 / (B * STEPS), 860, 960);
  long expected = (long)B * T * STEPS / (VOCAB - 1);
  for (int id = 1; id < VOCAB; id++) assert_in_range(ids[id], expected / 2, expected * 2);
  free(b);
  source.destroy(source.self);
}

static void rows_are_a_pure_function_of_seed_and_step(void **unused) {
  (void)unused;
  const char *const names[] = {"induction", "ngram", "hop", "random"};
  batch *a = malloc(sizeof *a), *b = malloc(sizeof *b);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    kva_data_source x = open_source(names[i], 0, NULL), y = open_source(names[i], 0, NULL);
    for (int step = 1; step <= 5; step++) fill(&x, 9, step, false, B, a);
    memset(b, 0, sizeof *b);
    fill(&y, 9, 5, false, B / 2, b);
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens / 2);
    assert_memory_equal(a->targets, b->targets, sizeof a->targets / 2);
    assert_memory_equal(a->first, b->first, sizeof a->first / 2);
    const struct {
      uint64_t seed;
      int64_t step;
      bool evaluation;
    } others[] = {{10, 5, false}, {9, 6, false}, {9, 5, true}, {9, 2, true}, {9, 10, true}};
    for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
      fill(&y, others[k].seed, others[k].step, others[k].evaluation, B, b);
      for (int r = 0; r < B; r++) assert_memory_not_equal(&a->tokens[r * T], &b->tokens[r * T], T * 4);
    }
    x.destroy(x.self);
    y.destroy(y.self);
  }
  free(a);
  free(b);
}

/* Two processes with half of the batch each make the rows that one alone makes. */
static void ranks_share_a_batch(void **unused) {
  (void)unused;
  batch *a = malloc(sizeof *a), *b = malloc(sizeof *b);
  kva_data_source alone;
  assert_int_equal(kva_data_open("ngram", &(kva_data_options){.vocab = VOCAB}, NULL, &alone), KVA_OK);
  fill(&alone, 9, 5, false, B, a);
  for (int rank = 0; rank < 2; rank++) {
    kva_data_source half;
    kva_data_options options = {.vocab = VOCAB, .rank = rank, .world = 2};
    assert_int_equal(kva_data_open("ngram", &options, NULL, &half), KVA_OK);
    assert_int_equal(half.id, alone.id);
    fill(&half, 9, 5, false, B / 2, b);
    assert_memory_equal(b->tokens, a->tokens + rank * B / 2 * T, B / 2 * T * sizeof *b->tokens);
    half.destroy(half.self);
  }
  kva_data_options wrong = {.vocab = VOCAB, .rank = 2, .world = 2};
  kva_data_source none;
  assert_int_equal(kva_data_open("ngram", &wrong, NULL, &none), KVA_INVALID);
  alone.destroy(alone.self);
  free(a);
  free(b);
}

static void all_positions_on_request(void **unused) {
  (void)unused;
  kva_data_source some = open_source("induction", 0, NULL),
                  all = open_source("induction", 1, &(kva_data_arg){"all", 1});
  batch *a = malloc(sizeof *a), *b = malloc(sizeof *b);
  fill(&some, 4, 1, false, B, a);
  fill(&all, 4, 1, false, B, b);
  assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
  assert_memory_equal(a->first, b->first, sizeof a->first);
  for (int i = 0; i < B * T; i++) {
    assert_true(b->targets[i] >= 1);
    assert_true(a->targets[i] == -1 || a->targets[i] == b->targets[i]);
    if (i % T != T - 1) assert_int_equal(b->targets[i], b->tokens[i + 1]);
  }
  free(a);
  free(b);
  some.destroy(some.self);
  all.destroy(all.self);
}

static void ngram_has_one_third_token_per_pair(void **unused) {
  (void)unused;
  kva_data_source source = open_source("ngram", 0, NULL);
  batch *b = malloc(sizeof *b);
  static int32_t third[VOCAB][VOCAB];
  int pairs = 0;
  for (int step = 0; step < 40; step++) {
    fill(&source, 6, step, step % 2, B, b);
    for (int i = 0; i < B * T; i++) {
      assert_true(b->tokens[i] >= 1 && b->tokens[i] < VOCAB);
      if (i % T % 3 != 1) {
        assert_int_equal(b->targets[i], -1);
        continue;
      }
      int32_t *known = &third[b->tokens[i - 1]][b->tokens[i]];
      pairs += !*known;
      if (!*known) *known = b->targets[i];
      assert_int_equal(*known, b->targets[i]);
      assert_int_equal(b->first[i], i % T == 1 ? b->targets[i] : -1);
      if (i % T < T - 1) assert_int_equal(b->tokens[i + 1], b->targets[i]);
    }
  }
  assert_in_range(pairs, 195, 200);
  free(b);
  source.destroy(source.self);
}

static void random_tokens_are_uniform(void **unused) {
  (void)unused;
  kva_data_source source = open_source("random", 0, NULL);
  batch *b = malloc(sizeof *b);
  long counts[VOCAB] = {0};
  for (int step = 0; step < 100; step++) {
    fill(&source, 2, step, false, B, b);
    for (int i = 0; i < B * T; i++) {
      counts[b->tokens[i]]++;
      if (i % T < T - 1) assert_int_equal(b->targets[i], b->tokens[i + 1]);
    }
  }
  double mean = 100.0 * B * T / VOCAB, chi2 = 0;
  for (int i = 0; i < VOCAB; i++) chi2 += ((double)counts[i] - mean) * ((double)counts[i] - mean) / mean;
  assert_true(chi2 > 160 && chi2 < 370); /* 255 degrees of freedom: five standard deviations are 113 */
  free(b);
  source.destroy(source.self);
}

static void narrow_and_wide_batches(void **unused) {
  (void)unused;
  kva_data_source source = open_source("induction", 1, &(kva_data_arg){"pool", 2});
  int64_t tokens[2 * 3];
  kva_tensor t = {KVA_I64, 2, {2, 3}, tokens};
  assert_int_equal(source.fill(source.self, 0, 1, false, 1, &t, NULL), KVA_OK);
  for (int r = 0; r < 2; r++) {
    assert_int_equal(tokens[3 * r], tokens[3 * r + 2]);
    assert_int_not_equal(tokens[3 * r], tokens[3 * r + 1]);
  }
  source.destroy(source.self);
}

static void expect_message(const char *name, kva_data_arg arg, int64_t vocab, const char *message) {
  kva_diag *diag = kva_diag_create();
  kva_data_source source;
  assert_int_equal(kva_data_create(name, arg.name != NULL, &arg, vocab, diag, &source), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), message));
  assert_null(source.fill);
  kva_diag_destroy(diag);
}

static void expect_misfit(int n, kva_tensor t, const char *message) {
  kva_data_source source = open_source("induction", 0, NULL);
  kva_diag *diag = kva_diag_create();
  kva_tensor tensors[4] = {t, t, t, t};
  assert_int_equal(source.fill(source.self, 0, 1, false, n, tensors, diag), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), message));
  kva_diag_destroy(diag);
  source.destroy(source.self);
}

static void errors_list_what_is_known(void **unused) {
  (void)unused;
  expect_message("wikipedia", (kva_data_arg){0}, 10, "there are: induction, ngram, hop, igsm, random");
  expect_message("induction", (kva_data_arg){"pols", 1}, 100, "it has: all (default 0), pool (default 48)");
  expect_message("induction", (kva_data_arg){"pool", 2.5}, 100, "must be a whole number, found 2.5");
  expect_message("induction", (kva_data_arg){"pool", -1}, 100, "must be a whole number");
  expect_message("induction", (kva_data_arg){0}, 48, "'pool' must lie between 2 and 47");
  expect_message("ngram", (kva_data_arg){"pairs", 0}, 48, "at least 1");
  expect_message("random", (kva_data_arg){0}, 1, "at least 2 tokens");
  int32_t data[8];
  expect_misfit(4, (kva_tensor){KVA_I32, 2, {1, 8}, data}, "has 4 data inputs");
  expect_misfit(1, (kva_tensor){KVA_F32, 2, {1, 8}, data}, "must be int32 or int64, found float");
  expect_misfit(1, (kva_tensor){KVA_I32, 1, {8}, data}, "must be a matrix");
  expect_misfit(1, (kva_tensor){KVA_I32, 2, {1, 2}, data}, "at least 3 tokens");
  expect_misfit(1, (kva_tensor){KVA_I32, 2, {1, 4}, data}, "hardly ever repeat");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(induction_follows_its_rule),
      cmocka_unit_test(rows_are_a_pure_function_of_seed_and_step),
      cmocka_unit_test(ranks_share_a_batch),
      cmocka_unit_test(all_positions_on_request),
      cmocka_unit_test(ngram_has_one_third_token_per_pair),
      cmocka_unit_test(random_tokens_are_uniform),
      cmocka_unit_test(narrow_and_wide_batches),
      cmocka_unit_test(errors_list_what_is_known),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
