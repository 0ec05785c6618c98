/* A program that has chosen a locale with a comma in its numbers: what is written and read has points nevertheless. */
#include "runtime/base/numbers.h"
#include "runtime/base/platform.h"
#include "runtime/checkpoint.h"
#include "runtime/data.h"
#include "tests/runtime/sample.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[] = "/tmp/kvasir-locale-XXXXXX";

static bool make_locale(void) {
  char command[200];
  if (!mkdtemp(folder)) return false;
  snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >%s/log 2>&1", folder, folder);
  int code = system(command);
  return code >= 0 && !setenv("LOCPATH", folder, 1) && setlocale(LC_ALL, "de_DE.UTF-8");
}

static int remove_folder(void **unused) {
  (void)unused;
  char command[80];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command);
}

static void must_print(const char *expected) {
  char text[20];
  snprintf(text, sizeof text, "%.1f", 0.5);
  assert_string_equal(text, expected);
}

static void texts_have_points(void **unused) {
  (void)unused;
  kva_text text = {0};
  double v;
  must_print("0,5");
  kva_text_add_double(&text, 0.1);
  kva_text_add_float(&text, 1e-7f);
  kva_text_add_double(&text, 2);
  assert_string_equal(text.data, "0.11e-072.0");
  assert_true(kva_parse_double("0.25", &v) && v == 0.25);
  assert_false(kva_parse_double("0,25", &v));
  kva_text_free(&text);
  must_print("0,5");
  locale_t outer = kva_numbers_enter(), inner = kva_numbers_enter();
  must_print("0.5");
  kva_numbers_leave(inner);
  must_print("0.5");
  kva_numbers_leave(outer);
  must_print("0,5");
}

static pthread_t caller;

/* The caller is slow, so that the others have a part in it. */
static void print_elsewhere(void *texts, int64_t begin, int64_t end) {
  bool here = pthread_equal(pthread_self(), caller);
  for (int64_t i = begin; i < end; i++)
    here ? (void)usleep(1000) : (void)snprintf((char *)texts + 8 * i, 8, "%.1f", 0.5);
}

static void threads_print_points(void **unused) {
  (void)unused;
  enum { N = 64 };
  char texts[N][8] = {{0}};
  int printed = 0;
  kva_pool *pool = kva_pool_create(3);
  caller = pthread_self();
  assert_non_null(pool);
  for (int run = 0; run < 50; run++) kva_pool_run(pool, N, print_elsewhere, texts);
  kva_pool_destroy(pool);
  for (int i = 0; i < N; i++) {
    if (texts[i][0]) assert_string_equal(texts[i], "0.5");
    printed += texts[i][0] != 0;
  }
  assert_true(printed > 0);
}

static void checkpoints_are_the_same(void **unused) {
  (void)unused;
  static const char weight_decay[] = "\"kvasir.weight_decay\":\"0.25\"";
  char path[80];
  kva_session *s;
  kva_checkpoint found, position = {.schedule = {.lr = 0.1, .final_ratio = 0x1p-1060}, .weight_decay = 0.25};
  snprintf(path, sizeof path, "%s/a", folder);
  assert_int_equal(kva_session_create(&sample_artifact, &(kva_session_options){.threads = 1}, NULL, &s), KVA_OK);
  assert_int_equal(kva_checkpoint_write(path, s, &position, NULL), KVA_OK);
  kva_file file;
  assert_int_equal(kva_file_map(path, NULL, &file), KVA_OK);
  assert_non_null(memmem(file.data, file.size, weight_decay, strlen(weight_decay)));
  kva_file_unmap(&file);
  assert_int_equal(kva_checkpoint_read(path, s, NULL, &found), KVA_OK);
  assert_true(found.weight_decay == 0.25 && found.schedule.lr == 0.1 && found.schedule.final_ratio == 0x1p-1060);
  kva_session_destroy(s);
}

static void data_are_named_alike(void **unused) {
  (void)unused;
  static const char *const inputs[] = {"x"};
  kva_data_source s;
  kva_data_options options = {.vocab = 9, .n_inputs = 1, .inputs = inputs};
  assert_int_equal(kva_data_open("random:weight=0.5;random:weight=1.5", &options, NULL, &s), KVA_OK);
  assert_int_equal(kva_data_length("random:weight=0.5,length=8;random:weight=1.5"), 8);
  s.destroy(s.self);
  must_print("0,5");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(texts_have_points),
      cmocka_unit_test(threads_print_points),
      cmocka_unit_test(checkpoints_are_the_same),
      cmocka_unit_test(data_are_named_alike),
  };
  if (!make_locale()) {
    printf("SKIP: localedef makes no locale de_DE.UTF-8 here\n");
    remove_folder(NULL);
    return 77;
  }
  return cmocka_run_group_tests(tests, NULL, remove_folder);
}
