/* Data from files: the text that names them, order of rows, token files, arrays. */
#include "runtime/data.h"
#include "runtime/npy.h"
#include "runtime/safetensors.h"
#include "runtime/tokens.h"
#include "tests/support/two_files.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { T = 8, B = 4, MAX_ROWS = 4096 };
/* ---- order ------------------------------------------------------------------------------------------------------- */

static void permutations_are_bijections(void **unused) {
  (void)unused;
  const uint64_t sizes[] = {1, 2, 3, 5, 16, 17, 100, 1023, 1025, 4096};
  for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
    bool seen[MAX_ROWS] = {false};
    for (uint64_t i = 0; i < sizes[k]; i++) {
      uint64_t image = kva_permute(7, 3, sizes[k], i);
      assert_true(image < sizes[k]);
      assert_false(seen[image]);
      seen[image] = true;
    }
  }
}

/* A random permutation has one fixed point on average, and its successors are spread: so have other epochs and keys. */
static void permutations_look_random(void **unused) {
  (void)unused;
  enum { N = 1000, EPOCHS = 50 };
  long fixed = 0, successors = 0, same = 0;
  for (uint64_t epoch = 0; epoch < EPOCHS; epoch++)
    for (uint64_t i = 0; i < N; i++) {
      uint64_t a = kva_permute(1, epoch, N, i);
      fixed += a == i;
      same += a == kva_permute(1, epoch + 1, N, i);
      same += a == kva_permute(2, epoch, N, i);
      successors += kva_permute(1, epoch, N, (i + 1) % N) == a + 1;
    }
  assert_in_range(fixed, 20, 90); /* 50 expected, standard deviation 7 */
  assert_in_range(successors, 20, 90);
  assert_in_range(same, 55, 150);
  assert_true(kva_permute(5, 0, UINT64_C(1) << 62, 12345) < UINT64_C(1) << 62);
}

static void an_epoch_reads_every_row_once(void **unused) {
  (void)unused;
  enum { ROWS = 103, WORLD = 2 };
  const kva_data_order orders[WORLD] = {{.eval = 0.1, .rank = 0, .world = WORLD}, {0.1, 1, WORLD}};
  int count[ROWS] = {0}, n = 0;
  /* 93 rows for training are no multiple of the batch: 3 epochs of 93 rows are not whole batches of 8, 31 of 9 are. */
  for (int64_t step = 1; step <= 31; step++)
    for (int rank = 0; rank < WORLD; rank++)
      for (int64_t r = 0; r < 3; r++, n++) {
        int64_t row = kva_data_row(&orders[rank], ROWS, 5, step, false, 3, r);
        assert_in_range(row, 0, 92);
        count[row]++;
      }
  for (int i = 0; i < 93; i++) assert_int_equal(count[i], n / 93);
  bool seen[ROWS] = {false};
  const kva_data_order alone = {.eval = 0.1, .world = 1};
  for (int64_t r = 0; r < 10; r++) {
    int64_t row = kva_data_row(&alone, ROWS, 5, r / 5, true, 5, r % 5);
    assert_in_range(row, 93, ROWS - 1);
    assert_false(seen[row]);
    seen[row] = true;
  }
}

/* Four steps of batch 2 read the rows of one step of batch 8: accumulation sees the same data. */
static void small_batches_make_up_large_ones(void **unused) {
  (void)unused;
  const kva_data_order order = {.eval = 0, .world = 1};
  for (int64_t r = 0; r < 8; r++)
    assert_int_equal(kva_data_row(&order, 100, 1, 6, false, 8, r),
                     kva_data_row(&order, 100, 1, 5 * 4 + r / 2 + 1, false, 2, r % 2));
  assert_int_equal(kva_data_row(&order, 100, 1, 0, true, 8, 0), -1);
}

/* ---- token files ------------------------------------------------------------------------------------------------- */

/* Token i is i % 1000, and 1000 ends a document. */
static void write_tokens(const char *path, int64_t n, int64_t vocab) {
  kva_token_writer *w;
  assert_int_equal(kva_token_writer_create(path, vocab, 1000, NULL, &w), KVA_OK);
  for (int64_t i = 0; i < n; i++) {
    uint32_t token = i % 100 == 99 ? 1000 : (uint32_t)(i % 1000);
    assert_int_equal(kva_token_writer_add(w, 1, &token, NULL), KVA_OK);
  }
  kva_token_info info;
  assert_int_equal(kva_token_writer_finish(w, NULL, &info), KVA_OK);
  assert_int_equal(info.count, n);
  assert_int_equal(info.documents, n / 100);
}

