/* Documents divided between training and evaluation, and mixtures of sources. */
#include "runtime/data.h"
#include "tests/support/two_files.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { T = 4, DOCUMENTS = 400, END = 1000, BLOCK = 4096 };

/* Documents first, first + step, ...: document k is its number 7 + k % 5 times and the end. */
static void write_documents(const char *path, int first, int step) {
  kva_token_writer *w;
  assert_int_equal(kva_token_writer_create(path, END + 1, END, NULL, &w), KVA_OK);
  for (int k = first; k >= 0 && k < DOCUMENTS; k += step) {
    const uint32_t number = (uint32_t)k, end = END;
    for (int i = 0; i < 7 + k % 5; i++) assert_int_equal(kva_token_writer_add(w, 1, &number, NULL), KVA_OK);
    assert_int_equal(kva_token_writer_add(w, 1, &end, NULL), KVA_OK);
  }
  assert_int_equal(kva_token_writer_finish(w, NULL, NULL), KVA_OK);
}

static kva_data_source open_text(const char *spec, int rank, int world) {
  static const char *const inputs[] = {"x", "y"};
  const kva_data_options options = {.vocab = END + 1, .n_inputs = 2, .inputs = inputs, .rank = rank, .world = world};
  kva_data_source s;
  kva_diag *diag = kva_diag_create();
  if (kva_data_open(spec, &options, diag, &s) != KVA_OK) fail_msg("%s", kva_diag_message(diag, 0, NULL, NULL));
  kva_diag_destroy(diag);
  return s;
}

static void refuse(const char *spec, const char *message) {
  static const char *const inputs[] = {"x", "y"};
  kva_data_source s;
  kva_diag *diag = kva_diag_create();
  assert_int_not_equal(
      kva_data_open(spec, &(kva_data_options){.vocab = 2000, .n_inputs = 2, .inputs = inputs}, diag, &s), KVA_OK);
  if (!strstr(kva_diag_message(diag, 0, NULL, NULL), message))
    fail_msg("'%s' is not in '%s'", message, kva_diag_message(diag, 0, NULL, NULL));
  kva_diag_destroy(diag);
}

/* ---- documents --------------------------------------------------------------------------------------------------- */

/* Which documents the windows of a side hold: an epoch, at least. */
static int mark(kva_data_source *s, bool evaluation, int64_t batches, bool seen[DOCUMENTS]) {
  int32_t tokens[64 * T];
  int n = 0;
  kva_tensor t = {KVA_I32, 2, {64, T}, tokens};
  memset(seen, 0, DOCUMENTS * sizeof *seen);
  for (int64_t i = 0; i < batches; i++) {
    assert_int_equal(s->fill(s->self, 1, evaluation ? i : i + 1, evaluation, 1, &t, NULL), KVA_OK);
    for (int k = 0; k < 64 * T; k++)
      if (tokens[k] != END) seen[tokens[k]] = true;
  }
  for (int k = 0; k < DOCUMENTS; k++) n += seen[k];
  return n;
}

static void documents_have_a_side(void **unused) {
  (void)unused;
  bool train[DOCUMENTS], eval[DOCUMENTS], other[DOCUMENTS];
  char spec[200];
  write_documents(path_a, 0, 1);
  snprintf(spec, sizeof spec, "tokens:%s,eval=0.1", path_a);
  kva_data_source s = open_text(spec, 0, 1);
  int n_train = mark(&s, false, 20, train), n_eval = mark(&s, true, 20, eval);
  assert_in_range(n_eval, 22, 58); /* 40 expected, standard deviation 6 */
  assert_int_equal(n_train + n_eval, DOCUMENTS);
  for (int k = 0; k < DOCUMENTS; k++) assert_true(train[k] != eval[k]);
  uint64_t id = s.id;
  s.destroy(s.self);

  /* Backwards: the same sides. In two files: the last tokens of streams that are no whole window are not read. */
  write_documents(path_a, DOCUMENTS - 1, -1);
  s = open_text(spec, 0, 1);
  assert_int_equal(mark(&s, true, 20, other), n_eval);
  assert_memory_equal(eval, other, sizeof eval);
  s.destroy(s.self);
  write_documents(path_a, 0, 2);
  write_documents(path_b, 1, 2);
  snprintf(spec, sizeof spec, "tokens:%s,%s,eval=0.1,split=documents", path_a, path_b);
  s = open_text(spec, 0, 1);
  assert_in_range(mark(&s, true, 20, other), n_eval - 2, n_eval);
  for (int k = 0; k < DOCUMENTS; k++) assert_true(eval[k] || !other[k]);
  s.destroy(s.self);

  /* At the end: another source. */
  write_documents(path_a, 0, 1);
  snprintf(spec, sizeof spec, "tokens:%s,eval=0.1,split=end", path_a);
  s = open_text(spec, 0, 1);
  mark(&s, true, 20, other);
  for (int k = 0; k < DOCUMENTS * 9 / 10 - 5; k++) assert_false(other[k]);
  assert_true(other[DOCUMENTS - 1] && s.id != id);
  s.destroy(s.self);
}