static void token_files_read_back(void **unused) {
  (void)unused;
  const int64_t vocabs[] = {1001, 65536, 65537, 1 << 20};
  for (size_t k = 0; k < 4; k++) {
    write_tokens(path_a, 1234, vocabs[k]);
    kva_token_file f;
    assert_int_equal(kva_tokens_open(path_a, NULL, &f), KVA_OK);
    assert_int_equal(f.info.dtype, k < 2 ? KVA_U16 : KVA_U32);
    assert_int_equal(f.info.vocab, vocabs[k]);
    assert_int_equal(f.info.end, 1000);
    for (int64_t i = 0; i < 1234; i++) assert_int_equal(kva_tokens_at(&f, i), i % 100 == 99 ? 1000 : i % 1000);
    assert_int_equal(kva_tokens_verify(path_a, &f, NULL), KVA_OK);
    kva_tokens_close(&f);
  }
}

static kva_status open_spec(const char *spec, int64_t vocab, kva_diag *diag, kva_data_source *out) {
  static const char *const inputs[] = {"x", "y"};
  return kva_data_open(spec, &(kva_data_options){.vocab = vocab, .n_inputs = 2, .inputs = inputs}, diag, out);
}

static void windows_of_all_files(void **unused) {
  (void)unused;
  write_tokens(path_a, 3 * T + 1, 1001); /* three windows */
  write_tokens(path_b, 2 * T + 5, 1001); /* two: the rest is too short */
  char spec[200];
  snprintf(spec, sizeof spec, "tokens:%s,%s,eval=0,length=%d", path_a, path_b, T);
  assert_int_equal(kva_data_length(spec), T);
  kva_data_source s;
  assert_int_equal(open_spec(spec, 1001, NULL, &s), KVA_OK);
  int32_t tokens[5 * T];
  int64_t targets[5 * T];
  kva_tensor t[2] = {{KVA_I32, 2, {5, T}, tokens}, {KVA_I64, 2, {5, T}, targets}};
  int count[3] = {0};
  for (int64_t step = 1; step <= 3; step++) {
    assert_int_equal(s.fill(s.self, 1, step, false, 2, t, NULL), KVA_OK);
    for (int r = 0; r < 5; r++) {
      assert_true(tokens[r * T] % T == 0 && tokens[r * T] < 3 * T);
      count[tokens[r * T] / T]++;
      for (int i = 0; i < T; i++) {
        assert_int_equal(tokens[r * T + i], tokens[r * T] + i);
        assert_int_equal(targets[r * T + i], tokens[r * T] + i + 1);
      }
    }
  }
  assert_true(count[0] == 6 && count[1] == 6 && count[2] == 3); /* the second file has no third window */
  s.destroy(s.self);
}

static void expect_error(const char *spec, int64_t vocab, const char *message) {
  kva_diag *diag = kva_diag_create();
  kva_data_source s;
  kva_status status = open_spec(spec, vocab, diag, &s);
  assert_int_not_equal(status, KVA_OK);
  assert_null(s.fill);
  if (!strstr(kva_diag_message(diag, 0, NULL, NULL), message))
    fail_msg("'%s' is not in '%s'", message, kva_diag_message(diag, 0, NULL, NULL));
  kva_diag_destroy(diag);
}

static void damage(const char *path, long at, const void *bytes, size_t n) {
  FILE *f = fopen(path, "r+");
  assert_non_null(f);
  fseek(f, at, SEEK_SET);
  assert_int_equal(fwrite(bytes, 1, n, f), n);
  fclose(f);
}

static void damaged_token_files_are_refused(void **unused) {
  (void)unused;
  char spec[100];
  snprintf(spec, sizeof spec, "tokens:%s", path_a);
  write_tokens(path_a, 500, 2000);
  expect_error(spec, 1999, "of a vocabulary of 2000, the model's has 1999");
  expect_error(spec, 0, "ends in [..., vocabulary]");
  damage(path_a, 8, "\2", 1);
  expect_error(spec, 2000, "version 2");
  write_tokens(path_a, 500, 2000);
  damage(path_a, 12, "\1", 1);
  expect_error(spec, 2000, "tokens of type 1");
  write_tokens(path_a, 500, 2000);
  damage(path_a, 16, "\0\0\1\1", 4);
  expect_error(spec, 2000, "out of range");
  write_tokens(path_a, 500, 2000);
  damage(path_a, 48, "\377\377", 2);
  expect_error(spec, 2000, "outside of the vocabulary");
  write_tokens(path_a, 500, 2000);
  assert_int_equal(truncate(path_a, 64 + 999), 0);
  expect_error(spec, 2000, "says 500 tokens, the file has 499 and 1 bytes");
  assert_int_equal(truncate(path_a, 63), 0);
  expect_error(spec, 2000, "is no token file");
}

static void damaged_tokens_are_found(void **unused) {
  (void)unused;
  char spec[100];
  snprintf(spec, sizeof spec, "tokens:%s,eval=0", path_a);
  write_tokens(path_a, 2 * T + 1, 2000);
  damage(path_a, 64 + 2 * 5, "\377\377", 2);
  kva_diag *diag = kva_diag_create();
  kva_data_source s;
  assert_int_equal(open_spec(spec, 2000, diag, &s), KVA_OK);
  int32_t tokens[B * T];
  kva_tensor t = {KVA_I32, 2, {B, T}, tokens};
  assert_int_equal(s.fill(s.self, 1, 1, false, 1, &t, diag), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), "token 5 is 65535"));
  assert_int_equal(s.fill(s.self, 1, 0, true, 1, &t, diag), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 1, NULL, NULL), "nothing is left for evaluation"));
  s.destroy(s.self);
  kva_token_file f;
  write_tokens(path_a, 500, 2000);
  damage(path_a, 64 + 2 * 5, "\7", 1);
  assert_int_equal(kva_tokens_open(path_a, NULL, &f), KVA_OK);
  assert_int_equal(kva_tokens_verify(path_a, &f, diag), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 2, NULL, NULL), "hash"));
  kva_tokens_close(&f);
  kva_diag_destroy(diag);
}

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

static void rows_of_arrays_stay_together(void **unused) {
  (void)unused;
  enum { ROWS = 50 };
  float x[ROWS][3], bx[B][3];
  int64_t y[ROWS], by[B];
  for (int i = 0; i < ROWS; i++) {
    y[i] = 1000 + i;
    for (int k = 0; k < 3; k++) x[i][k] = (float)(10 * i + k);
  }
  assert_int_equal(kva_npy_write(path_a, &(kva_tensor){KVA_F32, 2, {ROWS, 3}, x}, NULL), KVA_OK);
  assert_int_equal(kva_npy_write(path_b, &(kva_tensor){KVA_I64, 1, {ROWS}, y}, NULL), KVA_OK);
  char spec[200];
  snprintf(spec, sizeof spec, "npy:y=%s,x=%s,eval=0.2", path_b, path_a);
  kva_data_source s;
  assert_int_equal(open_spec(spec, 0, NULL, &s), KVA_OK);
  kva_tensor t[2] = {{KVA_F32, 2, {B, 3}, bx}, {KVA_I64, 1, {B}, by}};
  bool seen[ROWS] = {false};
  for (int64_t step = 1; step <= 10; step++) {
    assert_int_equal(s.fill(s.self, 3, step, false, 2, t, NULL), KVA_OK);
    for (int r = 0; r < B; r++) {
      int64_t row = by[r] - 1000;
      assert_in_range(row, 0, 39);
      assert_false(seen[row]);
      seen[row] = true;
      assert_memory_equal(bx[r], x[row], sizeof bx[r]);
    }
  }
  kva_diag *diag = kva_diag_create();
  t[0].dims[1] = 2;
  assert_int_equal(s.fill(s.self, 3, 1, false, 2, t, diag), KVA_INVALID);
  assert_non_null(
      strstr(kva_diag_message(diag, 0, NULL, NULL), "takes rows of shape [2], the array has rows of shape [3]"));
  t[0].dims[1] = 3;
  t[1].dtype = KVA_I32;
  assert_int_equal(s.fill(s.self, 3, 1, false, 2, t, diag), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 1, NULL, NULL), "is int32, the array is int64"));
  kva_diag_destroy(diag);
  s.destroy(s.self);

  snprintf(spec, sizeof spec, "npy:x=%s", path_a);
  expect_error(spec, 0, "no file is given for the data input 'y'");
  snprintf(spec, sizeof spec, "npy:x=%s,z=%s", path_a, path_b);
  expect_error(spec, 0, "no data input 'z'; it has: x, y");
  snprintf(spec, sizeof spec, "npy:x=%s,x=%s", path_a, path_b);
  expect_error(spec, 0, "given twice");
  assert_int_equal(kva_npy_write(path_b, &(kva_tensor){KVA_I64, 1, {ROWS - 1}, y}, NULL), KVA_OK);
  snprintf(spec, sizeof spec, "npy:x=%s,y=%s", path_a, path_b);
  expect_error(spec, 0, "has 49 rows, that before it 50");
}