static void few_documents_are_cut_at_the_end(void **unused) {
  (void)unused;
  kva_data_source s;
  uint64_t id;
  char spec[200];
  write_documents(path_a, 0, 50); /* 8 documents, and 5 % for evaluation */
  snprintf(spec, sizeof spec, "tokens:%s,split=end", path_a);
  s = open_text(spec, 0, 1);
  id = s.id;
  s.destroy(s.self);
  snprintf(spec, sizeof spec, "tokens:%s", path_a);
  s = open_text(spec, 0, 1);
  assert_true(s.id == id);
  s.destroy(s.self);

  snprintf(spec, sizeof spec, "tokens:%s,split=documents,eval=1e-9", path_a);
  s = open_text(spec, 0, 1);
  int32_t tokens[T];
  kva_diag *diag = kva_diag_create();
  assert_int_equal(s.fill(s.self, 1, 0, true, 1, &(kva_tensor){KVA_I32, 2, {1, T}, tokens}, diag), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), "the documents for evaluation have no window of 4"));
  kva_diag_destroy(diag);
  s.destroy(s.self);
  snprintf(spec, sizeof spec, "tokens:%s,split=half", path_a);
  refuse(spec, "split must be documents or end, found 'half'");
  refuse("random:split=end", "split= is for tokens");
}

/* ---- mixtures ---------------------------------------------------------------------------------------------------- */

/* Documents of a have even numbers, those of b odd ones. */
static int rows_of_b(kva_data_source *s, int64_t step, bool evaluation, int rows, int32_t *tokens) {
  int n = 0;
  kva_tensor t = {KVA_I32, 2, {rows, T}, tokens};
  assert_int_equal(s->fill(s->self, 3, step, evaluation, 1, &t, NULL), KVA_OK);
  for (int r = 0; r < rows; r++) n += tokens[r * T] != END && tokens[r * T] % 2;
  return n;
}

static char *mixture_of_two(char spec[400]) {
  write_documents(path_a, 0, 2);
  write_documents(path_b, 1, 2);
  snprintf(spec, 400, "tokens:%s,weight=3,eval=0.2;tokens:%s,weight=1,eval=0.2", path_a, path_b);
  return spec;
}

static void weights_are_kept(void **unused) {
  (void)unused;
  char spec[400];
  kva_data_source s = open_text(mixture_of_two(spec), 0, 1);
  static int32_t tokens[BLOCK * T];
  int ends = 0, b = rows_of_b(&s, 1, false, BLOCK, tokens);
  for (int r = 0; r < BLOCK; r++) ends += tokens[r * T] == END;
  assert_true(b <= 1024 && b >= 1024 - ends && ends < 500); /* exactly a quarter, but a row may begin with an end */
  int first = rows_of_b(&s, 1, false, 64, tokens), n = 0;
  for (int64_t step = 1; step <= 16; step++) n += rows_of_b(&s, step, false, 64, tokens);
  assert_in_range(n, 190, 290); /* of 1024 rows 256, less those that begin with an end */
  assert_int_equal(first, rows_of_b(&s, 1, false, 64, tokens));
  n = rows_of_b(&s, 0, true, 64, tokens);
  assert_in_range(n, 4, 30);
  s.destroy(s.self);
}