static void safetensors_give_the_same_rows(void **unused) {
  (void)unused;
  enum { ROWS = 30 };
  float x[ROWS], bx[B];
  int32_t y[ROWS][2], by[B][2];
  for (int i = 0; i < ROWS; i++) x[i] = (float)i, y[i][0] = 2 * i, y[i][1] = 3 * i;
  const kva_named_tensor named[] = {{"x", {KVA_F32, 1, {ROWS}, x}}, {"y", {KVA_I32, 2, {ROWS, 2}, y}}};
  assert_int_equal(kva_safetensors_write(path_a, 2, named, 0, NULL, NULL), KVA_OK);
  char spec[100];
  snprintf(spec, sizeof spec, "safetensors:%s", path_a);
  kva_data_source s;
  assert_int_equal(open_spec(spec, 0, NULL, &s), KVA_OK);
  assert_string_equal(s.name, "safetensors");
  kva_tensor t[2] = {{KVA_F32, 1, {B}, bx}, {KVA_I32, 2, {B, 2}, by}};
  for (int64_t step = 1; step < 9; step++) {
    assert_int_equal(s.fill(s.self, 3, step, false, 2, t, NULL), KVA_OK);
    for (int r = 0; r < B; r++) assert_true(by[r][0] == 2 * (int)bx[r] && by[r][1] == 3 * (int)bx[r] && bx[r] < 29);
  }
  s.destroy(s.self);
  assert_int_equal(kva_safetensors_write(path_a, 1, named, 0, NULL, NULL), KVA_OK);
  expect_error(spec, 0, "holds no tensor 'y'");
}

static void texts_are_checked(void **unused) {
  (void)unused;
  expect_error("", 10, "no data source is called ''");
  expect_error("wikipedia", 10,
               "there are: induction, ngram, hop, igsm, random, tokens:FILE, npy:INPUT=FILE, safetensors:FILE");
  expect_error("tokens", 10, "needs a file");
  expect_error("tokens:no/such/file", 10, "cannot open it");
  expect_error("tokens:files=a", 10, "has no argument 'files'");
  expect_error("tokens:a,,b", 10, "an item is empty");
  expect_error("tokens:a,eval=1", 10, "0 to less than 1, found '1'");
  expect_error("tokens:a,length=1.5", 10, "a whole number above 0, found '1.5'");
  expect_error("random:all=x", 10, "expected NAME=NUMBER, found 'all=x'");
  expect_error("random:eval=0.5", 10, "leave out eval=0.5");
  expect_error("random:length=4", 0, "ends in [..., vocabulary]");
  kva_data_source s;
  assert_int_equal(open_spec("random:length=4.0,all=1.0", 10, NULL, &s), KVA_OK);
  int32_t tokens[5];
  kva_diag *diag = kva_diag_create();
  assert_int_equal(s.fill(s.self, 0, 1, false, 1, &(kva_tensor){KVA_I32, 2, {1, 5}, tokens}, diag), KVA_INVALID);
  assert_non_null(
      strstr(kva_diag_message(diag, 0, NULL, NULL), "length=4 is given, but the program takes sequences of 5"));
  kva_diag_destroy(diag);
  s.destroy(s.self);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(permutations_are_bijections),
      cmocka_unit_test(permutations_look_random),
      cmocka_unit_test(an_epoch_reads_every_row_once),
      cmocka_unit_test(small_batches_make_up_large_ones),
      cmocka_unit_test(token_files_read_back),
      cmocka_unit_test(windows_of_all_files),
      cmocka_unit_test(damaged_token_files_are_refused),
      cmocka_unit_test(damaged_tokens_are_found),
      cmocka_unit_test(rows_of_arrays_stay_together),
      cmocka_unit_test(safetensors_give_the_same_rows),
      cmocka_unit_test(texts_are_checked),
  };
  return cmocka_run_group_tests(tests, make_two_files, remove_two_files);
}