/* A batch is a function of seed and step: parts of processes are those of one batch, and small batches of a large one.
 */
static void rows_are_numbered(void **unused) {
  (void)unused;
  char spec[400];
  mixture_of_two(spec);
  kva_data_source one = open_text(spec, 0, 1), half[2] = {open_text(spec, 0, 2), open_text(spec, 1, 2)};
  int32_t whole[8 * T], part[4 * T];
  for (int64_t step = 1; step < 200; step += 37) {
    rows_of_b(&one, step, false, 8, whole);
    for (int rank = 0; rank < 2; rank++) {
      rows_of_b(&half[rank], step, false, 4, part);
      assert_memory_equal(part, whole + rank * 4 * T, sizeof part);
      rows_of_b(&one, 2 * step - 1 + rank, false, 4, part);
      assert_memory_equal(part, whole + rank * 4 * T, sizeof part);
    }
  }
  assert_true(one.id == half[0].id);
  one.destroy(one.self);
  half[0].destroy(half[0].self);
  half[1].destroy(half[1].self);
}

/* Each source's rows come in its own order: an epoch reads each once. */
static void an_epoch_of_a_source(void **unused) {
  (void)unused;
  char spec[400];
  int count[DOCUMENTS] = {0}, n = 0;
  write_documents(path_a, 0, 2);
  snprintf(spec, sizeof spec, "tokens:%s,eval=0;random", path_a);
  kva_data_source s = open_text(spec, 0, 1);
  static int32_t tokens[BLOCK * T], targets[BLOCK * T];
  kva_tensor t[2] = {{KVA_I32, 2, {BLOCK, T}, tokens}, {KVA_I32, 2, {BLOCK, T}, targets}};
  assert_int_equal(s.fill(s.self, 9, 1, false, 2, t, NULL), KVA_OK);
  for (int r = 0; r < BLOCK; r++) /* a row of the file: a document and its end, not random tokens */
    if (tokens[r * T] == tokens[r * T + 1] && tokens[r * T] == tokens[r * T + 2] && tokens[r * T] < DOCUMENTS)
      count[tokens[r * T]]++, n++;
  assert_in_range(n, 1000, 2048);
  for (int k = 0; k < DOCUMENTS; k += 2) assert_in_range(count[k], 2, 14);
  s.destroy(s.self);
}

static void mixtures_are_checked(void **unused) {
  (void)unused;
  refuse("random:weight=2", "is for a mixture of several sources");
  refuse("random:weight=0;random", "weight must be above 0");
  refuse("random:weight=nan;random", "weight must be above 0");
  refuse("random:weight=1e-6;random", "is less than a row of 4096");
  refuse("random;nothing", "no data source is called 'nothing'");
  refuse("random;", "no data source is called ''");
  assert_int_equal(kva_data_length("random;random:length=12"), 12);
}

/* A batch of 8 rows beside inputs of one row and of none. */
static void inputs_have_one_batch(void **unused) {
  (void)unused;
  kva_data_source s = open_text("random;random", 0, 1);
  int32_t tokens[8 * T], targets[T];
  for (int64_t rows = 0; rows < 2; rows++) {
    kva_tensor t[2] = {{KVA_I32, 2, {8, T}, tokens}, {KVA_I32, 2, {rows, T}, targets}};
    kva_diag *diag = kva_diag_create();
    assert_int_equal(s.fill(s.self, 1, 1, false, 2, t, diag), KVA_INVALID);
    const char *text = kva_diag_message(diag, 0, NULL, NULL);
    if (!strstr(text, "rows, input 0 has 8; a mixture needs the batch as the first dimension")) fail_msg("%s", text);
    kva_diag_destroy(diag);
  }
  s.destroy(s.self);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(documents_have_a_side), cmocka_unit_test(few_documents_are_cut_at_the_end),
      cmocka_unit_test(weights_are_kept),      cmocka_unit_test(rows_are_numbered),
      cmocka_unit_test(an_epoch_of_a_source),  cmocka_unit_test(mixtures_are_checked),
      cmocka_unit_test(inputs_have_one_batch),
  };
  return cmocka_run_group_tests(tests, make_two_files, remove_two_files);
}
